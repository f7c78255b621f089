"""How many messages of a partition are in which state for a group."""

from __future__ import annotations

from typing import NamedTuple

from goq.broker.group.messages_by_state import runs_of
from goq.broker.partition.partition import Partition
from goq.delivery.events.transitions import MessageState
from goq.delivery.group.group import Group
from goq.delivery.partition_state import PartitionState


class GroupCounts(NamedTuple):
    """A group's messages in one partition.

    ``lag`` is what it has not done, without what is not due yet (``scheduled``). Of that so much
    is ``ready``, ``leased``, or waits for its ``retry``; ``blocked`` is what of the ready is known
    to be held back behind its key. ``dead`` is how many left it as dead letters, ever.
    """

    lag: int
    ready: int
    leased: int
    retry: int
    blocked: int
    scheduled: int
    dead: int


def group_counts(partition: Partition, name: str, now_ms: int) -> GroupCounts:
    """Count a group's messages; the time is that of the wall clock.

    Of a group with an end all that is scheduled in the partition counts as scheduled for it, as far
    as it has that much left: see :func:`exact_counts`.
    """
    state = partition.state
    return count_in(state, state.group(name), partition.dispatch.schedule.count, now_ms)


async def exact_counts(partition: Partition, name: str, now_ms: int) -> GroupCounts:
    """Count as :func:`group_counts`, and look which scheduled messages lie before a group's end.

    May read the columns of the messages up to there. Raises ``OSError`` when the disk fails.
    """
    scheduled_count = partition.dispatch.schedule.count
    if scheduled_count and partition.state.group(name).end_offset is not None:
        runs = runs_of(partition, name, MessageState.SCHEDULED, 0, now_ms)
        scheduled_count = sum([run.end - run.start async for run in runs])
    return count_in(partition.state, partition.state.group(name), scheduled_count, now_ms)


def count_in(state: PartitionState, group: Group, scheduled_count: int, now_ms: int) -> GroupCounts:
    """Count a group's messages in a state in which so many, at most, have not matured for it."""
    start, end = state.start_offset, state.end_offset
    untaken = end - start - group.taken.count(start, end)
    unreadable = sum(
        hole.end - hole.start
        for r in state.corrupt
        for hole in group.taken.missing(max(r.start, start), min(r.end, end))
    )
    scheduled = min(scheduled_count, untaken)
    waiting = group.retries.message_count
    due = sum(p.end - p.start for p in group.retries if p.time_ms <= now_ms)
    return GroupCounts(
        lag=untaken - scheduled - unreadable + group.leased_count + waiting,
        ready=untaken - scheduled - unreadable + due,
        leased=group.leased_count,
        retry=waiting - due,
        blocked=group.locks.held_count,
        scheduled=scheduled,
        dead=group.dead_count,
    )
