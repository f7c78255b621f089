"""Redis commands made beforehand, for the raw loader: the counterpart of ``frames``."""

from __future__ import annotations

from collections.abc import Callable

STREAM = "bench"


def xadd(value: bytes) -> bytes:
    """Return the command that adds a value to the stream."""
    parts = (b"XADD", STREAM.encode(), b"*", b"v", value)
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def pipeline(values: list[bytes]) -> bytes:
    """Return the commands that add a batch."""
    return b"".join(map(xadd, values))


def answers_length(count: int) -> Callable[[bytes], int]:
    """Return what measures ``count`` answers of XADD, each ``$n``, line end, id, line end."""

    def length(data: bytes) -> int:
        if data[:1] == b"-":
            raise RuntimeError(data.decode("latin-1"))
        if data.count(b"\r\n") < 2 * count:
            return 0
        return len(data)  # one pipeline is under way: nothing follows its answers

    return length
