"""The log of topics: all partitions, merged by append time."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import replace
from typing import Final

from goq import limits
from goq.client._async.channel import Channel
from goq.client._async.http import Http
from goq.client._async.log.partition_reader import FoundFrame, LogRange, PartitionReader, in_order
from goq.client._async.log.topic_discovery import TopicDiscovery
from goq.client._async.log.topic_time import answer_time_us
from goq.client._async.log.topic_wait import pause_for_topic
from goq.client._async.runtime import Worker
from goq.client.messages import DamagedRange, LogMessage
from goq.client.protocol import routes
from goq.client.protocol.answers import TopicAnswer, read_answer
from goq.client.protocol.topic_selection import TopicSelection
from goq.errors import (
    Conflict,
    CorruptData,
    GoqError,
    InvalidInput,
    PartitionNotFound,
    TopicNotFound,
)
from goq.frame.view import FrameView
from goq.http.client.process_fork import Owner

FOLLOW_WAIT_MS: Final = 20_000
READ_MESSAGES_MIN: Final = 100

OnDamage = Callable[[DamagedRange], None]


class TopicReader:
    """All messages of topics, or of one partition of each, in the order of their append times.

    Messages are merged by append time, then topic, partition and offset; within a partition the
    order is always that of the offsets. A range of times leaves out exactly the messages outside of
    it, also where a clock was set back; messages that come later, when following, are not compared.
    Up to the end that each partition had at first, the order is complete. After it, when following,
    messages come as they arrive: those that arrive together are merged, but no message waits for an
    older one of another partition. Topics that are created meanwhile are followed from their
    beginning, if they match a pattern or are named.

    Memory holds one batch of each partition at a time. The partitions share ``messages_max``
    messages, with at least ``messages_min`` a batch. ``starts`` are offsets at which to begin in
    some partitions instead. A negative offset of the range counts from the end of each partition.
    ``last`` leaves out all but so many messages before the end; these are held in memory.

    Offsets of a topic that is deleted and created again mean other messages. A read to the end then
    raises ``Conflict``, at the latest behind its last message. ``topic_ids`` are of the topics that
    are meant; by default those that there are at first.
    """

    def __init__(
        self,
        http: Http,
        topics: str | Sequence[str],
        partition: int | None,
        span: LogRange,
        *,
        follow: bool,
        on_damage: OnDamage | None,
        before_wait: Callable[[], Awaitable[None]] | None = None,
        starts: Mapping[int, int] | None = None,
        messages_min: int = READ_MESSAGES_MIN,
        messages_max: int = limits.READ_MESSAGES_MAX,
        wait_for_topic: bool = False,
        last: int | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        if last is not None:
            if last < 1 or replace(span, background=False) != LogRange():
                raise InvalidInput(
                    "last is at least 1, and goes without other bounds", field="last"
                )
            span = replace(span, from_offset=-last)
        if follow and span.to_time is not None:
            raise InvalidInput("following has no end: leave out to_time", field="to_time")
        self.http = http
        self.topics = TopicSelection(topics)
        self.limit = messages_max
        self._partition = partition
        self._span = span
        self.follow = follow
        self._on_damage = on_damage
        self._before_wait = before_wait
        self._starts = starts or {}
        self._messages_min = messages_min
        self._messages_max = messages_max
        self._began_s = 0.0
        self._waits_for_topic = wait_for_topic and follow
        self._topic_ids = dict(topic_ids or {})
        self._newest = None if last is None else deque[LogMessage](maxlen=last)

    async def messages(self) -> AsyncGenerator[LogMessage, None]:
        """Yield messages, to the end or without end."""
        self._began_s = time.monotonic()
        discovery = TopicDiscovery(self.http, self.topics)
        readers = await self._open_all(discovery)
        self.limit = max(self._messages_min, self._messages_max // max(1, len(readers)))
        heads: list[tuple[FoundFrame, PartitionReader]] = []
        for reader in readers:
            await _push(heads, reader)
        while heads:
            found, reader = heapq.heappop(heads)
            for message in reader.messages(found.frame):
                if self._newest is None:
                    yield message
                else:
                    self._newest.append(message)
            await _push(heads, reader)
        if not self.follow:
            await self._check_topics({reader.topic for reader in readers})
        for message in self._newest or ():
            yield message
        if self.follow:
            arriving = self._arriving(readers, discovery)
            try:
                async for message in arriving:
                    yield message
            finally:
                await arriving.aclose()

    def report(self, damaged: DamagedRange) -> None:
        """Pass damaged offsets to ``on_damage``, or raise ``CorruptData`` without it."""
        if self._on_damage is None:
            raise CorruptData(
                f"messages {damaged.start_offset} to {damaged.end_offset - 1} of"
                f" {damaged.topic}, partition {damaged.partition}, are damaged on the node;"
                " run goq doctor there, or read on without them by passing on_damage"
            )
        self._on_damage(damaged)

    async def _open_all(self, discovery: TopicDiscovery) -> list[PartitionReader]:
        """Open the topics that are there, and wait for a single one."""
        if self.topics.is_one_name:
            (name,) = self.topics.names
            return await self._open(name)
        found = await discovery.new_topics()
        error = discovery.missing()
        if error is not None and not self._waits_for_topic:
            raise error
        return [reader for name in found for reader in await self._open(name)]

    async def _ask_topic(self, topic: str) -> object:
        began_s = time.monotonic()
        while True:
            try:
                return await self.http.call("GET", routes.topic(topic))
            except TopicNotFound as error:
                if not self._waits_for_topic:
                    raise
                await pause_for_topic(self.http, error, began_s)

    async def _open(self, topic: str) -> list[PartitionReader]:
        found = read_answer(TopicAnswer, await self._ask_topic(topic))
        self._check_topic(topic, found)
        passed_us = int((time.monotonic() - self._began_s) * 1e6)
        self._span = self._span.at(answer_time_us(found) - passed_us)
        starts: dict[int, int | None] = {p.partition: p.start_offset for p in found.partitions}
        if self._partition is not None:
            if self._partition not in starts:
                raise PartitionNotFound(
                    f"{topic} has {len(starts)} partitions, and none is {self._partition}",
                    field="partition",
                )
            starts = {self._partition: starts[self._partition]}
        span = self._span
        is_of_past = span.include_deleted or span.as_of is not None
        if span.from_offset is not None and span.from_offset < 0:
            ends = {p.partition: p.high_watermark for p in found.partitions}
            starts = {p: max(start or 0, ends[p] + span.from_offset) for p, start in starts.items()}
        elif span.from_offset is not None or span.from_time is not None or is_of_past:
            starts = dict.fromkeys(starts, span.from_offset)
        starts.update({p: offset for p, offset in self._starts.items() if p in starts})
        return [
            PartitionReader(self, topic, partition, replace(span, from_offset=start))
            for partition, start in starts.items()
        ]

    def _check_topic(self, topic: str, found: TopicAnswer) -> None:
        """Raise ``Conflict`` if this is not the topic that was meant, unless it is followed."""
        meant = self._topic_ids.setdefault(topic, found.id)
        if meant and found.id and found.id != meant and not self.follow:
            raise Conflict(
                f"{topic} was deleted and created again meanwhile (id {meant}, now {found.id}):"
                " what was not read of it is gone; begin again to read what there is now",
                field="topic",
            )

    async def _check_topics(self, topics: Iterable[str]) -> None:
        """Check that what was read is of the topics that were meant.

        A topic that is only deleted has given all that was read, or the read would have failed.
        """
        for topic in topics:
            with suppress(TopicNotFound):
                answer = await self.http.call("GET", routes.topic(topic))
                self._check_topic(topic, read_answer(TopicAnswer, answer))

    async def open_new(self, topic: str) -> list[PartitionReader]:
        """Return readers of a topic that was just created, from its beginning."""
        readers = await self._open(topic)
        for reader in readers:
            reader.position = None
        return readers

    async def _arriving(
        self, readers: Sequence[PartitionReader], discovery: TopicDiscovery
    ) -> AsyncGenerator[LogMessage, None]:
        owner = Owner("loop")
        feed = _Feed(self, discovery, max(1, len(readers)))
        feed.watch_all(readers)
        if not self.topics.is_one_name:
            feed.look_for_topics()
        try:
            while True:
                frames: list[tuple[FoundFrame, PartitionReader]] = []
                if self._before_wait is not None:
                    await self._before_wait()
                try:
                    arrived = await feed.channel.take()
                except GoqError:
                    if self.http.closed:
                        return  # as a consume loop ends
                    raise
                for reader, items in arrived:
                    for item in items:
                        if isinstance(item, DamagedRange):
                            self.report(item)
                        else:
                            frames.append((reader.found(item), reader))
                for found, reader in sorted(frames, key=_place):
                    for message in reader.messages(found.frame):
                        yield message
                        owner.check()
        finally:
            if owner.is_here:
                await feed.aclose()


class _Feed:
    """Workers that wait for new messages, one for each partition, and one for new topics."""

    def __init__(self, log: TopicReader, discovery: TopicDiscovery, room: int) -> None:
        self.channel = Channel[tuple[PartitionReader, Sequence[FrameView | DamagedRange]]](room)
        self._log = log
        self._discovery = discovery
        self._connections: list[Http] = []
        self._workers: list[Worker] = []

    def watch_all(self, readers: Sequence[PartitionReader]) -> None:
        """Pass on new messages of partitions, on connections of their own."""
        if not readers:
            return
        http = self._log.http.fork(len(readers))
        self._connections.append(http)
        self._workers += [Worker(self._watch, reader, http) for reader in readers]

    def look_for_topics(self) -> None:
        """Follow the topics that are created from now on."""
        self._workers.append(Worker(self._look))

    async def aclose(self) -> None:
        """Stop all workers."""
        self.channel.close()
        for http in list(self._connections):
            await http.aclose()
        for worker in list(self._workers):
            await worker.stop()

    async def _watch(self, reader: PartitionReader, http: Http) -> None:
        """Pass on new messages of one partition, until the channel is closed."""
        try:
            while not self.channel.closed:
                piece = await reader.read_on(http, FOLLOW_WAIT_MS)
                items = in_order(piece)
                if items and not await self.channel.put((reader, items)):
                    return
        except TopicNotFound as error:
            if reader.topic in self._log.topics.names:
                self.channel.fail(error)
            else:
                self._discovery.forget(reader.topic)  # it was deleted, and may come back
        except Exception as error:
            self.channel.fail(error)

    async def _look(self) -> None:
        began_s = time.monotonic()
        try:
            while not self.channel.closed:
                for topic in await self._discovery.new_topics():
                    self.watch_all(await self._log.open_new(topic))
                error = self._discovery.missing()
                if error is not None:
                    await pause_for_topic(self._log.http, error, began_s)
                if await self.channel.is_closed_within(self._discovery.pause_s):
                    return
        except Exception as error:
            self.channel.fail(error)


async def _push(heads: list[tuple[FoundFrame, PartitionReader]], reader: PartitionReader) -> None:
    found = await reader.next_frame()
    if found is not None:
        heapq.heappush(heads, (found, reader))


def _place(item: tuple[FoundFrame, PartitionReader]) -> tuple[int, str, int, int]:
    return item[0][:4]
