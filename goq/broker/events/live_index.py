"""The index of events that are written now, and the requests that wait for events of a message."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Protocol

from goq import limits
from goq.broker.events.index import EventIndex, LiveBlocks, LiveBlocksBySegment
from goq.broker.events.index_blocks import BlockBuilder, EventIndexBlock
from goq.broker.log.pending_appends import Appended, Waiter
from goq.delivery.events.affected import OffsetSpans, PendingCopies, affected_spans
from goq.delivery.events.event import AnyEvent, CopyStored, Matured, Trimmed
from goq.delivery.outbox import Outbox
from goq.errors import TooManyRequests
from goq.index_cache import IndexCache
from goq.storage.disk import Disk
from goq.storage.log.log import Log
from goq.storage.log.segment import Segment


class Commits(Protocol):
    """The commits of an event log."""

    @property
    def high_watermark(self) -> int:
        """The sequence before which all events are committed."""

    def complete_when_committed(self, end_offset: int, done: Waiter[Appended]) -> None:
        """Complete a waiter once everything before a sequence is committed, or fail it."""


class LiveEventIndex:
    """Indexes what the event writer of a partition writes, on the event loop.

    ``index`` covers the sealed segments. ``commits`` decides what can be read and who wakes: the
    future of an event is its own request's, which may cancel it.
    """

    def __init__(
        self,
        events: Log,
        commits: Commits,
        outbox: Outbox,
        epoch: int,
        disk: Disk,
        executor: Executor,
        cache: IndexCache,
    ) -> None:
        self.index = EventIndex(disk, events.reader, cache)
        self._commits = commits
        self._epoch = epoch
        self._executor = executor
        self._pending_copies = PendingCopies()
        for entry in outbox.entries.values():
            self._pending_copies.restore(entry.number, entry.event)
        self._sequence = events.end_offset
        self._builder = BlockBuilder(self._sequence, self._pending_copies)
        self._builders = {events.active.base_offset: (self._sequence, self._builder)}
        self._watches: dict[int, set[asyncio.Event]] = {}
        self._watched: list[int] = []
        """The messages that requests wait for, by rising offset."""
        self._watch_count = 0
        self._wake = _Wake(self._sequence)

    def on_snapshot(self, event_count: int, *, begins_segment: bool) -> None:
        """Skip the events of a snapshot, which concern no message. A new segment may start here."""
        if begins_segment:
            self._builder = BlockBuilder(self._sequence, self._pending_copies)
            self._builders[self._sequence] = (self._sequence, self._builder)
        self._sequence += event_count
        self._builder.end_frame(self._sequence, limits.EVENT_INDEX_BLOCK_BYTES)

    def on_record(self, events: Sequence[AnyEvent], frame_bytes: int) -> None:
        """Index the events of a queued frame."""
        concerned = self._concerned(events) if self._watches else ()
        add, epoch, sequence = self._builder.add, self._epoch, self._sequence
        for event in events:
            add(event, epoch, sequence)
            sequence += 1
        self._sequence = sequence
        self._builder.end_frame(sequence, frame_bytes)
        if concerned:
            self._wake_when_committed(concerned)

    def on_seal(self, segment: Segment) -> None:
        """Write the index file of a sealed segment in a thread."""
        sequence, builder = self._builders.pop(segment.base_offset, (-1, None))
        blocks: list[EventIndexBlock] | None = None
        if builder is not None and sequence == segment.base_offset:
            blocks = builder.blocks()
        self._executor.submit(self.index.seal, segment, blocks)

    def live_blocks(self) -> LiveBlocksBySegment:
        """Return the blocks of the unsealed segments. Any thread may read the result."""
        end = self._commits.high_watermark
        return {
            base: LiveBlocks(sequence, end, builder.blocks())
            for base, (sequence, builder) in self._builders.items()
        }

    @contextmanager
    def watch(self, offset: int, changed: asyncio.Event) -> Iterator[None]:
        """Set ``changed`` whenever an event that may concern a message has become durable.

        What is queued already may concern it too: ``changed`` is set when all of that is durable,
        at once if nothing is queued.
        Raises ``TooManyRequests`` if too many requests wait already.
        """
        if self._watch_count >= limits.TRACE_WATCHES_MAX:
            raise TooManyRequests(
                f"{self._watch_count} requests already wait for messages of this partition",
                retry_after_ms=1000,
            )
        watches = self._watches.get(offset)
        if watches is None:
            watches = self._watches[offset] = set()
            insort(self._watched, offset)
        watches.add(changed)
        self._wake_when_committed({changed})
        self._watch_count += 1
        try:
            yield
        finally:
            self._watch_count -= 1
            watches.discard(changed)
            if not watches and self._watches.pop(offset, None) is not None:
                del self._watched[bisect_left(self._watched, offset)]

    def is_watched(self, event: AnyEvent) -> bool:
        """Return whether a request waits for a message that this event may concern."""
        return next(self._watched_by(event), None) is not None

    def _concerned(self, events: Sequence[AnyEvent]) -> set[asyncio.Event]:
        offsets = {offset for event in events for offset in self._watched_by(event)}
        return set[asyncio.Event]().union(*[self._watches[offset] for offset in offsets])

    def _watched_by(self, event: AnyEvent) -> Iterator[int]:
        """Yield the messages that requests wait for, and that this event may concern."""
        spans: OffsetSpans | None
        if isinstance(event, CopyStored):
            spans = self._pending_copies.of(event.entry)
        elif isinstance(event, Matured):
            spans = ((0, event.end_offset),)
        elif isinstance(event, Trimmed):
            spans = ((0, event.start_offset),)
        else:
            spans = affected_spans(event)
        watched = self._watched
        if spans is None:
            yield from watched
            return
        for start, end, *_ in spans:
            number = bisect_left(watched, start)
            while number < len(watched) and watched[number] < end:
                yield watched[number]
                number += 1

    def _wake_when_committed(self, changed: Collection[asyncio.Event]) -> None:
        """Set these once all that is queued now is committed, with others that wait for that."""
        wake = self._wake
        if wake.sequence == self._sequence and not wake.is_over:
            wake.changed.update(changed)
            return
        self._wake = _Wake(self._sequence, changed)
        self._commits.complete_when_committed(self._sequence, self._wake)


class _Wake:
    """The waiter of a commit that sets events, whatever became of the commit."""

    def __init__(self, sequence: int, changed: Collection[asyncio.Event] = ()) -> None:
        self.sequence = sequence
        self.changed = set(changed)
        self.is_over = not changed

    def done(self) -> bool:
        return False

    def set_result(self, _appended: Appended) -> None:
        self._set()

    def set_exception(self, _error: Exception) -> None:
        self._set()

    def exception(self) -> None:
        """Take note of the error: the request that wakes meets it itself."""

    def _set(self) -> None:
        self.is_over = True
        for each in self.changed:
            each.set()
