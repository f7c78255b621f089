"""One frame for the single messages that wait for the same write.

Each message keeps its own waiter. A frame for each message would cost a header, a checksum, an
index entry and an acknowledgement each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from goq import limits
from goq.broker.log.pending_appends import Appended, Waiter, reject, resolve
from goq.frame.encoder import (
    NO_PRODUCER,
    ProducerMark,
    columns_from_messages,
    encode_frame,
)
from goq.frame.header import HEADER_BYTES
from goq.frame.one_value import view_of_value
from goq.frame.view import FrameView
from goq.model import Acks, Message

_MARGIN_BYTES = 128  # of a message: its columns, and a frame of its own
_HEADER_MARGIN_BYTES = 16


class SharedBy(NamedTuple):
    """The properties that the messages of a frame have in common."""

    producer: ProducerMark = NO_PRODUCER
    acks: Acks = Acks.QUORUM
    default_lane: int = 0


@lru_cache(maxsize=1024)
def shared_by(producer: ProducerMark, acks: Acks, default_lane: int) -> SharedBy:
    """Return the properties; the same object for the same ones, if they are frequent."""
    return SharedBy(producer, acks, default_lane)


class SharedFrame:
    """The messages of a frame that is encoded when its batch is written.

    It is also the waiter of the frame, and passes the outcome on to the waiters of the messages.
    """

    __slots__ = ("_by", "_messages", "_view", "_waiting", "size_bytes")

    def __init__(self, by: SharedBy) -> None:
        self._by = by
        self._messages: list[Message] = []
        self._waiting: list[Waiter[Appended]] = []
        self._view: FrameView | None = None
        self.size_bytes = 0
        """About the size of the frame, and no less."""

    def has_room_for(self, size_bytes: int) -> bool:
        """Return whether a message of this size fits; the first always does."""
        return not self._messages or (
            self.size_bytes + size_bytes <= limits.SHARED_FRAME_BYTES_MAX
            and len(self._messages) < limits.SHARED_FRAME_MESSAGES_MAX
        )

    def add(self, message: Message, size_bytes: int, done: Waiter[Appended]) -> None:
        """Add a message; ``done`` gets its position."""
        self._messages.append(message)
        self._waiting.append(done)
        self.size_bytes += size_bytes

    @property
    def view(self) -> FrameView:
        """The frame; after the first look no message may be added."""
        if self._view is None:
            self._view = frame_of(self._messages, self._by.producer, self._by.default_lane)
        return self._view

    def done(self) -> bool:
        """Return whether no message waits."""
        return all(each.done() for each in self._waiting)

    def set_result(self, frame: Appended) -> None:
        """Resolve the waiter of each message with the message's position."""
        if frame.left_out:  # the loop below is what this is without duplicates, but faster
            found = positions(frame, len(self._waiting))
            for each, appended in zip(self._waiting, found, strict=True):
                resolve(each, appended)
            return
        offset, time_us, _, _ = frame
        for each in self._waiting:
            if not each.done():
                each.set_result(Appended(offset, time_us))
            offset += 1

    def set_exception(self, error: Exception) -> None:
        """Fail the waiter of each message."""
        for each in self._waiting:
            reject(each, error)

    def exception(self) -> None:
        """Do nothing: the waiters of the messages have the exception."""


def message_bytes(message: Message) -> int:
    """Return about the size of a frame with a message, and no less."""
    size_bytes = HEADER_BYTES + _MARGIN_BYTES + len(message.value or b"") + len(message.key or b"")
    if message.tenant is not None:
        size_bytes += 4 * len(message.tenant)
    for name, value in message.headers:
        size_bytes += _HEADER_MARGIN_BYTES + 4 * len(name) + len(value)
    return size_bytes


def frame_of(messages: Sequence[Message], producer: ProducerMark, default_lane: int) -> FrameView:
    """Return messages as a frame; a single bare value takes a faster path."""
    first = messages[0]
    if len(messages) == 1 and first.value is not None and first == Message(first.value):
        return view_of_value(first.value, producer)
    columns = columns_from_messages(messages, default_lane=default_lane)
    return FrameView.parse(encode_frame(columns, producer=producer))


def positions(frame: Appended, count: int) -> Iterator[Appended]:
    """Yield the positions of the ``count`` messages of a frame, as if each had one of its own."""
    originals = {row: (offset, time_us) for row, offset, time_us in frame.left_out}
    offset = frame.offset
    for row in range(count):
        original = originals.get(row) if originals else None
        if original is not None:
            yield Appended(*original, left_out=((0, *original),))
        else:
            yield Appended(offset, frame.time_us)
            offset += 1
