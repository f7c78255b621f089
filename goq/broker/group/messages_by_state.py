"""The messages of a group in one delivery state, in offset order, and exact counts of them.

The scan is read-only and proceeds by windows of offsets. It yields to the event loop after each
window, so a state with millions of messages delays no request. Changes after the current window
appear in the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from goq.broker.partition.delayed_reader import DelayedReader
from goq.broker.partition.group_view import WINDOWED, GroupCounts, Run
from goq.broker.partition.partition import Partition
from goq.delivery.events.transitions import MessageState
from goq.delivery.group.attempt_ranges import AttemptRange

_WINDOW_MIN = 512  # offsets
_WINDOW_MAX = 4_096
_FEW_RUNS = 64  # in a window: the next one may be twice as large


async def runs_of(
    partition: Partition, name: str, state: MessageState, start: int, now_ms: int
) -> AsyncIterator[AttemptRange]:
    """Yield the ranges in a state from offset ``start`` on; ``attempt`` counts attempts made.

    The time of a range is a lease's end, a retry's due time, or 0. ``READY`` and ``EXPIRED`` both
    yield all deliverable messages: only the messages themselves tell which have expired. ``DEAD``
    yields nothing: dead letters are in their own topic.
    """
    if state in (MessageState.LEASED, MessageState.RETRY, MessageState.BLOCKED):
        for part in partition.group(name).parts(state, start, now_ms):
            yield part
    if state not in WINDOWED:
        return
    at, window = max(start, partition.start_offset), _WINDOW_MIN
    while True:
        at, end = partition.group(name).bounds(state, at)
        if at >= end:
            return
        stop = min(at + window, end)
        delayed: list[Run] = []
        if state is not MessageState.DONE and partition.delayed_count:
            delayed = await partition.read_delayed(partial(DelayedReader.runs, start=at, end=stop))
        else:
            await asyncio.sleep(0)
        runs = 0
        for part in partition.group(name).window(state, delayed, at, stop, now_ms):
            runs += 1
            yield part
        at, window = stop, min(2 * window, _WINDOW_MAX) if runs <= _FEW_RUNS else _WINDOW_MIN


async def exact_counts(partition: Partition, name: str, now_ms: int) -> GroupCounts:
    """Count as :meth:`Partition.group_counts`, exactly also for a group with an end.

    The columns of the messages tell which scheduled ones lie before that end. Raises ``OSError``
    when the disk fails.
    """
    scheduled_max = partition.delayed_count
    if scheduled_max and partition.group(name).end_offset is not None:
        runs = runs_of(partition, name, MessageState.SCHEDULED, 0, now_ms)
        scheduled_max = sum([run.end - run.start async for run in runs])
    return partition.group_counts(name, now_ms, scheduled_max)
