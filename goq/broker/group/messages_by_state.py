"""The messages of a group in one delivery state, in order of offset, and exact counts of them.

Nothing is changed. A state is looked through a window of offsets at a time, and other work has its
turn in between: a state with millions of messages delays no request. What changes behind the
window meanwhile is returned as it is then.
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

_WINDOW = 16_384  # offsets


async def runs_of(
    partition: Partition, name: str, state: MessageState, start: int, now_ms: int
) -> AsyncIterator[AttemptRange]:
    """Yield what is in a state from offset ``start`` on; attempts are those already made.

    The time of a part is a lease's end, when a retry is due, or 0. ``READY`` and ``EXPIRED`` both
    give all that may be handed out: which of it has expired only the messages themselves tell.
    ``DEAD`` gives nothing: dead letters are in a topic of their own.
    """
    if state in (MessageState.LEASED, MessageState.RETRY, MessageState.BLOCKED):
        for part in partition.group(name).parts(state, start, now_ms):
            yield part
    if state not in WINDOWED:
        return
    at = max(start, partition.start_offset)
    while True:
        at, end = partition.group(name).bounds(state, at)
        if at >= end:
            return
        stop = min(at + _WINDOW, end)
        delayed: list[Run] = []
        if state is not MessageState.DONE and partition.delayed_count:
            delayed = await partition.read_delayed(partial(DelayedReader.runs, start=at, end=stop))
        else:
            await asyncio.sleep(0)
        for part in partition.group(name).window(state, delayed, at, stop, now_ms):
            yield part
        at = stop


async def exact_counts(partition: Partition, name: str, now_ms: int) -> GroupCounts:
    """Count as :meth:`Partition.group_counts`, exact also for a group that has an end.

    Then the columns of the messages tell which of the scheduled ones lie before that end. Raises
    ``OSError`` when the disk fails.
    """
    scheduled_max = partition.delayed_count
    if scheduled_max and partition.group(name).end_offset is not None:
        runs = runs_of(partition, name, MessageState.SCHEDULED, 0, now_ms)
        scheduled_max = sum([run.end - run.start async for run in runs])
    return partition.group_counts(name, now_ms, scheduled_max)
