"""The log of a topic: one batch of a partition, or all partitions merged by append time."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgspec

from goq import limits
from goq.client._async.channel import Channel
from goq.client._async.http import Http
from goq.client._async.runtime import Worker
from goq.client._async.topic_wait import pause_for_topic
from goq.client.cluster_map import TopicPartition
from goq.client.delivery_options import DEFAULT_LANES
from goq.client.errors import unreadable
from goq.client.messages import DamagedRange, LogMessage, ReadBatch, messages_of
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.client.protocol.answers import TopicAnswer, read_answer
from goq.errors import CorruptData, InvalidFrame, InvalidInput, PartitionNotFound, TopicNotFound
from goq.frame.view import FrameView
from goq.http.client.process_fork import Owner
from goq.units import format_duration_ms

FOLLOW_WAIT_MS: Final = 20_000
READ_MESSAGES_MIN: Final = 100

OnDamage = Callable[[DamagedRange], None]


@dataclass(frozen=True, slots=True)
class LogRange:
    """The part of each partition to read: from an offset on, messages of a range of times.

    In the ``background`` the node reads only as fast as its live traffic leaves room for. What
    retention has deleted is read from the archive with ``include_deleted``, or from what it held at
    the time ``as_of``.
    """

    from_offset: int | None = None
    from_time: str | None = None
    to_time: str | None = None
    background: bool = False
    to_offset: int | None = None
    include_deleted: bool = False
    as_of: str | None = None


async def read(
    http: Http,
    topic: str,
    partition: int,
    span: LogRange,
    *,
    limit: int | None,
    wait_ms: int,
    bytes_max: int | None = None,
) -> ReadBatch:
    """Return the next piece of one partition's log; one of the two bounds is given."""
    target = routes.query(
        routes.messages(topic),
        partition=partition,
        offset=span.from_offset,
        from_time=span.from_time,
        to_time=span.to_time,
        limit=limit,
        bytes=bytes_max,
        background="true" if span.background else None,
        include_deleted="true" if span.include_deleted else None,
        as_of=span.as_of,
        wait=format_duration_ms(wait_ms) if wait_ms else None,
    )
    answer = await http.request(
        "GET",
        target,
        accept=routes.FRAMES,
        repeatable=True,
        wait_ms=wait_ms,
        partition=TopicPartition(topic, partition),
    )
    try:
        return wire.decode_read(answer.body, topic, partition)
    except (msgspec.DecodeError, InvalidFrame) as error:
        raise unreadable(target, error) from None


async def read_events(http: Http, topic: str, partition: int, span: LogRange) -> ReadBatch:
    """Return the next piece of one partition's events, as frames; offsets are their sequences."""
    target = routes.query(
        routes.events(topic),
        partition=partition,
        offset=span.from_offset,
        background="true" if span.background else None,
        include_deleted="true" if span.include_deleted else None,
    )
    answer = await http.request(
        "GET",
        target,
        accept=routes.FRAMES,
        repeatable=True,
        partition=TopicPartition(topic, partition),
    )
    try:
        return wire.decode_read(answer.body, topic, partition)
    except (msgspec.DecodeError, InvalidFrame) as error:
        raise unreadable(target, error) from None


class _Found(NamedTuple):
    """A frame and its position in the merge."""

    timestamp: int
    partition: int
    offset: int
    frame: FrameView


class _PartitionReader:
    """One partition, read batch by batch."""

    def __init__(self, log: TopicReader, partition: int, span: LogRange) -> None:
        self.partition = partition
        self.position = span.from_offset
        self._log = log
        self._span = span
        self._end: int | None = None
        self._waiting: deque[FrameView | DamagedRange] = deque()

    async def next_frame(self) -> _Found | None:
        """Return the next frame before the end at the first read, or None; report damage."""
        while True:
            while self._waiting:
                item = self._waiting.popleft()
                if isinstance(item, DamagedRange):
                    self._log.report(item)
                else:
                    return _found(self.partition, item)
            if self._end is not None and (self.position or 0) >= self._end:
                return None
            before = self.position
            piece = await self._read(replace(self._span, from_offset=before), self._log.http, 0)
            if self._end is None:
                self._end = piece.end
                if self._span.to_offset is not None:
                    self._end = min(piece.end, self._span.to_offset)
            items = _in_order(piece)
            if not self._log.follow:
                items = [item for item in items if _start_of(item) < self._end]
            self._waiting.extend(items)
            if not self._waiting and self.position == before:
                return None

    async def read_on(self, http: Http, wait_ms: int) -> ReadBatch:
        """Return new messages, of any time, perhaps none; move behind them."""
        return await self._read(LogRange(self.position), http, wait_ms)

    async def _read(self, span: LogRange, http: Http, wait_ms: int) -> ReadBatch:
        limit = self._log.limit
        piece = await read(
            http, self._log.topic, self.partition, span, limit=limit, wait_ms=wait_ms
        )
        self.position = piece.next
        self._log.lanes = piece.lanes
        return piece


class TopicReader:
    """All messages of a topic or of one partition, in the order of their append times.

    Messages are merged by append time, then partition, then offset; within a partition the order
    is always that of the offsets. A range of times leaves out exactly the messages outside of it,
    also where a clock was set back; messages that come later, when following, are not compared.
    Up to the end that each partition had at first, the order is complete. After it, when following,
    messages come as they arrive: those that arrive together are merged, but no message waits for an
    older one of another partition.

    Memory holds one batch of each partition at a time. The partitions share ``messages_max``
    messages, with at least ``messages_min`` a batch. ``starts`` are offsets at which to begin in
    some partitions instead. A negative offset of the range counts from the end of each partition.
    ``last`` leaves out all but so many messages before the end; these are held in memory.
    """

    def __init__(
        self,
        http: Http,
        topic: str,
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
        self.topic = topic
        self.limit = messages_max
        self.lanes = DEFAULT_LANES
        self._partition = partition
        self._span = span
        self.follow = follow
        self._on_damage = on_damage
        self._before_wait = before_wait
        self._starts = starts or {}
        self._messages_min = messages_min
        self._messages_max = messages_max
        self._waits_for_topic = wait_for_topic and follow
        self._newest = None if last is None else deque[LogMessage](maxlen=last)

    async def messages(self) -> AsyncGenerator[LogMessage, None]:
        """Yield messages, to the end or without end."""
        readers = await self._open()
        self.limit = max(self._messages_min, self._messages_max // len(readers))
        heads: list[tuple[_Found, _PartitionReader]] = []
        for reader in readers:
            await _push(heads, reader)
        while heads:
            found, reader = heapq.heappop(heads)
            for message in messages_of(self.topic, found.partition, found.frame, self.lanes):
                if self._newest is None:
                    yield message
                else:
                    self._newest.append(message)
            await _push(heads, reader)
        for message in self._newest or ():
            yield message
        if self.follow:
            arriving = self._arriving(readers)
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
                f" {self.topic}, partition {damaged.partition}, are damaged on the node;"
                " run goq doctor there, or read on without them by passing on_damage"
            )
        self._on_damage(damaged)

    async def _ask_topic(self) -> object:
        began_s = time.monotonic()
        while True:
            try:
                return await self.http.call("GET", routes.topic(self.topic))
            except TopicNotFound as error:
                if not self._waits_for_topic:
                    raise
                await pause_for_topic(self.http, error, began_s)

    async def _open(self) -> list[_PartitionReader]:
        found = read_answer(TopicAnswer, await self._ask_topic())
        starts: dict[int, int | None] = {p.partition: p.start_offset for p in found.partitions}
        if self._partition is not None:
            if self._partition not in starts:
                raise PartitionNotFound(
                    f"{self.topic} has {len(starts)} partitions, and none is {self._partition}",
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
            _PartitionReader(self, partition, replace(span, from_offset=start))
            for partition, start in starts.items()
        ]

    async def _arriving(
        self, readers: Sequence[_PartitionReader]
    ) -> AsyncGenerator[LogMessage, None]:
        owner = Owner("loop")
        http = self.http.fork(len(readers))
        channel = Channel[Sequence[_Found | DamagedRange]](len(readers))
        workers = [Worker(_watch, reader, http, channel) for reader in readers]
        try:
            while True:
                frames: list[_Found] = []
                if self._before_wait is not None:
                    await self._before_wait()
                for items in await channel.take():
                    for item in items:
                        if isinstance(item, DamagedRange):
                            self.report(item)
                        else:
                            frames.append(item)
                for found in sorted(frames, key=_place):
                    for message in messages_of(
                        self.topic, found.partition, found.frame, self.lanes
                    ):
                        yield message
                        owner.check()
        finally:
            if owner.is_here:
                channel.close()
                await http.aclose()
                for worker in workers:
                    await worker.stop()


async def _watch(
    reader: _PartitionReader, http: Http, channel: Channel[Sequence[_Found | DamagedRange]]
) -> None:
    """Pass on new messages of one partition, until the channel is closed."""
    try:
        while not channel.closed:
            piece = await reader.read_on(http, FOLLOW_WAIT_MS)
            items = [
                item if isinstance(item, DamagedRange) else _found(reader.partition, item)
                for item in _in_order(piece)
            ]
            if items and not await channel.put(items):
                return
    except Exception as error:
        channel.fail(error)


async def _push(heads: list[tuple[_Found, _PartitionReader]], reader: _PartitionReader) -> None:
    found = await reader.next_frame()
    if found is not None:
        heapq.heappush(heads, (found, reader))


def _found(partition: int, frame: FrameView) -> _Found:
    return _Found(frame.header.append_time_us, partition, frame.header.base_offset, frame)


def _place(found: _Found) -> tuple[int, int, int]:
    return found[:3]


def _in_order(piece: ReadBatch) -> list[FrameView | DamagedRange]:
    """Return frames and damaged ranges as they follow each other."""
    return sorted([*piece.frames, *piece.damaged], key=_start_of)


def _start_of(item: FrameView | DamagedRange) -> int:
    return item.start_offset if isinstance(item, DamagedRange) else item.header.base_offset
