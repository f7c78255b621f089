"""The counts of many groups of a partition at once.

A :class:`GroupTally` has what only events change. With the partition's bounds it gives the counts
of ``GroupView.counts``: so a publish changes the counts of ten thousand groups, and none of their
tallies. :func:`counts_of` does that for many groups, as arrays of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from goq.delivery.group.group import Group
from goq.delivery.partition_state import PartitionState

Int64s = npt.NDArray[np.int64]
NEVER: Final = 2**63 - 1


class GroupTally(NamedTuple):
    """The part of a partition that one group has taken, and how much of that is not done.

    Taken is everything before ``floor`` and from ``ceiling`` on, and ``sparse_count`` messages
    between them. ``unreadable_count`` are damaged and not taken. ``waiting_count`` are to be tried
    again; of these ``due_count`` are due, and the next at ``next_due_ms``. ``first_offset`` is the
    first that is not done, also after publishes, of a group without consumers; else -1.
    """

    floor: int
    ceiling: int
    sparse_count: int
    unreadable_count: int
    leased_count: int
    waiting_count: int
    due_count: int
    next_due_ms: int
    blocked_count: int
    dead_count: int
    first_offset: int


class PartitionBounds(NamedTuple):
    """The offsets of a partition, and the number of its delayed messages."""

    start_offset: int
    end_offset: int
    delayed_count: int


class GroupColumns(NamedTuple):
    """The fields of ``GroupCounts``, of many groups."""

    lag: Int64s
    ready: Int64s
    leased: Int64s
    retry: Int64s
    blocked: Int64s
    scheduled: Int64s
    dead: Int64s


def group_tallies(state: PartitionState, names: Iterable[str], now_ms: int) -> list[GroupTally]:
    """Return the tallies of groups, in the order of their names."""
    groups = state.groups
    unknown = _tally(state, state.group(""), now_ms)  # of a group without any event
    return [_tally(state, groups[name], now_ms) if name in groups else unknown for name in names]


def _tally(state: PartitionState, group: Group, now_ms: int) -> GroupTally:
    taken, start, end = group.taken, state.start_offset, state.end_offset
    floor, leased, waiting = taken.floor, group.leased_count, group.retries.message_count
    sparse = unreadable = due = 0
    if not taken.is_dense:
        sparse = taken.count(start, end) - max(0, min(end, floor) - start)
        sparse -= max(0, end - max(start, taken.ceiling, floor))
    for r in state.corrupt:
        holes = taken.missing(max(r.start, start), min(r.end, end))
        unreadable += sum(hole.end - hole.start for hole in holes)
    next_due_ms = NEVER
    for part in group.retries if waiting else ():
        if part.time_ms <= now_ms:
            due += part.end - part.start
        elif part.time_ms < next_due_ms:
            next_due_ms = part.time_ms
    is_simple = not (group.scheduler or leased or waiting or state.corrupt)
    return GroupTally(
        floor,
        taken.ceiling if taken.ceiling < NEVER else NEVER,
        sparse,
        unreadable,
        leased,
        waiting,
        due,
        next_due_ms,
        group.locks.blocked_count,
        group.dead_count,
        max(start, floor) if is_simple else -1,
    )


def counts_of(tallies: Int64s, bounds: Int64s) -> GroupColumns:
    """Return the counts of groups by partition, as their tallies and the bounds are.

    The first axis of both has the fields, the next the partitions, the last the groups; the bounds
    are the same for all groups.
    """
    floor, ceiling, sparse, unreadable, leased, waiting, due, _, blocked, dead, _ = tallies
    start, end, delayed = bounds
    taken = np.maximum(0, np.minimum(end, floor) - start) + sparse
    taken += np.maximum(0, end - np.maximum(np.maximum(start, floor), ceiling))
    readable = end - start - taken - unreadable
    scheduled = np.minimum(delayed, readable)
    fresh = readable - scheduled
    return GroupColumns(
        lag=fresh + leased + waiting,
        ready=fresh + due,
        leased=leased,
        retry=waiting - due,
        blocked=blocked,
        scheduled=scheduled,
        dead=dead,
    )
