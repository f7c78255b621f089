"""Search for dead letters: messages of a dead-letter topic that were neither redriven nor purged.

A search reads the log. It reads a bounded number of messages and returns where to continue.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple

import msgspec

from goq import limits
from goq.broker.outbox.dead_letter_headers import DeadLetter, dead_letter_of
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.errors import InvalidInput
from goq.model import Message, MessageId
from goq.units import parse_time_us

_PAGE_MESSAGES = 1_000
_PAGE_BYTES = 4 * limits.MIB


class DeadLetterQuery(msgspec.Struct, frozen=True):
    """The conditions for a dead letter. None, or an empty set of ids, matches every letter.

    ``reason`` matches a substring, ``exact_reason`` the whole reason: empty if none was given.
    Times are when the message was dead-lettered, in microseconds; ``to_us`` is exclusive. An id is
    that of the dead letter or of its original message. ``origin_topic`` is the topic that the
    message died in.
    """

    group: str | None = None
    reason: str | None = None
    exact_reason: str | None = None
    cause: str | None = None
    key: bytes | None = None
    from_us: int | None = None
    to_us: int | None = None
    ids: frozenset[str] = frozenset()
    partition: int | None = None
    origin_topic: str | None = None

    def matches(self, message_id: str, key: bytes | None, letter: DeadLetter) -> bool:
        """Return whether a dead letter matches."""
        origin = letter.origin
        if self.key is not None and key != self.key:
            return False
        if (
            self.ids
            and message_id not in self.ids
            and (origin is None or origin.id not in self.ids)
        ):
            return False
        if origin is None:
            reasons = self.reason, self.exact_reason
            asked = *reasons, self.group, self.cause, self.from_us, self.to_us
            return asked == (None,) * 6 and self.origin_topic is None
        if self.origin_topic is not None and origin.topic != self.origin_topic:
            return False
        return (
            (self.group is None or origin.group == self.group)
            and (self.reason is None or self.reason in origin.reason)
            and (self.exact_reason is None or origin.reason == self.exact_reason)
            and (self.cause is None or origin.cause == self.cause)
            and ((self.from_us is None and self.to_us is None) or self._died_within(origin.time))
        )

    def _died_within(self, time: str) -> bool:
        try:
            died_us = parse_time_us(time, now_us=0)
        except InvalidInput:
            return False
        return (self.from_us or 0) <= died_us and (self.to_us is None or died_us < self.to_us)


class FoundDeadLetter(NamedTuple):
    """A dead letter and its position."""

    partition: int
    offset: int
    time_us: int
    message: Message
    letter: DeadLetter


class _Page(NamedTuple):
    found: list[FoundDeadLetter]
    next_offset: int
    messages: int
    size_bytes: int


class DeadLetterSearch:
    """A search through the partitions of a topic in order, after a position.

    When :meth:`run` has ended, ``next`` is the position to continue after, None at the end.
    """

    def __init__(
        self, topic: Topic, query: DeadLetterQuery, after: tuple[int, int] = (-1, -1)
    ) -> None:
        self.next: tuple[int, int] | None = after
        self._topic = topic
        self._query = query
        self._after = after
        self._messages_left = limits.DEAD_LETTERS_SCANNED_MAX
        self._bytes_left = limits.DEAD_LETTERS_SCANNED_BYTES_MAX
        self._only_offsets = self._offsets_by_partition()

    async def run(self) -> AsyncGenerator[FoundDeadLetter, None]:
        """Yield the matching letters. A caller that stops early sets ``next`` itself."""
        first, behind = reached = self._after
        for partition in self._topic.partitions:
            number = partition.identity.number
            if number < first or self._query.partition not in (None, number):
                continue
            at = behind + 1 if number == first else 0
            while (run := self._next_range(partition, at)) is not None:
                if self._messages_left <= 0 or self._bytes_left <= 0:
                    self.next = reached
                    return
                page = await self._read(partition, *run)
                self._messages_left -= max(1, page.messages)
                self._bytes_left -= page.size_bytes
                for found in page.found:
                    yield found
                at = page.next_offset
                reached = (number, at - 1)
        self.next = None

    def _offsets_by_partition(self) -> dict[int, list[int]] | None:
        """Return the only offsets to read, by partition, if all ids are in this topic."""
        offsets: dict[int, list[int]] = {}
        for text in self._query.ids:
            topic, partition, offset = MessageId.parse(text)
            if topic != self._topic.name:
                return None
            offsets.setdefault(partition, []).append(offset)
        return {number: sorted(some) for number, some in offsets.items()} or None

    def _next_range(self, partition: Partition, at: int) -> tuple[int, int] | None:
        """Return the next range of messages to read from ``at`` on."""
        if self._only_offsets is None:
            return partition.marks.next_uncancelled(at)
        at = max(at, partition.start_offset)
        for offset in self._only_offsets.get(partition.identity.number, ()):
            if at <= offset < partition.end_offset and not partition.marks.is_cancelled(offset):
                return offset, offset + 1
        return None

    async def _read(self, partition: Partition, start: int, end: int) -> _Page:
        end = min(end, start + min(_PAGE_MESSAGES, self._messages_left))
        return await partition.in_thread(lambda: self._page(partition, start, end))

    def _page(self, partition: Partition, start: int, end: int) -> _Page:
        number = partition.identity.number
        reading = partition.message_reader.read(
            start, end, messages_max=end - start, bytes_max=_PAGE_BYTES
        )
        found: list[FoundDeadLetter] = []
        size_bytes = 0
        for view in reading.frames:
            base = view.header.base_offset
            first, last = max(start, base), min(end, view.header.end_offset)
            size_bytes += view.header.frame_bytes
            messages = view.messages(first - base, last - base)
            kept = view.kept(first - base, last - base)
            for offset, message, is_kept in zip(range(first, last), messages, kept, strict=True):
                if not is_kept:
                    continue
                letter = dead_letter_of(view.header.attributes, message.headers)
                message_id = str(MessageId(self._topic.name, number, offset))
                if self._query.matches(message_id, message.key, letter):
                    time_us = view.header.append_time_us
                    found.append(FoundDeadLetter(number, offset, time_us, message, letter))
        next_offset = min(reading.next_offset, end)
        if next_offset <= start:
            next_offset = end  # the log was truncated in the meantime
        return _Page(found, next_offset, next_offset - start, size_bytes)
