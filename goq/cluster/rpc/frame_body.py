"""Bodies of calls that carry frames: the length of a head (u32), the head, then the frames."""

from __future__ import annotations

from collections.abc import Sequence

_HEAD_BYTES = 4


def join_head(head: bytes, frames: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the pieces of a body, without copying the frames."""
    return [len(head).to_bytes(_HEAD_BYTES, "little"), head, *frames]


def split_head(body: bytes) -> tuple[memoryview, memoryview]:
    """Return the head of a body and the bytes of its frames."""
    whole = memoryview(body)
    end = _HEAD_BYTES + int.from_bytes(whole[:_HEAD_BYTES], "little")
    return whole[_HEAD_BYTES:end], whole[end:]
