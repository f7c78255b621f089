"""Search of one partition backwards, in steps. Every step blocks on the disk.

The search of a topic has one of these per partition. It steps the partition that may have the
newest match, so that results come newest first over all partitions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from goq import limits
from goq.errors import InvalidInput
from goq.frame.hashes import key_hash
from goq.frame.match import MessagePart, has_dedup_id, has_key, rows_with_header, rows_with_text
from goq.frame.view import FrameView
from goq.storage.key_index.file import KeyTable
from goq.storage.key_index.index import KeyIndex
from goq.storage.key_index.lookup import KeyLookup, Pause
from goq.storage.log.reader import LogReader

TIME_US_MIN: Final = -(2**63)
TIME_US_MAX: Final = 2**63 - 1
_CHUNKS_MIN = 4  # per partition and page
_UNREADABLE = (
    InvalidInput,
    ValueError,
    IndexError,
)  # of a frame never validated


class TextQuery(NamedTuple):
    """A text that is in some part of a message; ``ignores_case`` is for the letters A to Z."""

    text: bytes
    parts: frozenset[MessagePart]
    ignores_case: bool


class MessageQuery(msgspec.Struct, frozen=True):
    """The condition for a message: one of a key, a dedup id, a header or a text; none for all.

    ``dedup_id`` is the hash of 16 bytes that is stored. ``from_us`` and ``to_us`` bound the append
    time in microseconds; ``to_us`` is exclusive.
    """

    key: bytes | None = None
    dedup_id: bytes | None = None
    header: tuple[str, bytes] | None = None
    from_us: int = TIME_US_MIN
    to_us: int = TIME_US_MAX
    text: TextQuery | None = None

    @property
    def is_indexed(self) -> bool:
        """Whether an index names the candidates; else all messages are read."""
        return self.key is not None or self.dedup_id is not None

    @property
    def matches_all(self) -> bool:
        """Whether any message matches that was appended in time."""
        return not self.is_indexed and self.header is None and self.text is None

    def rows_in(self, view: FrameView) -> Sequence[int]:
        """Return the rows of a frame with the header or the text, rising; without both, all."""
        if self.matches_all:
            return range(view.header.message_count)
        if self.header is not None:
            return rows_with_header(view, *self.header)
        assert self.text is not None
        text, parts, ignores_case = self.text
        return rows_with_text(view, text, parts, ignores_case=ignores_case)

    def matches_time(self, time_us: int) -> bool:
        """Return whether a message with this append time may match."""
        return self.from_us <= time_us < self.to_us


class FoundMessage(NamedTuple):
    """The position and the append time of a message."""

    partition: int
    offset: int
    time_us: int


class SearchBudget(msgspec.Struct):
    """The work that a search may still do before it has to answer."""

    messages: int
    size_bytes: int

    @property
    def is_spent(self) -> bool:
        """Whether the search must answer now."""
        return self.messages <= 0 or self.size_bytes <= 0


_CHUNK: Final = SearchBudget(50_000, 2 * limits.MIB)


def chunk_for(partitions: int, budget: SearchBudget) -> SearchBudget:
    """Return the work per step that lets every partition take several steps."""
    share = max(1, _CHUNKS_MIN * partitions)
    return SearchBudget(
        max(1, min(_CHUNK.messages, budget.messages // share)),
        max(1, min(_CHUNK.size_bytes, budget.size_bytes // share)),
    )


class PartitionSearch(Protocol):
    """The search of one partition.

    ``found`` holds results that were not taken yet, newest first. All offsets from ``bound`` on
    have been searched. Messages before ``bound`` were appended at ``time_us`` or earlier, as far as
    clocks are right. ``unreadable`` counts places that may hold a match and cannot be read.
    """

    number: int
    found: deque[FoundMessage]
    bound: int
    time_us: int
    is_done: bool
    unreadable: int

    def step(self, budget: SearchBudget) -> None:
        """Search a little further back."""
        ...


class KeySearch:
    """Reads the messages that the key index names; see :class:`PartitionSearch`."""

    def __init__(
        self, number: int, index: KeyIndex, query: MessageQuery, start: int, end: int, pause: Pause
    ) -> None:
        self.number = number
        self.found = deque[FoundMessage]()
        self.bound = end
        self.time_us = newest_time_us(index.reader)
        self.is_done = False
        self.unreadable = 0
        self._reader = index.reader
        self._query = query
        self._view: FrameView | None = None
        if query.key is not None:
            table, hashed = KeyTable.KEYS, key_hash(query.key)
        else:
            assert query.dedup_id is not None
            table, hashed = KeyTable.DEDUP_IDS, int.from_bytes(query.dedup_id[:8], "little")
        lookup = KeyLookup(table, hashed, start, end, query.from_us, query.to_us)
        self._candidates = index.offsets(lookup, pause)

    def step(self, budget: SearchBudget) -> None:
        """Read the next candidate."""
        offset = next(self._candidates, None)
        if offset is None:
            self.is_done = True
            return
        budget.messages -= 1
        view = self._frame(offset, budget)
        self.bound = offset
        if view is None:
            return
        time_us = view.header.append_time_us
        if self._query.matches_time(time_us) and self._matches(view, offset):
            self.time_us = time_us
            self.found.append(FoundMessage(self.number, offset, time_us))

    def _frame(self, offset: int, budget: SearchBudget) -> FrameView | None:
        view = self._view
        if view is None or not view.header.base_offset <= offset < view.header.end_offset:
            frames = self._reader.read(offset, offset + 1, messages_max=1).frames
            self._view = view = frames[0] if frames else None
            if view is None:
                self.unreadable += offset >= self._reader.segments[0].base_offset
                return None
            budget.size_bytes -= view.header.frame_bytes
        return view

    def _matches(self, view: FrameView, offset: int) -> bool:
        row, query = offset - view.header.base_offset, self._query
        try:
            if query.key is not None:
                return has_key(view, row, query.key)
            return query.dedup_id is not None and has_dedup_id(view, row, query.dedup_id)
        except _UNREADABLE:
            self.unreadable += 1
            return False


class ScanSearch:
    """Reads all messages, one chunk of the log at a time; see :class:`PartitionSearch`.

    A chunk is at most about 2 MiB and 50,000 messages, less with many partitions.
    """

    def __init__(
        self,
        number: int,
        index: KeyIndex,
        query: MessageQuery,
        start: int,
        end: int,
        pause: Pause,
        chunk: SearchBudget = _CHUNK,
    ) -> None:
        self.number = number
        self.found = deque[FoundMessage]()
        self.bound = end
        self.time_us = newest_time_us(index.reader)
        self.is_done = start >= end
        self.unreadable = 0
        self._disk = index.disk
        self._reader = index.reader
        self._query = query
        self._start = start
        self._pause = pause
        self._chunk = chunk

    def step(self, budget: SearchBudget) -> None:
        """Read the next chunk of the log."""
        before = self._reader.segments
        try:
            start = self._chunk_start()
        except FileNotFoundError:
            if self._is_at_start() or before is not self._reader.segments:
                return  # deleted, archived or compacted in the meantime
            raise
        at, end = start, self.bound
        found: list[FoundMessage] = []
        while at < end:
            self._pause()
            reading = self._reader.read(at, end, bytes_max=self._chunk.size_bytes)
            self.unreadable += len(reading.damage)
            for view in reading.frames:
                found += self._found_in(view, start, end)
                budget.size_bytes -= view.header.frame_bytes
            if reading.frames and at == start:
                self.time_us = reading.frames[0].header.append_time_us
            if reading.next_offset <= at:
                break  # the log was truncated in the meantime
            at = reading.next_offset
        budget.messages -= end - start
        self.found.extend(reversed(found))
        self.bound = start
        self._is_at_start()

    def _is_at_start(self) -> bool:
        self.is_done = self.bound <= max(self._start, self._reader.segments[0].base_offset)
        return self.is_done

    def _chunk_start(self) -> int:
        """Return the start of the next chunk, by the sparse index.

        It is before ``bound`` and in the same segment as the offset before ``bound``.
        """
        last = self.bound - 1
        segments = self._reader.segments
        segment = next((s for s in reversed(segments) if s.base_offset <= last), segments[0])
        index = segment.load_index(self._disk)
        lowest = max(self._start, segment.base_offset, last - self._chunk.messages + 1)
        target = index.before_offset(last).position - self._chunk.size_bytes
        offsets = range(lowest, last)
        return lowest + bisect_left(offsets, target, key=lambda o: index.before_offset(o).position)

    def _found_in(self, view: FrameView, start: int, end: int) -> list[FoundMessage]:
        header = view.header
        if not self._query.matches_time(header.append_time_us):
            return []
        try:
            rows = self._query.rows_in(view)
        except _UNREADABLE:
            self.unreadable += 1
            return []
        offsets = [header.base_offset + row for row in rows]
        return [
            FoundMessage(self.number, o, header.append_time_us) for o in offsets if start <= o < end
        ]


def newest_time_us(reader: LogReader) -> int:
    """Return a time that no message of a reader was appended after."""
    return max(segment.time_us for segment in reader.segments[-1:])
