"""Traces a message: its own history, and the history of its copies in dead-letter topics and back.

Blocking work runs in the threads of the partition. Each message is searched in the live log and in
the archive. Copies are followed forwards by the offsets in ``CopyStored`` events. They are followed
backwards by the headers of the copy, if the outbox wrote them. What is in topics that the asker may
not read is not looked at: the answer must not depend on what the asker may not know. A message in a
partition that another node leads is named where its offset is known, and not followed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from goq import limits
from goq.broker.broker import Broker
from goq.broker.events.search import IndexedEventLog, timeline_of
from goq.broker.outbox.dead_letter_headers import read_dead_letter
from goq.broker.partition.partition import Partition
from goq.broker.partition_context import PartitionId
from goq.broker.trace.sources import (
    TraceSource,
    TraceSources,
    find_copy,
    find_frame,
    first_event,
    last_time_us,
)
from goq.broker.trace.trace import (
    Links,
    MessageHistory,
    Trace,
    build_trace,
    linked_messages,
    order_by_origin,
)
from goq.delivery.events.event import SnapshotStarted
from goq.delivery.trace.steps import PublishRecord
from goq.delivery.trace.timeline import Timeline
from goq.errors import GoqError, InvalidInput, MessageNotFound, NotLeader
from goq.event_loop import wait_for_event
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.model import MessageId
from goq.units import format_time_us

LIVE, _ARCHIVED = "live", "archived"
_DELETED, _COMPACTED, _DAMAGED = "deleted", "compacted", "damaged"
_STEPS_AT_ONCE = 500  # 15 us each; there may be 10,000 groups
MayRead = Callable[[str], bool]
"""Returns whether the asker may read a topic."""


def _may_read_all(_topic: str) -> bool:
    return True


class Tracer:
    """Traces messages of all topics, each with up to ``copies_max`` messages."""

    def __init__(self, broker: Broker, copies_max: int = limits.TRACE_COPIES_MAX) -> None:
        self._broker = broker
        self._copies_max = copies_max
        self._sources = TraceSources(broker.archive, broker.indexes)

    async def follow(
        self, message_id: MessageId, may_read: MayRead = _may_read_all, *, seen: int, wait_ms: int
    ) -> Trace:
        """Return the trace once it has more than ``seen`` steps, or after ``wait_ms``.

        Raises what :meth:`trace` raises, and ``TooManyRequests`` if too many requests wait.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        news = asyncio.Event()
        watched: set[MessageId] = set()
        new = {message_id}
        with ExitStack() as watches:
            while True:
                for each in new if wait_ms else ():  # before the read, so that no event is missed
                    spans = self._partition(each).live_event_index
                    watches.enter_context(spans.watch(each.offset, news))
                watched |= new
                news.clear()
                trace = await self.trace(message_id, may_read)
                left_s = until - loop.time()
                if len(trace.steps) > seen or left_s <= 0:
                    return trace
                new = {each.id for each in trace.copies} - watched
                if not new:
                    await wait_for_event(news, left_s)

    async def trace(self, message_id: MessageId, may_read: MayRead = _may_read_all) -> Trace:
        """Return the trace of a message, with its copies in topics that ``may_read`` names.

        Raises ``MessageNotFound``, whose message tells what is known, ``TopicNotFound`` and
        ``PartitionNotFound``.
        """
        asked = await self._history_of(message_id)
        found = {message_id: asked}
        links: Links = {}
        waiting, is_cut = [asked], False
        elsewhere: dict[PartitionId, None] = {}
        while waiting:
            each = waiting.pop(0)
            links[each.id] = await self._copies_of(each, may_read, elsewhere)
            origins = [origin for origin in _origins_of(each) if may_read(origin.topic)]
            for near in (*links[each.id].values(), *origins):
                if near in found:
                    continue
                if len(found) >= self._copies_max:
                    is_cut = True
                    break
                try:
                    found[near] = await self._history_of(near)
                except NotLeader:
                    elsewhere[PartitionId(near.topic, near.partition)] = None
                except GoqError:  # deleted, alone or with its topic
                    continue
                else:
                    waiting.append(found[near])
        together = linked_messages(message_id, links)
        chosen = [each for each in found.values() if each.id in together]
        ordered = order_by_origin(chosen, links)
        build = partial(
            build_trace, asked, ordered, links, may_read, is_cut=is_cut, elsewhere=list(elsewhere)
        )
        if sum(len(each.timeline.steps) for each in ordered) <= _STEPS_AT_ONCE:
            return build()
        return await asyncio.to_thread(build)  # of what does not change any more

    def _partition(self, message_id: MessageId) -> Partition:
        return self._broker.topic(message_id.topic).partitions[message_id.partition]

    async def _history_of(self, message_id: MessageId) -> MessageHistory:
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
        source: TraceSource,
        message_id: MessageId,
        age_ms: int | None,
    ) -> MessageHistory:
        offset, logs = message_id.offset, [source.events]
        archived_us = self._sources.archived_at_us(partition, offset)
        is_trimmed = offset < partition.log_start_offset
        view, is_there = find_frame(source, offset)
        build = partial(
            timeline_of,
            logs,
            offset,
            is_trimmed=is_trimmed or not is_there,
            archived_us=archived_us,
        )
        if view is None:
            timeline = build(None)
            if not is_there:
                _check_known(partition, logs, message_id, timeline)
            state = _DAMAGED if is_there else _DELETED
            return MessageHistory(message_id, state, None, None, None, False, None, timeline)
        header, index = view.header, offset - view.header.base_offset
        if view.removed_rows is not None and view.removed_rows.has(index):
            time_us = None if _may_be_merged(view) else header.append_time_us
            published = None if time_us is None else PublishRecord(offset, time_us)
            producer = partition.producers.name(header, source.events.reader)
            timeline = build(published)
            timeline.add_compacted()
            return MessageHistory(
                message_id, _COMPACTED, None, time_us, producer, False, None, timeline
            )
        (message,) = view.messages(index, index + 1)
        is_delayed = message.deliver_at_ms > header.append_time_us // 1000
        due_ms = message.deliver_at_ms if is_delayed else 0
        published = PublishRecord(offset, header.append_time_us, due_ms)
        is_copy = bool(header.attributes & Attribute.COPY)
        timeline, until_us = build(published), None
        if age_ms is not None and archived_us is None:
            until_us = last_time_us(source.messages, offset, header.append_time_us) + age_ms * 1000
        return MessageHistory(
            message_id,
            LIVE if archived_us is None else _ARCHIVED,
            message,
            header.append_time_us,
            f"{header.producer_id:016x}"
            if is_copy
            else partition.producers.name(header, source.events.reader),
            is_copy,
            until_us,
            timeline,
        )

    async def _copies_of(
        self, history: MessageHistory, may_read: MayRead, elsewhere: dict[PartitionId, None]
    ) -> dict[int, MessageId]:
        """Return the readable copies of a message, by the number of the step that made each.

        Add the partitions of copies that other nodes lead to ``elsewhere``.
        """
        found: dict[int, MessageId] = {}
        for number, step in enumerate(history.timeline.steps):
            copy = step.copy
            if copy is None or not may_read(copy.topic):
                continue
            if len(found) >= self._copies_max:
                break  # one more than a trace follows
            with suppress(GoqError):
                try:
                    target = self._broker.topic(copy.topic).partitions[copy.partition]
                except NotLeader:
                    elsewhere[PartitionId(copy.topic, copy.partition)] = None
                    if copy.offset >= 0 and not copy.number:
                        found[number] = MessageId(copy.topic, copy.partition, copy.offset)
                    continue
                if copy.offset < 0:
                    continue
                source = self._sources.of(target)
                end = target.end_offset
                place = partial(find_copy, [source.messages], end, copy.offset, copy.number)
                offset = await source.run(place)
                if offset is not None:
                    found[number] = MessageId(copy.topic, copy.partition, offset)
        return found


def _check_known(
    partition: Partition, logs: Sequence[IndexedEventLog], message_id: MessageId, timeline: Timeline
) -> None:
    """Raise ``MessageNotFound`` for a message that is deleted together with its events."""
    first = first_event(logs)
    start_offset = partition.start_offset
    is_older = (
        first is not None
        and isinstance(first.event, SnapshotStarted)
        and first.event.start_offset > message_id.offset
    )
    if timeline.steps and not is_older:
        return
    when = f" before {format_time_us(first.time_us)}" if first is not None and is_older else ""
    raise MessageNotFound(
        f"{message_id} is gone: retention deleted it{when}, with its history;"
        f" {partition.identity} begins at offset {start_offset}",
        field="id",
    )


def _may_be_merged(view: FrameView) -> bool:
    """Return whether compaction may have merged several frames into one with a later time."""
    count = view.header.message_count
    return count > 1 and not view.header.producer_id and not any(view.kept(0, count))


def _origins_of(history: MessageHistory) -> list[MessageId]:
    """Return the origins of a copy, from its headers."""
    if history.message is None or not history.is_copy:
        return []
    letter = read_dead_letter(history.message.headers)
    origins = [*letter.earlier_origins, *([letter.origin] if letter.origin is not None else [])]
    ids = [each.id for each in origins[-limits.DEAD_LETTER_ORIGINS_MAX :]]
    found = []
    for each in (*ids, letter.redriven_from):
        with suppress(InvalidInput):
            found.append(MessageId.parse(each))
    return found
