"""The index of events that are written now, and the requests that wait for events of a message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Protocol

from goq import limits
from goq.broker.events.index import EventIndex, LiveBlocks, LiveBlocksBySegment
from goq.broker.events.index_blocks import BlockBuilder, EventIndexBlock
from goq.broker.log.pending_appends import Appended, Waiter
from goq.delivery.events.affected import PendingCopies, affected_spans, holds_offset
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
        self._watch_count = 0

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
        for changed in concerned:
            self._commits.complete_when_committed(sequence, _Wake(changed))

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
        watches = self._watches.setdefault(offset, set())
        watches.add(changed)
        self._commits.complete_when_committed(self._sequence, _Wake(changed))
        self._watch_count += 1
        try:
            yield
        finally:
            self._watch_count -= 1
            watches.discard(changed)
            if not watches:
                self._watches.pop(offset, None)

    def is_watched(self, event: AnyEvent) -> bool:
        """Return whether a request waits for a message that this event may concern."""
        return any(self._may_affect(event, offset) for offset in self._watches)

    def _concerned(self, events: Sequence[AnyEvent]) -> set[asyncio.Event]:
        return {
            changed
            for event in events
            for offset, watches in self._watches.items()
            if self._may_affect(event, offset)
            for changed in watches
        }

    def _may_affect(self, event: AnyEvent, offset: int) -> bool:
        if isinstance(event, CopyStored):
            offset_ranges = self._pending_copies.of(event.entry)
        elif isinstance(event, Matured):
            return event.end_offset > offset
        elif isinstance(event, Trimmed):
            return event.start_offset > offset
        else:
            offset_ranges = affected_spans(event)
        return offset_ranges is None or holds_offset(offset_ranges, offset)


class _Wake:
    """The waiter of a commit that sets an event, whatever became of the commit."""

    def __init__(self, changed: asyncio.Event) -> None:
        self._changed = changed

    def done(self) -> bool:
        return False

    def set_result(self, _appended: Appended) -> None:
        self._changed.set()

    def set_exception(self, _error: Exception) -> None:
        self._changed.set()

    def exception(self) -> None:
        """Take note of the error: the request that wakes meets it itself."""
