"""Searching one partition backwards, a step at a time; all of it blocks on the disk.

A search through a topic takes one of these for each partition and asks whichever may have the
newest message next, so that what it finds comes newest first over all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from goq import limits
from goq.errors import InvalidInput
from goq.frame.hashes import key_hash
from goq.frame.header import Attribute
from goq.frame.match import has_dedup_id, has_key, rows_with_header
from goq.frame.view import FrameView
from goq.storage.key_index.file import KeyTable
from goq.storage.key_index.index import KeyIndex
from goq.storage.key_index.lookup import KeyLookup, Pause
from goq.storage.log.reader import LogReader

TIME_US_MIN: Final = -(2**63)
TIME_US_MAX: Final = 2**63 - 1
_PIECES_MIN = 4  # that each partition of many can be given before a search has to answer
_UNREADABLE = (InvalidInput, ValueError, IndexError)  # of a frame that was never checked


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages are meant: those with a key, or a dedup id, or a header; one of the three.

    ``dedup_id`` is the 16 bytes that it is known by. Times are of appending, from the first up to
    before the second, in microseconds.
    """

    key: bytes | None = None
    dedup_id: bytes | None = None
    header: tuple[str, bytes] | None = None
    from_us: int = TIME_US_MIN
    to_us: int = TIME_US_MAX

    def takes_time(self, time_us: int) -> bool:
        """Whether a message appended then may be meant."""
        return self.from_us <= time_us < self.to_us


class Found(NamedTuple):
    """Where a message lies, and when it was appended."""

    partition: int
    offset: int
    time_us: int


@dataclass(slots=True)
class Budget:
    """How much a search may still look at before it has to answer."""

    messages: int
    size_bytes: int

    @property
    def is_spent(self) -> bool:
        """Whether it is time to answer."""
        return self.messages <= 0 or self.size_bytes <= 0


_PIECE: Final = Budget(50_000, 2 * limits.MIB)


def piece_for(partitions: int, budget: Budget) -> Budget:
    """Return how much of a partition to look at in a step, if all are to have several."""
    share = max(1, _PIECES_MIN * partitions)
    return Budget(
        max(1, min(_PIECE.messages, budget.messages // share)),
        max(1, min(_PIECE.size_bytes, budget.size_bytes // share)),
    )


class Source(Protocol):
    """One partition's part of a search.

    ``found`` holds what was found and not taken yet, the newest first. Everything from ``bound``
    on has been looked at; what is before it was appended at ``time_us`` or earlier, as far as
    clocks go. ``unreadable`` counts places where something may be that cannot be read.
    """

    number: int
    found: deque[Found]
    bound: int
    time_us: int
    is_done: bool
    unreadable: int

    def step(self, budget: Budget) -> None:
        """Look a little further back."""
        ...


class KeySource:
    """Looks at the messages that the index names; see :class:`Source`."""

    def __init__(
        self, number: int, index: KeyIndex, wanted: Wanted, start: int, end: int, pause: Pause
    ) -> None:
        self.number = number
        self.found = deque[Found]()
        self.bound = end
        self.time_us = newest_time_us(index.reader)
        self.is_done = False
        self.unreadable = 0
        self._reader = index.reader
        self._wanted = wanted
        self._view: FrameView | None = None
        if wanted.key is not None:
            table, hashed = KeyTable.KEYS, key_hash(wanted.key)
        else:
            assert wanted.dedup_id is not None
            table, hashed = KeyTable.DEDUP_IDS, int.from_bytes(wanted.dedup_id[:8], "little")
        lookup = KeyLookup(table, hashed, start, end, wanted.from_us, wanted.to_us)
        self._candidates = index.offsets(lookup, pause)

    def step(self, budget: Budget) -> None:
        """Look at the next message that it may be."""
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
        if self._wanted.takes_time(time_us) and self._is_wanted(view, offset):
            self.time_us = time_us
            self.found.append(Found(self.number, offset, time_us))

    def _frame(self, offset: int, budget: Budget) -> FrameView | None:
        view = self._view
        if view is None or not view.header.base_offset <= offset < view.header.end_offset:
            frames = self._reader.read(offset, offset + 1, messages_max=1).frames
            self._view = view = frames[0] if frames else None
            if view is None:
                self.unreadable += offset >= self._reader.segments[0].base_offset
                return None
            budget.size_bytes -= view.header.frame_bytes
        return view

    def _is_wanted(self, view: FrameView, offset: int) -> bool:
        row, wanted = offset - view.header.base_offset, self._wanted
        try:
            if wanted.key is not None:
                return has_key(view, row, wanted.key)
            return wanted.dedup_id is not None and has_dedup_id(view, row, wanted.dedup_id)
        except _UNREADABLE:
            self.unreadable += 1
            return False


class HeaderSource:
    """Looks at all messages, a piece of the log at a time; see :class:`Source`.

    A piece is at most about 2 MiB and 50,000 messages, less where there are many partitions.
    """

    def __init__(
        self,
        number: int,
        index: KeyIndex,
        wanted: Wanted,
        start: int,
        end: int,
        pause: Pause,
        piece: Budget = _PIECE,
    ) -> None:
        self.number = number
        self.found = deque[Found]()
        self.bound = end
        self.time_us = newest_time_us(index.reader)
        self.is_done = start >= end
        self.unreadable = 0
        self._disk = index.disk
        self._reader = index.reader
        self._wanted = wanted
        self._start = start
        self._pause = pause
        self._piece = piece

    def step(self, budget: Budget) -> None:
        """Look at the next piece of the log."""
        before = self._reader.segments
        try:
            start = self._piece_start()
        except FileNotFoundError:
            if self._is_at_start() or before is not self._reader.segments:
                return  # deleted, archived or compacted meanwhile
            raise
        at, end = start, self.bound
        found: list[Found] = []
        while at < end:
            self._pause()
            reading = self._reader.read(at, end, bytes_max=self._piece.size_bytes)
            self.unreadable += len(reading.damage)
            for view in reading.frames:
                found += self._found_in(view, start, end)
                budget.size_bytes -= view.header.frame_bytes
            if reading.frames and at == start:
                self.time_us = reading.frames[0].header.append_time_us
            if reading.next_offset <= at:
                break  # the log was cut meanwhile
            at = reading.next_offset
        budget.messages -= end - start
        self.found.extend(reversed(found))
        self.bound = start
        self._is_at_start()

    def _is_at_start(self) -> bool:
        self.is_done = self.bound <= max(self._start, self._reader.segments[0].base_offset)
        return self.is_done

    def _piece_start(self) -> int:
        """Return the offset from which on so much of the log lies before ``bound``, by its index.

        It is before ``bound``, and in the same segment as what comes before that.
        """
        last = self.bound - 1
        segments = self._reader.segments
        segment = next((s for s in reversed(segments) if s.base_offset <= last), segments[0])
        index = segment.load_index(self._disk)
        lowest = max(self._start, segment.base_offset, last - self._piece.messages + 1)
        target = index.before_offset(last).position - self._piece.size_bytes
        offsets = range(lowest, last)
        return lowest + bisect_left(offsets, target, key=lambda o: index.before_offset(o).position)

    def _found_in(self, view: FrameView, start: int, end: int) -> list[Found]:
        header = view.header
        if not header.attributes & Attribute.HEADERS or not self._wanted.takes_time(
            header.append_time_us
        ):
            return []
        assert self._wanted.header is not None
        try:
            rows = rows_with_header(view, *self._wanted.header)
        except _UNREADABLE:
            self.unreadable += 1
            return []
        offsets = [header.base_offset + row for row in rows]
        return [Found(self.number, o, header.append_time_us) for o in offsets if start <= o < end]


def newest_time_us(reader: LogReader) -> int:
    """Return a time before which everything was appended that a reader has."""
    return max(segment.time_us for segment in reader.segments[-1:])
