"""Admission of messages to the log of a partition, before append.

It drops duplicate frames by producer sequence, and duplicate messages by dedup id. It counts
relative times from the time of the append. Events have none of these, and pass no admission.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from goq import limits
from goq.broker.log.pending_appends import Appended
from goq.broker.runtime.metrics import TopicStats
from goq.clock import Clock, WallSteps
from goq.config.topic import TopicSettings
from goq.delivery.dedup.dedup_window import DedupWindow, Offsets, Originals
from goq.delivery.dedup.id_table import Ids
from goq.delivery.dedup.producer_table import ProducerTable
from goq.frame.encoder import DuplicateRow
from goq.frame.header import Attribute, FrameHeader
from goq.frame.relative_times import with_absolute_times
from goq.frame.slice import drop_duplicates
from goq.frame.view import FrameView


class AppendAdmission(Protocol):
    """The admission of frames: decides before the write, and learns the outcome.

    Its owner calls one method at a time, in any thread.
    """

    steps: WallSteps
    """The clock that gives frames their times; its steps are told to ``note_clock_set``."""

    def note_clock_set(self, step_ms: int) -> None:
        """Count from the next frame on that the clock was set ahead."""

    def admit(self, view: FrameView, next_offset: int, now_us: int) -> FrameView | Appended | None:
        """Return the frame to append, the place of a duplicate, or None: ask again after the batch.

        Raises ``GoqError`` for the frame's sender if it may not be appended.
        """

    def note_duplicate(self) -> None:
        """Count a frame that is stored already."""

    def stage(self, view: FrameView, offset: int, time_us: int) -> None:
        """Record a frame that will be written."""

    def settle(self, *, stored: bool) -> None:
        """Complete all staged frames: durable, or none stored."""


def dedup_window_us(settings: TopicSettings) -> int | None:
    """Return a topic's dedup window in microseconds."""
    window_ms = settings.dedup_window_ms
    return None if window_ms is None else window_ms * 1000


class _Staged(NamedTuple):
    """The dedup ids of a frame that is being written."""

    ids: Ids
    offsets: Offsets
    time_us: int


class _Numbered(NamedTuple):
    """A frame with a producer sequence that is being written."""

    header: FrameHeader
    offset: int
    time_us: int


class Admission:
    """Admits each frame before it is written, and learns the outcome of the write afterwards.

    Ids that are being written are neither new nor known: a frame with such an id, or one with the
    same first half, waits for the outcome. So the original named to a duplicate is always durable.

    ``read_frame`` returns the stored frame at an offset. ``producers`` is the producer table of the
    partition's state. With ``is_ahead`` the state learns of frames only when other nodes have them,
    so the admission keeps a table of its own.
    """

    def __init__(
        self,
        producers: ProducerTable,
        window: DedupWindow,
        read_frame: Callable[[int], FrameView | None],
        stats: TopicStats,
        clock: Clock,
        *,
        is_ahead: bool = False,
    ) -> None:
        self._window = window
        self._window_us = window.window_us  # from the next frame on
        self._producers = producers.copy() if is_ahead else producers
        self._is_ahead = is_ahead
        self._numbered: list[_Numbered] = []
        self._read_frame = read_frame
        self._stats = stats
        self.steps = WallSteps(clock, limits.CLOCK_SKEW_WARN_MS)
        self._step_ms = 0  # by which the clock was set ahead, and the window does not know
        self._staged: list[_Staged] = []
        self._first_halves: set[int] = set()  # of the ids of the first staged frames
        self._halves_of = 0  # so many staged frames

    def configure(self, settings: TopicSettings) -> None:
        """Apply a changed window to later frames; a thread may use the window now."""
        self._window_us = dedup_window_us(settings)

    def note_clock_set(self, step_ms: int) -> None:
        """Count from the next frame on that the clock was set ahead by ``step_ms``."""
        self._step_ms += step_ms

    def admit(self, view: FrameView, next_offset: int, now_us: int) -> FrameView | Appended | None:
        """Return the frame to append at ``next_offset``, the place of a duplicate, or None.

        None: undecided until the current write is durable. Raises ``ProducerFenced`` and
        ``OutOfOrderSequence``, see :class:`ProducerTable`.
        """
        header = view.header
        known = self._producers.find(header)
        if known is not None:
            left_out: Sequence[DuplicateRow] = ()
            if known.left_out:
                stored = self._read_frame(known.offset)
                left_out = stored.left_out if stored is not None else ()
            return Appended(known.offset, known.time_us, True, left_out)
        view = with_absolute_times(view, now_us)
        if self._window.window_us != self._window_us:
            self._window.configure(self._window_us)
        if self._window.window_us is None or not header.attributes & Attribute.DEDUP_ID:
            return view
        if not self._follow_clock(now_us):
            return None
        rows, ids = _ids_of(view)
        if self._staged and not self._under_way().isdisjoint(ids[:, 0].tolist()):
            return None
        found = self._window.find(ids, now_us)
        left_out = _repetitions(rows, ids, found, next_offset, now_us)
        if not left_out:
            return view
        if len(left_out) == header.message_count:
            _, offset, time_us = left_out[0]
            return Appended(offset, time_us, left_out=left_out)
        return drop_duplicates(view, left_out)

    def _follow_clock(self, now_us: int) -> bool:
        """Tell the window that the clock was set; False while staged ids have times from before."""
        if self._step_ms and not self._staged:
            self._window.note_clock_set(now_us, self._step_ms * 1000)
            self._step_ms = 0
        return not self._step_ms

    def note_duplicate(self) -> None:
        """Count a frame that is stored already; on the event loop."""
        self._stats.duplicate_frames += 1

    def stage(self, view: FrameView, offset: int, time_us: int) -> None:
        """Record a frame that is being written."""
        if self._is_ahead and view.header.sequenced_producer_id:
            self._numbered.append(_Numbered(view.header, offset, time_us))
        if self._window.window_us is None or not view.header.attributes & Attribute.DEDUP_ID:
            return
        rows, ids = _ids_of(view)
        self._staged.append(_Staged(ids, rows + offset, time_us))

    def _under_way(self) -> set[int]:
        """Return the first halves of all staged ids."""
        for staged in self._staged[self._halves_of :]:
            self._first_halves.update(staged.ids[:, 0].tolist())
        self._halves_of = len(self._staged)
        return self._first_halves

    def settle(self, *, stored: bool) -> None:
        """Remember the staged ids if they are durable; drop them if the write failed."""
        if stored:
            for numbered in self._numbered:
                self._producers.add(*numbered)
            for ids, offsets, time_us in self._staged:
                self._window.add(ids, offsets, time_us)
        self._numbered.clear()
        self._staged.clear()
        self._first_halves.clear()
        self._halves_of = 0


def _ids_of(view: FrameView) -> tuple[Offsets, Ids]:
    """Return the rows with a dedup id, and the ids."""
    column = view.column(Attribute.DEDUP_ID)
    assert column is not None
    ids = np.frombuffer(column, np.uint64).reshape(-1, 2)
    has_id = (ids[:, 0] | ids[:, 1]) != 0
    rows = np.flatnonzero(has_id)
    return rows, ids if len(rows) == len(ids) else ids[rows]


def _repetitions(
    rows: Offsets, ids: Ids, found: Originals, next_offset: int, now_us: int
) -> list[DuplicateRow]:
    """Return the duplicate rows with their originals, stored or in the frame itself.

    The offset of an original in the frame does not count the duplicates before it.
    """
    numbers = firsts = np.arange(len(ids))
    if not _are_different(ids):
        firsts = _first_places(ids)
    elif not len(found.rows):
        return []
    is_left_out = firsts != numbers
    is_left_out[found.rows] = True
    offsets = (next_offset + rows - (np.cumsum(is_left_out) - is_left_out))[firsts]
    offsets[found.rows] = found.offsets
    times_us = np.full(len(ids), now_us)
    times_us[found.rows] = found.times_us
    columns = (column[is_left_out].tolist() for column in (rows, offsets, times_us))
    return list(zip(*columns, strict=True))


def _first_places(ids: Ids) -> NDArray[np.int64]:
    """Return of each id the place of the first one that is the same."""
    order = np.lexsort((ids[:, 1], ids[:, 0]))  # stable: of the same ids the first comes first
    in_order = ids[order]
    begins = np.concatenate(([True], (in_order[1:] != in_order[:-1]).any(axis=1)))
    firsts = np.empty(len(ids), np.int64)
    firsts[order] = order[begins][np.cumsum(begins) - 1]
    return firsts


def _are_different(ids: Ids) -> bool:
    """Return whether no two ids are the same; False also where only their first halves are."""
    halves = np.sort(ids[:, 0])
    return not (halves[1:] == halves[:-1]).any()
