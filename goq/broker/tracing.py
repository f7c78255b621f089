"""The trace of a message: its own life, and that of its copies in dead letters and back.

What blocks runs in the partition's threads. Each message is looked for in what is live and in the
archive, see :class:`Sources`. Copies are followed by the offsets that departures were given, and
backwards by what the headers of a copy say of its origin, which counts only where the origin's
events lead to the copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from heapq import merge
from typing import NamedTuple
from weakref import WeakKeyDictionary

from goq import limits
from goq.broker.archive import LOGS, Archive
from goq.broker.broker import Broker
from goq.broker.copyplace import place_of_copy
from goq.broker.dead_letters import read_dead_letter
from goq.broker.eventlog import StoredEvent
from goq.broker.eventsearch import Events, timeline_of
from goq.broker.eventspans import events_between
from goq.broker.naming import producer_name
from goq.broker.partition import Partition
from goq.broker.spanindex import SpanIndex
from goq.broker.wholelog import WholeLogs, whole_logs
from goq.delivery.events import SnapshotStarted
from goq.delivery.timeline import Incomplete, Name, Published, Step, Timeline
from goq.errors import GoqError, InvalidFrame, InvalidInput, MessageNotFound, TooLarge
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.model import Message, MessageId
from goq.storage.reader import LogReader
from goq.units import format_time_us

LIVE, ARCHIVED, COMPACTED = "live", "archived", "compacted"
DELETED, DAMAGED = "deleted", "damaged"


class Source(NamedTuple):
    """Where messages of a partition, and what happened to them, may be read."""

    messages: LogReader
    events: Events


class Traced(NamedTuple):
    """One message of a trace. ``message`` is None, and so what it told, where it is not there.

    ``retained_until_us`` is the time before which retention by age does not delete it.
    """

    id: MessageId
    state: str
    message: Message | None
    published_us: int | None
    producer: str | None
    is_redriven: bool
    retained_until_us: int | None
    timeline: Timeline


class TracedStep(NamedTuple):
    """A step of the message ``id``; ``to`` and ``origin`` are the ids of copies."""

    id: MessageId
    step: Step
    to: MessageId | None = None
    origin: MessageId | None = None
    producer: str | None = None


class Trace(NamedTuple):
    """All that is known of a message and of its copies, in the order of time."""

    message: Traced
    copies: Sequence[Traced]
    steps: Sequence[TracedStep]
    incomplete: Sequence[Incomplete]

    @property
    def attempts(self) -> int:
        """Deliveries, but for those that never left the node."""
        return sum(each.timeline.attempts for each in (self.message, *self.copies))

    @property
    def publish_to_ack_us(self) -> int | None:
        """How long it took from the first publish to the first ack, None where one is not known."""
        began_us = _first(self.steps, Name.PUBLISHED)
        ended_us = _first(self.steps, Name.ACKNOWLEDGED)
        return None if began_us is None or ended_us is None else ended_us - began_us


class Sources:
    """Where to look for the messages and events of each partition: what is live, and the archive.

    Readers of the archive are kept as long as their partition is open, with what they know.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._archived: WeakKeyDictionary[Partition, tuple[WholeLogs, SpanIndex]] = (
            WeakKeyDictionary()
        )

    def of(self, partition: Partition) -> Source:
        """Return where to look for a partition's messages; on the event loop."""
        spans, identity = partition.spans, partition.identity
        if not any(self._archive.rows(identity, log) for log in LOGS):
            events = Events(partition.events.reader, spans.index, spans.live())
            return Source(partition.messages.reader, events)
        known = self._archived.get(partition)
        if known is None:
            logs = whole_logs(self._archive, partition)
            known = logs, SpanIndex(self._archive.disk, logs.events)
            self._archived[partition] = known
        logs, index = known
        return Source(logs.messages, Events(logs.events, index, spans.live()))

    def archived_at_us(self, partition: Partition, offset: int) -> int | None:
        """Return when a message went to the archive, None where it is not there alone."""
        if offset >= partition.messages.start_offset:
            return None
        row = self._archive.find(partition.identity, "messages", offset)
        return None if row is None else row.archived_at_us


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
                        await asyncio.wait_for(news.wait(), left_s)

    async def trace(self, message_id: MessageId) -> Trace:
        """Return the trace of a message.

        Raises ``MessageNotFound``, which says what is known, ``TopicNotFound`` and
        ``PartitionNotFound``.
        """
        asked = await self._one(message_id)
        found = {message_id: asked}
        links: dict[MessageId, dict[int, MessageId]] = {}
        waiting = [asked]
        while waiting and len(found) < limits.TRACE_COPIES_MAX:
            each = waiting.pop(0)
            links[each.id] = await self._copies_of(each)
            for near in (*links[each.id].values(), *_origins_of(each)):
                if near not in found:
                    with suppress(GoqError):  # gone with its topic, or deleted: nothing to add
                        found[near] = await self._one(near)
                        waiting.append(found[near])
        linked = _linked(message_id, links)
        chosen = [each for each in found.values() if each.id in linked]
        return _trace(asked, _in_order(chosen, links), links)

    def _partition(self, message_id: MessageId) -> Partition:
        return self._broker.topic(message_id.topic).partition(message_id.partition)

    async def _one(self, message_id: MessageId) -> Traced:
        partition = self._partition(message_id)
        await partition.write_deferred()
        if message_id.offset >= partition.state.end_offset:
            raise MessageNotFound(
                f"{message_id} does not exist yet: the next message there gets offset"
                f" {partition.state.end_offset}",
                field="id",
            )
        source = self._sources.of(partition)
        age_ms = self._broker.topic(message_id.topic).settings.retention_age_ms
        return await partition.in_thread(lambda: self._read(partition, source, message_id, age_ms))

    def _read(
        self,
        partition: Partition,
        source: Source,
        message_id: MessageId,
        age_ms: int | None,
    ) -> Traced:
        offset, logs = message_id.offset, [source.events]
        view, is_there = _frame_of(source, offset)
        if view is None:
            timeline = timeline_of(logs, offset, None)
            if not is_there:
                _check_is_told(partition, logs, message_id, timeline)
            state = DAMAGED if is_there else DELETED
            return Traced(message_id, state, None, None, None, False, None, timeline)
        header, index = view.header, offset - view.header.base_offset
        producer = producer_name(partition, header, source.events.reader)
        if view.gone is not None and view.gone.has(index):
            timeline = timeline_of(logs, offset, Published(offset, header.append_time_us))
            timeline.tell_compacted()
            time_us = header.append_time_us
            return Traced(message_id, COMPACTED, None, time_us, producer, False, None, timeline)
        (message,) = view.messages(index, index + 1)
        is_delayed = message.deliver_at_ms > header.append_time_us // 1000
        due_ms = message.deliver_at_ms if is_delayed else 0
        published = Published(offset, header.append_time_us, due_ms)
        timeline, until_us = timeline_of(logs, offset, published), None
        archived_us = self._sources.archived_at_us(partition, offset)
        if archived_us is not None:
            timeline.tell_archived(archived_us)
        elif age_ms is not None:
            until_us = _last_time_us(source.messages, offset, header.append_time_us) + age_ms * 1000
        return Traced(
            message_id,
            LIVE if archived_us is None else ARCHIVED,
            message,
            header.append_time_us,
            producer,
            bool(header.attributes & Attribute.REDRIVEN),
            until_us,
            timeline,
        )

    async def _copies_of(self, traced: Traced) -> dict[int, MessageId]:
        """Return where the copies of a message are, by the number of the step that says so."""
        found: dict[int, MessageId] = {}
        for number, step in enumerate(traced.timeline.steps):
            copy = step.copy
            if copy is None or copy.offset < 0:
                continue
            with suppress(GoqError):
                target = self._broker.topic(copy.topic).partition(copy.partition)
                readers = [self._sources.of(target).messages]
                end = target.state.end_offset

                def find(copy=copy, readers=readers, end=end) -> int | None:  # type: ignore[no-untyped-def]
                    return place_of_copy(readers, end, copy.offset, copy.number)

                offset = await target.in_thread(find)
                if offset is not None:
                    found[number] = MessageId(copy.topic, copy.partition, offset)
        return found


def _frame_of(source: Source, offset: int) -> tuple[FrameView | None, bool]:
    """Return the frame with a message, and whether there should be one; none where damaged."""
    segments = source.messages.segments
    if not any(each.base_offset <= offset < each.end_offset for each in segments):
        return None, False
    reading = source.messages.read(offset, offset + 1, messages_max=1)
    for view in reading.frames:
        if view.header.base_offset <= offset < view.header.end_offset:
            try:
                _ = view.payload
            except (InvalidFrame, TooLarge):
                return None, True
            return view, True
    return None, True


def _last_time_us(messages: LogReader, offset: int, append_us: int) -> int:
    """Return the time by which retention judges a message: the latest of its segment."""
    return max(append_us, messages.sealed_time_us(offset) or 0)


def _check_is_told(
    partition: Partition, logs: Sequence[Events], message_id: MessageId, timeline: Timeline
) -> None:
    """Raise ``MessageNotFound`` for a message that is gone, and its events with it."""
    first = _first_event(logs)
    start_offset = partition.state.start_offset
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


def _first_event(logs: Sequence[Events]) -> StoredEvent | None:
    for log in logs:
        segments = log.reader.segments
        if segments and segments[-1].end_offset > segments[0].base_offset:
            start = segments[0].base_offset
            found = next(events_between(log.reader, start, start + 1), None)
            return found if isinstance(found, StoredEvent) else None
    return None


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


Links = dict[MessageId, dict[int, MessageId]]


def _linked(asked: MessageId, links: Links) -> set[MessageId]:
    """Return the message and all that it is a copy of, or that are copies of it."""
    near: dict[MessageId, set[MessageId]] = {}
    for origin, copies in links.items():
        for copy in copies.values():
            near.setdefault(origin, set()).add(copy)
            near.setdefault(copy, set()).add(origin)
    reached, waiting = {asked}, [asked]
    while waiting:
        for each in near.get(waiting.pop(), set()) - reached:
            reached.add(each)
            waiting.append(each)
    return reached


def _in_order(chosen: Sequence[Traced], links: Links) -> list[Traced]:
    """Return messages with each behind what it is a copy of."""
    origins = _origins(links)
    depths: dict[MessageId, int] = {}
    for each in chosen:
        depth, at = 0, each.id
        while at in origins and depth <= len(chosen):
            at, depth = origins[at], depth + 1
        depths[each.id] = depth
    return sorted(chosen, key=lambda each: (depths[each.id], each.id))


def _origins(links: Links) -> dict[MessageId, MessageId]:
    return {copy: origin for origin, copies in links.items() for copy in copies.values()}


def _trace(asked: Traced, messages: Sequence[Traced], links: Links) -> Trace:
    origins = _origins(links)
    told = [
        [
            _told(each, number, step, links, origins)
            for number, step in enumerate(each.timeline.steps)
        ]
        for each in messages
    ]
    incomplete = dict.fromkeys(gap for each in messages for gap in each.timeline.incomplete)
    return Trace(
        asked,
        [each for each in messages if each is not asked],
        list(merge(*told, key=lambda each: each.step.time_us)),
        list(incomplete),
    )


def _told(
    traced: Traced, number: int, step: Step, links: Links, origins: dict[MessageId, MessageId]
) -> TracedStep:
    to = links.get(traced.id, {}).get(number)
    if step.name is not Name.PUBLISHED:
        return TracedStep(traced.id, step, to)
    origin = origins.get(traced.id)
    if origin is None and not traced.is_redriven and traced.message is not None:
        life = read_dead_letter(traced.message.headers).life
        with suppress(InvalidInput):
            origin = MessageId.parse(life.id) if life is not None else None
    return TracedStep(traced.id, step, to, origin, None if origin else traced.producer)


def _first(steps: Sequence[TracedStep], name: Name) -> int | None:
    return next((each.step.time_us for each in steps if each.step.name is name), None)
