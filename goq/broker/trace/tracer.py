"""The trace of a message: its own life, and that of its copies in dead letters and back.

What blocks runs in the partition's threads. Each message is looked for in what is live and in the
archive. Copies are followed by the offsets that departures were given, and backwards by what the
headers of a copy say of its origin, which counts only where the origin's events lead to the copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial

from goq import limits
from goq.broker.broker import Broker
from goq.broker.events.search import Events, before_first, timeline_of
from goq.broker.outbox.dead_letter_headers import read_dead_letter
from goq.broker.partition.partition import Partition
from goq.broker.trace.copyplace import place_of_copy
from goq.broker.trace.sources import Source, Sources, first_event, frame_of, last_time_us
from goq.broker.trace.trace import Links, Trace, Traced, in_order, linked, put_together
from goq.delivery.events.event import SnapshotStarted
from goq.delivery.trace.steps import PublishRecord
from goq.delivery.trace.timeline import Timeline
from goq.errors import GoqError, InvalidInput, MessageNotFound
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.model import MessageId
from goq.units import format_time_us

LIVE, _ARCHIVED = "live", "archived"
_DELETED, _COMPACTED, _DAMAGED = "deleted", "compacted", "damaged"


class Tracing:
    """Traces messages of all topics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sources = Sources(broker.archive)

    async def follow(self, message_id: MessageId, *, seen: int, wait_ms: int) -> Trace:
        """Return the trace once it has more than ``seen`` steps, or after ``wait_ms``.

        Raises what :meth:`trace` does, and ``TooManyRequests`` where too many wait.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        news = asyncio.Event()
        watched: set[MessageId] = set()
        new = {message_id}
        with ExitStack() as watches:
            while True:
                for each in new if wait_ms else ():  # before it is read, so that nothing is missed
                    spans = self._partition(each).spans
                    watches.enter_context(spans.watching(each.offset, news))
                watched |= new
                news.clear()
                trace = await self.trace(message_id)
                left_s = until - loop.time()
                if len(trace.steps) > seen or left_s <= 0:
                    return trace
                new = {each.id for each in trace.copies} - watched
                if not new:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(left_s):
                            await news.wait()

    async def trace(self, message_id: MessageId) -> Trace:
        """Return the trace of a message.

        Raises ``MessageNotFound``, which says what is known, ``TopicNotFound`` and
        ``PartitionNotFound``.
        """
        asked = await self._one(message_id)
        found = {message_id: asked}
        links: Links = {}
        waiting, is_cut = [asked], False
        while waiting:
            each = waiting.pop(0)
            links[each.id] = await self._copies_of(each)
            for near in (*links[each.id].values(), *_origins_of(each)):
                if near in found:
                    continue
                if len(found) >= limits.TRACE_COPIES_MAX:
                    is_cut = True
                    break
                with suppress(GoqError):  # gone with its topic, or deleted: nothing to add
                    found[near] = await self._one(near)
                    waiting.append(found[near])
        together = linked(message_id, links)
        chosen = [each for each in found.values() if each.id in together]
        return put_together(asked, in_order(chosen, links), links, is_cut=is_cut)

    def _partition(self, message_id: MessageId) -> Partition:
        return self._broker.topic(message_id.topic).partitions[message_id.partition]

    async def _one(self, message_id: MessageId) -> Traced:
        partition = self._partition(message_id)
        await partition.write_deferred()
        if message_id.offset >= partition.end_offset:
            raise MessageNotFound(
                f"{message_id} does not exist yet: the next message there gets offset"
                f" {partition.end_offset}",
                field="id",
            )
        source = self._sources.of(partition)
        age_ms = self._broker.topic(message_id.topic).settings.retention_age_ms
        return await source.run(lambda: self._read(partition, source, message_id, age_ms))

    def _read(
        self,
        partition: Partition,
        source: Source,
        message_id: MessageId,
        age_ms: int | None,
    ) -> Traced:
        offset, logs = message_id.offset, [source.events]
        view, is_there = frame_of(source, offset)
        if view is None:
            timeline = timeline_of(logs, offset, None, is_deleted=not is_there)
            if not is_there:
                _check_is_told(partition, logs, message_id, timeline)
            self._tell_beginning(partition, source, timeline)
            self._add_archived(partition, timeline)
            state = _DAMAGED if is_there else _DELETED
            return Traced(message_id, state, None, None, None, False, None, timeline)
        header, index = view.header, offset - view.header.base_offset
        producer = partition.producer_name(header, source.events.reader)
        if view.removed_rows is not None and view.removed_rows.has(index):
            time_us = None if _may_be_joined(view) else header.append_time_us
            published = None if time_us is None else PublishRecord(offset, time_us)
            timeline = timeline_of(logs, offset, published)
            timeline.add_compacted()
            self._tell_beginning(partition, source, timeline, is_gone=True)
            self._add_archived(partition, timeline)
            return Traced(message_id, _COMPACTED, None, time_us, producer, False, None, timeline)
        (message,) = view.messages(index, index + 1)
        is_delayed = message.deliver_at_ms > header.append_time_us // 1000
        due_ms = message.deliver_at_ms if is_delayed else 0
        published = PublishRecord(offset, header.append_time_us, due_ms)
        timeline, until_us = timeline_of(logs, offset, published), None
        self._tell_beginning(partition, source, timeline)
        is_archived = self._add_archived(partition, timeline)
        if age_ms is not None and not is_archived:
            until_us = last_time_us(source.messages, offset, header.append_time_us) + age_ms * 1000
        return Traced(
            message_id,
            _ARCHIVED if is_archived else LIVE,
            message,
            header.append_time_us,
            producer,
            bool(header.attributes & Attribute.REDRIVEN),
            until_us,
            timeline,
        )

    def _tell_beginning(
        self, partition: Partition, source: Source, timeline: Timeline, *, is_gone: bool = False
    ) -> None:
        """Say what lacks at the beginning of the events: those of live messages are all kept."""
        gap = before_first(source.events)
        is_gone = is_gone or timeline.offset < partition.log_start_offset
        if gap is not None and is_gone:
            timeline.add_gap(gap.from_us, gap.to_us, gap.reason)

    def _add_archived(self, partition: Partition, timeline: Timeline) -> bool:
        """Tell of a message that is in the archive alone; return whether it is."""
        time_us = self._sources.archived_at_us(partition, timeline.offset)
        if time_us is not None:
            timeline.add_archived(time_us)
        return time_us is not None

    async def _copies_of(self, traced: Traced) -> dict[int, MessageId]:
        """Return where the copies of a message are, by the number of the step that says so."""
        found: dict[int, MessageId] = {}
        for number, step in enumerate(traced.timeline.steps):
            copy = step.copy
            if copy is None or copy.offset < 0:
                continue
            if len(found) >= limits.TRACE_COPIES_MAX:
                break  # that is one more than is followed
            with suppress(GoqError):
                target = self._broker.topic(copy.topic).partitions[copy.partition]
                source = self._sources.of(target)
                end = target.end_offset
                place = partial(place_of_copy, [source.messages], end, copy.offset, copy.number)
                offset = await source.run(place)
                if offset is not None:
                    found[number] = MessageId(copy.topic, copy.partition, offset)
        return found


def _check_is_told(
    partition: Partition, logs: Sequence[Events], message_id: MessageId, timeline: Timeline
) -> None:
    """Raise ``MessageNotFound`` for a message that is gone, and its events with it."""
    first = first_event(logs)
    start_offset = partition.start_offset
    is_older = (
        first is not None
        and isinstance(first.event, SnapshotStarted)
        and first.event.start_offset > message_id.offset
    )
    if timeline.steps and not is_older:
        return
    topic, number = partition.identity
    when = f" before {format_time_us(first.time_us)}" if first is not None and is_older else ""
    raise MessageNotFound(
        f"{message_id} is gone: retention deleted it{when}, and what had happened to it;"
        f" {topic}:{number} begins at offset {start_offset}",
        field="id",
    )


def _may_be_joined(view: FrameView) -> bool:
    """Whether compaction may have made one of several frames, and so given it a later time."""
    count = view.header.message_count
    return count > 1 and not view.header.producer_id and not any(view.kept(0, count))


def _origins_of(traced: Traced) -> list[MessageId]:
    """Return where a message may have come from, as its headers say."""
    if traced.message is None or not traced.message.headers:
        return []
    letter = read_dead_letter(traced.message.headers)
    lives = [*letter.earlier, *([letter.life] if letter.life is not None else [])]
    found = []
    for life in lives[-limits.DEAD_LIVES_REMEMBERED :]:
        with suppress(InvalidInput):
            found.append(MessageId.parse(life.id))
    return found
