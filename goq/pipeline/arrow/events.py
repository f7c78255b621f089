"""Events as rows of a table, one for each message; ranges expand without a Python loop.

Some events name no message, and still explain why messages are missing or come again. Each of them
is one row, at one offset:

- a reset of a group: the message that the group continues from;
- the deletion of a group: the partition's first offset;
- a pass of compaction: the first message of the pass, with its end in ``reason``;
- a deletion by retention: the first message that is left.

Maturity of delayed messages and snapshots have no rows: they repeat other events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from goq.delivery.events.event import (
    Acked,
    Cancelled,
    Cause,
    Compacted,
    CopyQueued,
    Corrupted,
    Dropped,
    Event,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Moved,
    Nacked,
    Repaired,
    Rescheduled,
    Reset,
    Skipped,
    Trimmed,
    token_of,
)
from goq.delivery.events.frame_codec import decode_event_frame
from goq.frame.view import FrameView
from goq.pipeline.arrow.schema import EVENTS, TIMESTAMP


class _Rows(NamedTuple):
    """One event for the messages from ``start`` up to ``end``."""

    start: int
    end: int
    event: str
    group: str | None = None
    attempt: int | None = None
    reason: str | None = None
    lease: int | None = None
    due_ms: int | None = None
    consumer: str | None = None


def events_batch(topic: str, partition: int, frames: Iterable[FrameView]) -> pa.RecordBatch:
    """Return frames of a partition's events log as rows of ``EVENTS``."""
    found: list[_Rows] = []
    times: list[int] = []
    sequences: list[int] = []
    for view in frames:
        for stored in decode_event_frame(view):
            rows_of = _ROWS.get(type(stored.event))
            if rows_of is None:
                continue
            rows = list(rows_of(stored.event, token_of(stored.epoch, stored.sequence)))
            found += rows
            times += [stored.time_us] * len(rows)
            sequences += [stored.sequence] * len(rows)
    return _batch(topic, partition, found, times, sequences)


def _batch(
    topic: str, partition: int, rows: list[_Rows], times: list[int], sequences: list[int]
) -> pa.RecordBatch:
    starts = np.array([row.start for row in rows], np.int64)
    counts = np.array([row.end for row in rows], np.int64) - starts
    which = np.repeat(np.arange(len(rows)), counts)
    offsets = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    spread = pa.array(which)

    def column(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(spread)

    dues_us = [None if row.due_ms is None else row.due_ms * 1000 for row in rows]
    named = pa.array(offsets)
    columns = {
        "message_id": pc.binary_join_element_wise(
            f"{topic}:{partition}:", named.cast(pa.string()), ""
        ),
        "event": column([row.event for row in rows], pa.string()),
        "time": column(times, pa.int64()).cast(TIMESTAMP),
        "group": column([row.group for row in rows], pa.string()),
        "consumer": column([row.consumer for row in rows], pa.string()),
        "attempt": column([row.attempt for row in rows], pa.int32()),
        "reason": column([row.reason for row in rows], pa.string()),
        "lease": column([row.lease for row in rows], pa.int64()),
        "due": column(dues_us, pa.int64()).cast(TIMESTAMP),
        "topic": column([topic] * len(rows), pa.string()),
        "partition": column([partition] * len(rows), pa.int32()),
        "offset": named,
        "sequence": column(sequences, pa.int64()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in EVENTS.names], schema=EVENTS)


def _leased(event: Leased, token: int) -> Iterable[_Rows]:
    for start, end, attempt in event.spans:
        yield _Rows(
            start,
            end,
            "DELIVERED",
            event.group,
            attempt,
            lease=token,
            due_ms=event.deadline_ms,
            consumer=event.consumer,
        )


def _acked(event: Acked, _: int) -> Iterable[_Rows]:
    for start, end in event.ranges:
        yield _Rows(start, end, "ACKNOWLEDGED", event.group, lease=event.token)


def _given_back(event: Nacked | Expired, _: int) -> Iterable[_Rows]:
    name = "NACKED" if isinstance(event, Nacked) else "EXPIRED"
    for start, end, attempt in event.spans:
        yield _Rows(
            start, end, name, event.group, attempt, event.reason or None, event.token, event.due_ms
        )


def _extended(event: Extended, _: int) -> Iterable[_Rows]:
    for start, end in event.ranges:
        yield _Rows(
            start, end, "EXTENDED", event.group, lease=event.token, due_ms=event.deadline_ms
        )


def _dropped(event: Dropped, _: int) -> Iterable[_Rows]:
    for start, end, attempt in event.spans:
        reason = event.reason or str(event.cause)
        yield _Rows(start, end, "DROPPED", event.group, attempt, reason, event.token)


def _departing(event: CopyQueued, _: int) -> Iterable[_Rows]:
    name = "DEAD_LETTERED" if event.group else "REDRIVEN"
    for start, end, attempt in event.spans:
        reason = event.reason or str(event.cause)
        yield _Rows(start, end, name, event.group or None, attempt, reason, event.token or None)


def _skipped(event: Skipped, _: int) -> Iterable[_Rows]:
    name = "EXPIRED" if event.cause is Cause.TTL else "SKIPPED"
    for start, end in event.ranges:
        yield _Rows(start, end, name, event.group, reason=str(event.cause))


def _cancelled(event: Cancelled, _: int) -> Iterable[_Rows]:
    for start, end in event.ranges:
        yield _Rows(start, end, "CANCELLED", reason=event.reason or None)


def _moved(event: Moved, _: int) -> Iterable[_Rows]:
    yield _Rows(event.offset, event.offset + 1, "MOVED", reason=f"lane {event.lane}")


def _rescheduled(event: Rescheduled, _: int) -> Iterable[_Rows]:
    yield _Rows(event.offset, event.offset + 1, "RESCHEDULED", due_ms=event.due_ms)


def _corrupted(event: Corrupted, _: int) -> Iterable[_Rows]:
    yield _Rows(event.start, event.end, "CORRUPTED", reason=event.reason or None)


def _repaired(event: Repaired, _: int) -> Iterable[_Rows]:
    yield _Rows(event.start, event.end, "REPAIRED")


def _compacted(event: Compacted, _: int) -> Iterable[_Rows]:
    yield _Rows(event.start, event.start + 1, "COMPACTED", reason=str(event.end))


def _reset(event: Reset, _: int) -> Iterable[_Rows]:
    reason = f"end {event.end_offset}" if event.end_offset >= 0 else None
    yield _Rows(event.offset, event.offset + 1, "RESET", event.group, reason=reason)


def _group_deleted(event: GroupDeleted, _: int) -> Iterable[_Rows]:
    yield _Rows(0, 1, "GROUP_DELETED", event.group)


def _trimmed(event: Trimmed, _: int) -> Iterable[_Rows]:
    yield _Rows(event.start_offset, event.start_offset + 1, "TRIMMED")


_ROWS: dict[type[Event], Callable[[Any, int], Iterable[_Rows]]] = {
    Leased: _leased,
    Acked: _acked,
    Nacked: _given_back,
    Expired: _given_back,
    Extended: _extended,
    Dropped: _dropped,
    CopyQueued: _departing,
    Skipped: _skipped,
    Cancelled: _cancelled,
    Moved: _moved,
    Rescheduled: _rescheduled,
    Compacted: _compacted,
    Corrupted: _corrupted,
    Repaired: _repaired,
    Reset: _reset,
    GroupDeleted: _group_deleted,
    Trimmed: _trimmed,
}
