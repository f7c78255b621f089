"""The exported tables: the source and the schema of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from goq import limits
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.pipeline.arrow.events import events_batch
from goq.pipeline.arrow.messages import messages_batch
from goq.pipeline.arrow.node_source import FrameBatch, LogBounds, LogSource
from goq.pipeline.arrow.schema import EVENTS, MESSAGES


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose rows come from the frames of one of a partition's logs.

    ``time`` and ``position`` name the columns with a row's time and its place in the log.
    """

    name: str
    schema: pa.Schema
    time: str
    position: str
    batch: Callable[[str, int, Sequence[FrameView], int, Sequence[str]], pa.RecordBatch]
    """Returns these columns of rows from a topic, a partition, its frames, and the default lane."""
    bounds: Callable[[LogSource, str], Mapping[int, LogBounds]]
    read: Callable[[LogSource, str, int, int, int], Iterator[FrameBatch]]

    def batches(
        self,
        topic: str,
        partition: int,
        frames: list[FrameView],
        default_lane: int,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of frames; each frame leaves the list as it is converted, to free memory.

        A batch holds few enough frames that their decompressed size is bounded. Without ``columns``
        it has all.
        """
        names = self.schema.names if columns is None else columns
        frames.reverse()
        while frames:
            some = [frames.pop()]
            size_bytes = _unpacked_bytes(some[0])
            while frames:
                size_bytes += _unpacked_bytes(frames[-1])
                if size_bytes > limits.ROWS_UNPACKED_BYTES:
                    break
                some.append(frames.pop())
            yield self.batch(topic, partition, some, default_lane, names)


def _unpacked_bytes(view: FrameView) -> int:
    packed = view.header.attributes & Attribute.ZSTD
    return view.unpacked_bytes if packed else view.header.frame_bytes


def rows_between(
    batch: pa.RecordBatch, name: str, low: int | None, high: int | None
) -> pa.RecordBatch:
    """Return the rows with ``low`` <= column < ``high``, by numbers or times in microseconds.

    Adjacent rows are sliced without a copy; only a clock that was set back separates them.
    """
    if low is None and high is None:
        return batch
    found = np.asarray(batch.column(name).view(pa.int64()))
    wanted = np.ones(len(found), np.bool_)
    if low is not None:
        wanted &= found >= low
    if high is not None:
        wanted &= found < high
    rows = np.flatnonzero(wanted)
    if len(rows) in (0, len(found)):
        return batch.slice(0, len(rows))
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return batch.slice(first, len(rows))
    return batch.filter(pa.array(wanted))


def _messages_batch(
    topic: str,
    partition: int,
    frames: Sequence[FrameView],
    default_lane: int,
    columns: Sequence[str],
) -> pa.RecordBatch:
    return messages_batch(topic, partition, frames, default_lane=default_lane, columns=columns)


def _events_batch(
    topic: str, partition: int, frames: Sequence[FrameView], _: int, columns: Sequence[str]
) -> pa.RecordBatch:
    return events_batch(topic, partition, frames).select(list(columns))


MESSAGES_TABLE = Table(
    "messages",
    MESSAGES,
    "timestamp",
    "offset",
    _messages_batch,
    lambda source, topic: source.bounds(topic),
    lambda source, *span: source.read_messages(*span),
)
EVENTS_TABLE = Table(
    "events",
    EVENTS,
    "time",
    "sequence",
    _events_batch,
    lambda source, topic: source.event_bounds(topic),
    lambda source, *span: source.read_events(*span),
)
TABLES = {table.name: table for table in (MESSAGES_TABLE, EVENTS_TABLE)}
