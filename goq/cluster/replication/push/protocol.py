"""The messages of a push stream between two nodes. Each is one frame of the stream.

    begin    1 · session u64                                    follower to leader
    stored   2 · session u64 · number u64 · others u64 …        follower to leader
    push     3 · size u32 of the head · head in msgpack · frames    leader to follower
    renew    4 · session u64                                    follower to leader

All integers are little-endian. A push belongs to a fetch session, and the pushes of a session are
numbered from 1 on. ``begin`` asks for the pushes of a session. ``stored`` says that the follower
has everything up to a push on its disk, and which pushes behind it: a small one need not wait for a
large one of another partition. Only a leader that takes these ``others``, as its pushes say, is
sent any. The head of a push is a :class:`PushHead`; the frames of its updates follow in their
order, as in a fetch response. ``renew`` is a sign of life of a session that is pushed to: it says
what a fetch without positions does.

Each direction of a stream keeps its order. A stream that ends takes its session with it: the
follower begins another one by a fetch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from goq.cluster.replication.protocol import PartitionUpdate
from goq.errors import InvalidFrame

_BEGIN: Final = 1
_STORED: Final = 2
_PUSH: Final = 3
_RENEW: Final = 4
_BEGIN_MESSAGE = struct.Struct("<BQ")
_STORED_MESSAGE = struct.Struct("<BQQ")
_NUMBER = struct.Struct("<Q")
_PUSH_PREFIX = struct.Struct("<BI")


class PeerStream(Protocol):
    """An authenticated connection with another node."""

    def send(self, *parts: bytes | memoryview) -> bool:
        """Send a message, which consists of ``parts``. They must not change any more.

        Return False if the stream is closed or its send buffer is full.
        """

    def abort(self, reason: str) -> None:
        """Close the stream at once, and log the reason."""


class PushHead(msgspec.Struct, frozen=True, array_like=True):
    """The head of a push; ``clock_ms`` is the leader's wall time when it was sent.

    ``takes_others`` says that the leader takes reports of pushes behind one that is not stored yet.
    """

    session: int
    number: int
    clock_ms: int
    updates: list[PartitionUpdate]
    takes_others: bool = False


class Begin(NamedTuple):
    """Asks for the pushes of a session."""

    session: int


class Stored(NamedTuple):
    """Says that a follower has all pushes of a session up to ``number`` on its disk.

    It has ``others`` too, which come behind one that it does not have yet.
    """

    session: int
    number: int
    others: tuple[int, ...] = ()


class Renew(NamedTuple):
    """Says that the follower goes on in a session."""

    session: int


class Push(NamedTuple):
    """The frames that a leader has appended: ``frames`` are those of all updates."""

    head: PushHead
    frames: memoryview


_decoder = msgspec.msgpack.Decoder(PushHead)
_encoder = msgspec.msgpack.Encoder()


def encode_begin(session: int) -> bytes:
    """Return the message that asks for the pushes of a session."""
    return _BEGIN_MESSAGE.pack(_BEGIN, session)


def encode_renew(session: int) -> bytes:
    """Return the message that renews a session."""
    return _BEGIN_MESSAGE.pack(_RENEW, session)


def encode_stored(session: int, number: int, others: Sequence[int] = ()) -> bytes:
    """Return the message that reports what is stored."""
    message = _STORED_MESSAGE.pack(_STORED, session, number)
    return message + b"".join(map(_NUMBER.pack, others)) if others else message


def encode_push(head: PushHead, frames: Sequence[memoryview]) -> list[bytes | memoryview]:
    """Return the parts of the message of a push, without copying the frames."""
    encoded = _encoder.encode(head)
    return [_PUSH_PREFIX.pack(_PUSH, len(encoded)) + encoded, *frames]


def decode_message(data: bytes) -> Begin | Stored | Push | Renew:
    """Return a message; raise ``InvalidFrame`` if the bytes are not one."""
    kind, size_bytes = data[:1], len(data)
    others_bytes = size_bytes - _STORED_MESSAGE.size
    if kind == b"\x02" and others_bytes >= 0 and not others_bytes % _NUMBER.size:
        others = tuple(n for (n,) in _NUMBER.iter_unpack(data[_STORED_MESSAGE.size :]))
        _, session, number = _STORED_MESSAGE.unpack_from(data)
        return Stored(session, number, others)
    if kind == b"\x01" and size_bytes == _BEGIN_MESSAGE.size:
        return Begin(_BEGIN_MESSAGE.unpack(data)[1])
    if kind == b"\x04" and size_bytes == _BEGIN_MESSAGE.size:
        return Renew(_BEGIN_MESSAGE.unpack(data)[1])
    if kind != b"\x03" or size_bytes < _PUSH_PREFIX.size:
        raise InvalidFrame("not a message of a push stream")
    end = _PUSH_PREFIX.size + _PUSH_PREFIX.unpack_from(data)[1]
    whole = memoryview(data)
    try:
        head = _decoder.decode(whole[_PUSH_PREFIX.size : end])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidFrame(f"not the head of a push: {error}") from None
    frames = whole[end:]
    if sum(map(frame_bytes, head.updates)) != len(frames):
        raise InvalidFrame("a push has other frames than its head says")
    return Push(head, frames)


def frame_bytes(update: PartitionUpdate) -> int:
    """Return the size of the frames of both logs."""
    messages, events = update.messages, update.events
    return (messages.frame_bytes if messages else 0) + (events.frame_bytes if events else 0)
