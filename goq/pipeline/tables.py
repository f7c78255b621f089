"""The tables that are exported: where their rows come from and what they look like."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from goq.frame.view import FrameView
from goq.pipeline.arrow import messages_batch
from goq.pipeline.event_rows import events_batch
from goq.pipeline.schema import EVENTS, MESSAGES
from goq.pipeline.source import Bounds, Source, Stretch


@dataclass(frozen=True, slots=True)
class Table:
    """A table of rows made of the frames of one of a partition's logs.

    ``time`` and ``position`` are the columns that say when a row came to be and where in the log.
    """

    name: str
    schema: pa.Schema
    time: str
    position: str
    batch: Callable[[str, int, Sequence[FrameView], int], pa.RecordBatch]
    """Makes rows: of a topic, a partition, frames of it, and the lane of who names none."""
    bounds: Callable[[Source, str], Mapping[int, Bounds]]
    stretches: Callable[[Source, str, int, int, int], Iterator[Stretch]]


def rows_between(
    batch: pa.RecordBatch, name: str, low: int | None, high: int | None
) -> pa.RecordBatch:
    """Return the rows with ``low`` <= column < ``high``, by numbers or times in microseconds."""
    if low is not None:
        batch = batch.filter(pc.greater_equal(batch.column(name).cast(pa.int64()), low))
    if high is not None:
        batch = batch.filter(pc.less(batch.column(name).cast(pa.int64()), high))
    return batch


def _messages_batch(
    topic: str, partition: int, frames: Sequence[FrameView], default_lane: int
) -> pa.RecordBatch:
    return messages_batch(topic, partition, frames, default_lane=default_lane)


def _events_batch(
    topic: str, partition: int, frames: Sequence[FrameView], _: int
) -> pa.RecordBatch:
    return events_batch(topic, partition, frames)


MESSAGES_TABLE = Table(
    "messages",
    MESSAGES,
    "timestamp",
    "offset",
    _messages_batch,
    lambda source, topic: source.bounds(topic),
    lambda source, *span: source.stretches(*span),
)
EVENTS_TABLE = Table(
    "events",
    EVENTS,
    "time",
    "sequence",
    _events_batch,
    lambda source, topic: source.event_bounds(topic),
    lambda source, *span: source.event_stretches(*span),
)
TABLES = {table.name: table for table in (MESSAGES_TABLE, EVENTS_TABLE)}
