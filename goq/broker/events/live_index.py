"""What a partition records, indexed as it is recorded; and whoever waits for news of a message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import Any

from goq import limits
from goq.broker.events.index import Live, LiveBlocks, SpanIndex
from goq.broker.events.index_blocks import Block, BlockBuilder
from goq.delivery.events.affected import PendingCopies, affected_spans, holds_offset
from goq.delivery.events.event import AnyEvent, CopyStored, Matured
from goq.delivery.outbox import Outbox
from goq.errors import TooManyRequests
from goq.storage.disk import Disk
from goq.storage.log.log import Log
from goq.storage.log.segment import Segment


class LiveSpans:
    """Follows the writer of a partition's events, on the event loop.

    ``index`` is that of the sealed segments.
    """

    def __init__(
        self, events: Log, outbox: Outbox, epoch: int, disk: Disk, executor: Executor
    ) -> None:
        self.index = SpanIndex(disk, events.reader)
        self._events = events
        self._epoch = epoch
        self._executor = executor
        self._leaving = PendingCopies()
        for departure in outbox.entries.values():
            self._leaving.restore(departure.number, departure.event)
        self._sequence = events.end_offset
        self._builder = BlockBuilder(self._sequence, self._leaving)
        self._builders = {events.active.base_offset: (self._sequence, self._builder)}
        self._watches: dict[int, set[asyncio.Event]] = {}
        self._watch_count = 0

    def snapshot_recorded(self, event_count: int, *, begins_segment: bool) -> None:
        """Take note of a snapshot, which is about no message; a new segment may begin with it."""
        if begins_segment:
            self._builder = BlockBuilder(self._sequence, self._leaving)
            self._builders[self._sequence] = (self._sequence, self._builder)
        self._sequence += event_count
        self._builder.end_frame(self._sequence, limits.SPANS_BLOCK_BYTES)

    def recorded(
        self, events: Sequence[AnyEvent], frame_bytes: int, done: asyncio.Future[Any]
    ) -> None:
        """Take the events of a frame that was queued for the log; ``done`` when it is durable."""
        if self._watches:
            self._tell(events, done)
        add, epoch, sequence = self._builder.add, self._epoch, self._sequence
        for event in events:
            add(event, epoch, sequence)
            sequence += 1
        self._sequence = sequence
        self._builder.end_frame(sequence, frame_bytes)

    def sealed(self, segment: Segment) -> None:
        """Take note that a segment grows no more: its index is written in a thread."""
        sequence, builder = self._builders.pop(segment.base_offset, (-1, None))
        blocks: list[Block] | None = None
        if builder is not None and sequence == segment.base_offset:
            blocks = builder.blocks()
        self._executor.submit(self.index.seal, segment, blocks)

    def live(self) -> Live:
        """Return what is known of the segments that are not sealed, for any thread."""
        end = self._events.end_offset
        return {
            base: LiveBlocks(sequence, end, builder.blocks())
            for base, (sequence, builder) in self._builders.items()
        }

    @contextmanager
    def watching(self, offset: int, news: asyncio.Event) -> Iterator[None]:
        """Set ``news`` whenever something became durable that may be about a message.

        Raises ``TooManyRequests`` where too many wait already.
        """
        if self._watch_count >= limits.TRACE_WATCHES_MAX:
            raise TooManyRequests(
                f"{self._watch_count} requests wait for news of messages here already",
                retry_after_ms=1000,
            )
        watches = self._watches.setdefault(offset, set())
        watches.add(news)
        self._watch_count += 1
        try:
            yield
        finally:
            self._watch_count -= 1
            watches.discard(news)
            if not watches:
                self._watches.pop(offset, None)

    def is_watched(self, event: AnyEvent) -> bool:
        """Whether somebody waits for news of a message that an event may be about."""
        return any(self._may_concern(event, offset) for offset in self._watches)

    def _tell(self, events: Sequence[AnyEvent], done: asyncio.Future[Any]) -> None:
        concerned = {
            news
            for event in events
            for offset, watches in self._watches.items()
            if self._may_concern(event, offset)
            for news in watches
        }
        for news in concerned:
            done.add_done_callback(partial(_tell_news, news))

    def _may_concern(self, event: AnyEvent, offset: int) -> bool:
        if isinstance(event, CopyStored):
            stretches = self._leaving.of(event.entry)
        elif isinstance(event, Matured):
            return event.end_offset > offset
        else:
            stretches = affected_spans(event)
        return stretches is None or holds_offset(stretches, offset)


def _tell_news(news: asyncio.Event, _done: asyncio.Future[Any]) -> None:
    news.set()
