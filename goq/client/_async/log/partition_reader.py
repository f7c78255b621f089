"""The log of one partition: one batch of it, or frame by frame."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from goq import limits
from goq.client._async.http import Http
from goq.client.cluster_map import TopicPartition
from goq.client.delivery_options import DEFAULT_LANES
from goq.client.errors import UNREADABLE, unreadable
from goq.client.messages import DamagedRange, LogMessage, ReadBatch, messages_of
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.errors import InvalidFrame
from goq.frame.view import FrameView
from goq.units import format_duration_ms, format_time_us, is_by_clock, parse_time_us

_log = logging.getLogger("goq.client")
_TIME_US_MIN, _TIME_US_MAX = -30_610_224_000_000_000, limits.TIME_MS_MAX * 1000
"""The years 1000 to 9999, which the text of a time can name. No message is from outside of them."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """The part of each partition to read: from an offset on, messages of a range of times.

    In the ``background`` the node reads only as fast as its live traffic leaves room for. What
    retention has deleted is read from the archive with ``include_deleted``, or from what it held at
    the time ``as_of``. Times are absolute before a partition is read: see :meth:`at`.
    """

    from_offset: int | None = None
    from_time: str | None = None
    to_time: str | None = None
    background: bool = False
    to_offset: int | None = None
    include_deleted: bool = False
    as_of: str | None = None

    @property
    def is_by_clock(self) -> bool:
        """Whether a time is still to be counted from now, as ``-1h``."""
        return is_by_clock(self.from_time) or is_by_clock(self.to_time)

    def at(self, now_us: int) -> LogRange:
        """Return the range with absolute times, by the node's clock."""

        def absolute(time: str | None) -> str | None:
            if not is_by_clock(time):
                return time
            assert time is not None
            return format_bound(parse_time_us(time, now_us=now_us))

        return replace(self, from_time=absolute(self.from_time), to_time=absolute(self.to_time))


def format_bound(time_us: int) -> str:
    """Return the text of a time that bounds messages."""
    return format_time_us(min(max(time_us, _TIME_US_MIN), _TIME_US_MAX))


async def read(
    http: Http,
    topic: str,
    partition: int,
    span: LogRange,
    *,
    limit: int | None,
    wait_ms: int,
    bytes_max: int | None = None,
    without: Sequence[str] = (),
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
        without=",".join(without) or None,
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
    except (*UNREADABLE, InvalidFrame) as error:
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
    except (*UNREADABLE, InvalidFrame) as error:
        raise unreadable(target, error) from None


class FoundFrame(NamedTuple):
    """A frame and its position in the merge."""

    timestamp: int
    topic: str
    partition: int
    offset: int
    frame: FrameView


class PartitionsOwner(Protocol):
    """The owner of partition readers: has their connection, their bound, and hears of damage."""

    http: Http
    follow: bool
    limit: int

    def report(self, damaged: DamagedRange) -> None:
        """Tell that messages cannot be read."""


class _LastMessage(NamedTuple):
    """The last message that was read, and the frame that it came in."""

    offset: int
    leader_epoch: int
    append_time_us: int

    @classmethod
    def of(cls, frame: FrameView) -> _LastMessage:
        """Return the last message of a frame."""
        header = frame.header
        return cls(header.end_offset - 1, header.leader_epoch, header.append_time_us)


class PartitionReader:
    """One partition, read batch by batch."""

    def __init__(self, log: PartitionsOwner, topic: str, partition: int, span: LogRange) -> None:
        self.topic = topic
        self.partition = partition
        self.lanes = DEFAULT_LANES
        self.position = span.from_offset
        self._log = log
        self._span = span
        self._end: int | None = None
        self._last: _LastMessage | None = None
        self._waiting: deque[FrameView | DamagedRange] = deque()

    async def next_frame(self) -> FoundFrame | None:
        """Return the next frame before the end at the first read, or None; report damage."""
        while True:
            while self._waiting:
                item = self._waiting.popleft()
                if isinstance(item, DamagedRange):
                    self._log.report(item)
                else:
                    return self.found(item)
            if self._end is not None and (self.position or 0) >= self._end:
                return None
            before = self.position
            piece = await self._read(replace(self._span, from_offset=before), self._log.http, 0)
            if self._end is None:
                self._end = piece.end
                if self._span.to_offset is not None:
                    self._end = min(piece.end, self._span.to_offset)
            items = in_order(piece)
            if not self._log.follow:
                items = [item for item in items if _start_of(item) < self._end]
            self._waiting.extend(items)
            if not self._waiting and self.position == before:
                return None

    def found(self, frame: FrameView) -> FoundFrame:
        """Return a frame of this partition with its position."""
        header = frame.header
        return FoundFrame(
            header.append_time_us, self.topic, self.partition, header.base_offset, frame
        )

    def messages(self, frame: FrameView) -> Iterable[LogMessage]:
        """Return the messages of a frame of this partition."""
        return messages_of(self.topic, self.partition, frame, self.lanes)

    async def read_on(self, http: Http, wait_ms: int) -> ReadBatch:
        """Return new messages, of any time, perhaps none; move behind them.

        An unclean election may cut the log before this position, and its leader gives new messages
        the offsets that others had. They are those that came later than the last one read.
        """
        before = self.position
        last = self._last = self._last or await self._message_before(before, http)
        piece = await self._read(LogRange(before), http, wait_ms)
        if last is None or not await self._was_cut(last, piece, http):
            return piece
        newer = LogRange(from_time=format_time_us(last.append_time_us + 1))
        piece = await self._read(newer, http, wait_ms)
        if piece.frames:
            _log.warning(
                "partition %d of %s was cut before offset %d, which was read: its leader was"
                " elected uncleanly; what is new is read from offset %d on",
                self.partition,
                self.topic,
                last.offset,
                piece.frames[0].header.base_offset,
            )
        else:  # a former leader lacks messages too: nothing is read twice
            self.position, self._last = before, last
        return piece

    async def _message_before(self, offset: int | None, http: Http) -> _LastMessage | None:
        found = await self._frame_at(offset - 1, http) if offset else None
        return None if found is None else _LastMessage.of(found)

    async def _was_cut(self, last: _LastMessage, piece: ReadBatch, http: Http) -> bool:
        """Whether the last message that was read is gone, and not by retention or compaction."""
        if piece.frames and piece.frames[0].header.leader_epoch == last.leader_epoch:
            return False
        if not piece.frames:
            return piece.end <= last.offset
        found = await self._frame_at(last.offset, http)
        return found is not None and found.header.leader_epoch != last.leader_epoch

    async def _frame_at(self, offset: int, http: Http) -> FrameView | None:
        """Return the frame that has an offset, from that on; None if there is none."""
        span = LogRange(offset)
        piece = await read(http, self.topic, self.partition, span, limit=1, wait_ms=0)
        frames = [frame for frame in piece.frames if frame.header.base_offset <= offset]
        return frames[0] if frames else None

    async def _read(self, span: LogRange, http: Http, wait_ms: int) -> ReadBatch:
        limit = self._log.limit
        piece = await read(http, self.topic, self.partition, span, limit=limit, wait_ms=wait_ms)
        self.position = piece.next
        self.lanes = piece.lanes
        if piece.frames:
            self._last = _LastMessage.of(piece.frames[-1])
        return piece


def in_order(piece: ReadBatch) -> list[FrameView | DamagedRange]:
    """Return frames and damaged ranges as they follow each other."""
    return sorted([*piece.frames, *piece.damaged], key=_start_of)


def _start_of(item: FrameView | DamagedRange) -> int:
    return item.start_offset if isinstance(item, DamagedRange) else item.header.base_offset
