"""Messages that were read, and the results of publish, read and settle."""

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
    """A message of the log. ``timestamp`` is its append time, ``value`` is None for a tombstone.

    Times are microseconds since 1970, None where the message has none.
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
        """The id of the message: ``topic:partition:offset``."""
        return MessageId(self.topic, self.partition, self.offset)

    @property
    def traceparent(self) -> str | None:
        """The ``traceparent`` header of the message, unchecked; None without one."""
        return traceparent_of(self.headers)


class Published(NamedTuple):
    """One message that the node has stored.

    ``timestamp`` is the append time in microseconds since 1970. ``duplicate`` says that it was
    stored before, by an earlier attempt or with the same dedup id: it is stored once, as ``id``.
    """

    id: MessageId
    timestamp: int
    duplicate: bool


class PublishedRun(NamedTuple):
    """Messages with adjacent offsets: the n-th of ``positions`` has the n-th offset."""

    partition: int
    offset: int
    timestamp: int
    duplicate: bool
    positions: Sequence[int]


class PublishedBatch:
    """The result of publishing many messages, in the order in which they were given.

    It holds runs of offsets. The :class:`Published` of each message is made on first use.
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
    """Offsets whose stored bytes failed their check: the batch does not have them.

    ``end_offset`` is excluded.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int


class ReadBatch:
    """One batch of a partition's log.

    ``next`` is the offset to read at next. The partition holds offsets from ``start`` up to
    ``end``, which is excluded. The batch lacks the offsets in ``damaged`` and in
    ``deleted``: retention deleted the latter, and the archive lacks them. Frames are split into
    ``messages`` on first use.
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

    Messages that compaction removed are left out.
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
    """A receipt that was not settled, and the code of its error (docs/errors.md).

    With the code ``timed_out`` it may be settled. If it is not, the message is delivered again.
    """

    receipt: str
    code: str


class CopyResult(NamedTuple):
    """How many messages a replay into a topic stored, and how many were there before it."""

    stored: int
    known: int


class Settled(NamedTuple):
    """How many messages were settled, and the receipts that were not."""

    done: int
    failed: Sequence[FailedReceipt]
