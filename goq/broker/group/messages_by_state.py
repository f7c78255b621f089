"""The messages of a group in one state, in order of offset, found a window at a time.

Nothing is touched. Between two windows others have their turn, so a state with millions of messages
holds nobody up, and what changes meanwhile behind the window is seen as it is then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial

from goq.broker.partition.delayed import DelayedReader
from goq.broker.partition.partition import Partition
from goq.delivery.events.transitions import MessageState
from goq.delivery.group.attempt_ranges import AttemptRange
from goq.delivery.group.group import Group
from goq.delivery.partition_state import PartitionState

Run = tuple[int, int]
_WINDOW = 16_384  # offsets looked at in one go


async def runs_of(
    partition: Partition, name: str, state: MessageState, start: int, now_ms: int
) -> AsyncIterator[AttemptRange]:
    """Yield what is in a state from offset ``start`` on; attempts are those already made.

    The time is a lease's end, when a retry is due, or 0. ``READY`` and ``EXPIRED`` both give all
    that may be handed out: which of it has outlived its time is in the messages themselves.
    ``DEAD`` gives nothing: dead letters are in a topic of their own.
    """
    group = partition.state.group(name)
    if state is MessageState.LEASED:
        held = (part for lease in group.leases.values() for part in lease.parts)
        found = sorted(part for part in held if part.end > start)
    elif state is MessageState.RETRY:
        found = [p for p in group.retries if p.time_ms > now_ms and p.end > start]
    elif state is MessageState.BLOCKED:
        found = [
            AttemptRange(o, o + 1, 0, 0) for o in _blocked(partition.state, group) if o >= start
        ]
    else:
        if state in _WINDOWS:
            async for part in _windows(partition, name, state, start, now_ms):
                yield part
        return
    for part in found:
        yield part


async def _windows(
    partition: Partition, name: str, state: MessageState, start: int, now_ms: int
) -> AsyncIterator[AttemptRange]:
    at = max(start, partition.state.start_offset)
    while True:
        group, end = partition.state.group(name), partition.state.end_offset
        if state in (MessageState.READY, MessageState.EXPIRED, MessageState.SCHEDULED):
            at, end = max(at, _first_open(group, state)), min(end, group.taken.ceiling)
        if at >= end:
            return
        stop = min(at + _WINDOW, end)
        waiting: list[Run] = []
        if state is not MessageState.DONE and partition.dispatch.schedule.count:
            waiting = await partition.look(partial(DelayedReader.runs, start=at, end=stop))
            group = partition.state.group(name)
        else:
            await asyncio.sleep(0)
        for part in _WINDOWS[state](partition.state, group, waiting, at, stop, now_ms):
            yield part
        at = stop


def _first_open(group: Group, state: MessageState) -> int:
    """Return the first offset that may be in a state of what is not done."""
    first = group.retries.first() if state is MessageState.READY else None
    return group.taken.floor if first is None else min(group.taken.floor, first.start)


def fresh_runs(
    state: PartitionState, group: Group, waiting: list[Run], start: int, stop: int
) -> Iterator[Run]:
    """Yield what of ``start`` up to ``stop`` a group may be handed the first time.

    ``waiting`` is what of it waits for its time.
    """
    fresh = list(_minus(state.deliverable(group, start, stop), waiting))
    if not fresh or not group.locks.held_count:
        return iter(fresh)
    return _minus(fresh, [(offset, offset + 1) for offset in _blocked(state, group)])


def _ready(
    state: PartitionState, group: Group, waiting: list[Run], start: int, stop: int, now_ms: int
) -> list[AttemptRange]:
    due = [p for p in group.retries.within(start, stop) if p.time_ms <= now_ms]
    fresh = (AttemptRange(*run, 0, 0) for run in fresh_runs(state, group, waiting, start, stop))
    return sorted([*due, *fresh])


def _expired(
    state: PartitionState, group: Group, waiting: list[Run], start: int, stop: int, now_ms: int
) -> Iterator[AttemptRange]:
    return (AttemptRange(*run, 0, 0) for run in fresh_runs(state, group, waiting, start, stop))


def _scheduled(
    state: PartitionState, group: Group, waiting: list[Run], start: int, stop: int, now_ms: int
) -> Iterator[AttemptRange]:
    taken = group.taken.present(start, stop)
    return (AttemptRange(*run, 0, 0) for run in _minus(waiting, taken))


def _done(
    state: PartitionState, group: Group, waiting: list[Run], start: int, stop: int, now_ms: int
) -> Iterator[AttemptRange]:
    cancelled = state.cancelled.present(start, stop)
    done = list(_minus(group.taken.present(start, stop), cancelled))
    held = sorted((p.start, p.end) for p in group.outstanding()) if done else []
    return (AttemptRange(*run, 0, 0) for run in _minus(done, held))


def _cancelled(
    state: PartitionState, group: Group, waiting: list[Run], start: int, stop: int, now_ms: int
) -> Iterator[AttemptRange]:
    cancelled = list(state.cancelled.present(start, stop))
    held = sorted((p.start, p.end) for p in group.outstanding()) if cancelled else []
    return (AttemptRange(*run, 0, 0) for run in _minus(cancelled, held))


_Window = Callable[[PartitionState, Group, list[Run], int, int, int], Iterable[AttemptRange]]
_WINDOWS: dict[MessageState, _Window] = {
    MessageState.READY: _ready,
    MessageState.EXPIRED: _expired,
    MessageState.SCHEDULED: _scheduled,
    MessageState.DONE: _done,
    MessageState.CANCELLED: _cancelled,
}


def _blocked(state: PartitionState, group: Group) -> list[int]:
    """Return what is held back behind its key and still stands there."""
    moved = state.moved
    held = {
        held.offset
        for held in group.locks.held()
        if held.offset not in group.taken
        and moved.get(held.offset, held.attributes.lane) == held.attributes.lane
    }
    return sorted(held)


def _minus(runs: Iterable[Run], holes: Iterable[Run]) -> Iterator[Run]:
    """Yield what lies in ``runs`` and in none of ``holes``; both are in order and disjoint."""
    remaining = iter(holes)
    hole = next(remaining, None)
    for start, end in runs:
        while hole is not None and hole[1] <= start:
            hole = next(remaining, None)
        while hole is not None and hole[0] < end:
            if start < hole[0]:
                yield start, hole[0]
            start = max(start, hole[1])
            if hole[1] >= end:
                break
            hole = next(remaining, None)
        if start < end:
            yield start, end
