"""What the client hands out: messages, and what became of those that were sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import compress, repeat
from typing import NamedTuple

import msgspec

from goq.client.delivery_options import DEFAULT_LANES, delivery_fields
from goq.client.tracing.trace_context import traceparent_of
from goq.frame.view import FrameView
from goq.model import Header, MessageId


class LogMessage(msgspec.Struct, frozen=True):
    """A message as the log holds it. ``timestamp`` is its append time.

    Times are microseconds since 1970, None where a message has none.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    value: bytes | None
    key: bytes | None
    headers: Sequence[Header]
    priority: str = "normal"
    tenant: str | None = None
    deliver_at: int | None = None
    expires_at: int | None = None

    @property
    def id(self) -> MessageId:
        """Where the message is: ``topic:partition:offset``."""
        return MessageId(self.topic, self.partition, self.offset)

    @property
    def traceparent(self) -> str | None:
        """What the message says of the span that published it, unchecked."""
        return traceparent_of(self.headers)


class Published(NamedTuple):
    """One message that the node has stored.

    ``timestamp`` is the append time in microseconds. ``duplicate`` says that it had been stored
    already, by an earlier attempt or with the same dedup id: it is there once, under ``id``.
    """

    id: MessageId
    timestamp: int
    duplicate: bool


class PublishedRun(NamedTuple):
    """Messages stored side by side: the n-th of ``positions`` got the n-th offset."""

    partition: int
    offset: int
    timestamp: int
    duplicate: bool
    positions: Sequence[int]


class PublishedBatch:
    """What became of many messages, in the order in which they were given.

    Held as runs of offsets; a :class:`Published` for each message is made when it is asked for.
    """

    def __init__(self, topic: str, runs: Sequence[PublishedRun]) -> None:
        self.topic = topic
        self.runs = runs

    def __len__(self) -> int:
        return sum(len(run.positions) for run in self.runs)

    def __iter__(self) -> Iterator[Published]:
        return iter(self._in_order)

    def __getitem__(self, index: int) -> Published:
        return self._in_order[index]

    def __repr__(self) -> str:
        return f"<{len(self)} messages published to {self.topic}>"

    @cached_property
    def _in_order(self) -> list[Published]:
        found: dict[int, Published] = {}
        for run in self.runs:
            for offset, position in enumerate(run.positions, start=run.offset):
                found[position] = Published(
                    MessageId(self.topic, run.partition, offset), run.timestamp, run.duplicate
                )
        return [found[position] for position in sorted(found)]


def joined(topic: str, batches: Sequence[PublishedBatch]) -> PublishedBatch:
    """Return batches that were sent one after the other as one."""
    runs: list[PublishedRun] = []
    start = 0
    for batch in batches:
        runs.extend(run._replace(positions=_shift(run.positions, start)) for run in batch.runs)
        start += len(batch)
    return PublishedBatch(topic, runs)


def _shift(positions: Sequence[int], start: int) -> Sequence[int]:
    if isinstance(positions, range):
        return range(positions.start + start, positions.stop + start)
    return [position + start for position in positions]


class DamagedRange(NamedTuple):
    """Offsets whose stored bytes failed their check: they are not in what was read."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


class ReadBatch:
    """A piece of one partition's log.

    ``next`` is the offset to read on from, ``start`` and ``end`` bound what the partition holds.
    ``deleted`` are offsets between that are in no archive, where that was read too.
    Frames are split into ``messages`` when those are asked for.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        frames: Sequence[FrameView],
        bounds: tuple[int, int, int],
        damaged: Sequence[DamagedRange],
        deleted: Sequence[tuple[int, int]] = (),
        lanes: str = DEFAULT_LANES,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.frames = frames
        self.next, self.start, self.end = bounds
        self.damaged = damaged
        self.deleted = deleted
        self.lanes = lanes

    @cached_property
    def messages(self) -> list[LogMessage]:
        """The messages, in the order of their offsets."""
        return [
            message
            for frame in self.frames
            for message in messages_of(self.topic, self.partition, frame, self.lanes)
        ]


def messages_of(topic: str, partition: int, frame: FrameView, lanes: str) -> Iterator[LogMessage]:
    """Yield the messages of a frame, of a topic whose lanes have these names.

    Those that compaction took away are left out.
    """
    header = frame.header
    count = header.message_count
    messages = map(
        LogMessage,
        repeat(topic, count),
        repeat(partition),
        range(header.base_offset, header.end_offset),
        repeat(header.append_time_us),
        frame.values(0, count),
        frame.keys(0, count),
        frame.headers(0, count),
        *delivery_fields(frame, 0, count, lanes),
    )
    return messages if frame.removed_rows is None else compress(messages, frame.kept(0, count))


class FailedReceipt(NamedTuple):
    """A receipt that was not settled, and the code of the error that says why."""

    receipt: str
    code: str


class CopyResult(NamedTuple):
    """How many messages a replay into a topic stored, and how many were there before it."""

    stored: int
    known: int


class Settled(NamedTuple):
    """How many messages were settled, and which receipts were not."""

    done: int
    failed: Sequence[FailedReceipt]
