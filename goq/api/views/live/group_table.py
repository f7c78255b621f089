"""The counts of all groups of a topic, kept up to date while it has lookers.

The table has a row of numbers for each group in each partition of this node. A refresh counts those
groups again that have changed by what a partition noted, or have a retry that is now due.
Everything else follows from the bounds of the partitions, for all groups at once. So ten thousand
groups at rest cost some milliseconds, and only where something happens in their topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from goq.api.views.group_backlog import ReadyAges, ready_since
from goq.broker.partition.group_view import GroupCounts
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.delivery.group_tally import (
    NEVER,
    GroupColumns,
    GroupTally,
    Int64s,
    counts_of,
)

Bools = npt.NDArray[np.bool_]
_STEP: Final = 200
"""So many groups are counted before a look at the time."""
_NOT_ASKED: Final = -1
_NOT_KNOWN: Final = -1
"""When the next retry becomes due, while a refresh is under way: look at all."""
_ASK_AGAIN: Final = -2
"""A group waits for a message that its queues have passed: next time it may be another one."""
_NEXT_DUE: Final = GroupTally._fields.index("next_due_ms")
_FIRST: Final = GroupTally._fields.index("first_offset")
_LAG: Final = GroupColumns._fields.index("lag")


def _empty_rows(partitions: int, groups: int) -> tuple[Int64s, Int64s]:
    """Return the tallies, and since when or the offsets from which groups wait."""
    return (
        np.zeros((len(GroupTally._fields), partitions, groups), np.int64),
        np.full((2, partitions, groups), _NOT_ASKED, np.int64),
    )


class GroupTable:
    """The groups of one topic, in the order of their names."""

    def __init__(self, topic: Topic, ages: ReadyAges) -> None:
        self.names: list[str] = []
        self._due_ms = NEVER  # a retry becomes due
        self._now_ms = 0
        self._topic = topic
        self._ages = ages
        self._partitions: Sequence[Partition] = ()
        self._changed: list[set[str]] = []  # of each partition, groups to count again
        self._places: dict[str, int] = {}
        self._matching: dict[str, Int64s] = {}
        self._tallies, self._ready = _empty_rows(0, 0)
        self._sums: Int64s  # over the partitions: a row for each field of the counts

    @property
    def all(self) -> Int64s:
        """The places of all groups."""
        return np.arange(len(self.names))

    def close(self) -> None:
        """Have the partitions note changes no more."""
        for partition in self._partitions:
            partition.group_changes.unwatch()

    # Counting

    def is_current(self, now_ms: int) -> bool:
        """Return whether the counts are still right if nothing has happened."""
        return self._now_ms <= now_ms < self._due_ms

    async def refresh(self, now_ms: int) -> None:
        """Count what changed; a refresh that is broken off goes on with the next one."""
        time_slice = TimeSlice()
        self._follow_partitions()
        self._follow_groups()
        was_set_back, self._now_ms = now_ms < self._now_ms, now_ms
        is_due, self._due_ms = now_ms >= self._due_ms, _NOT_KNOWN
        for number, partition in enumerate(self._partitions):
            if time_slice.is_over:
                await time_slice.next()
            names = partition.group_changes.take()
            self._changed[number].update(self._places if names is None or was_set_back else names)
            if is_due:
                due = self._tallies[_NEXT_DUE, number] <= now_ms
                self._changed[number].update(self.names[place] for place in due.nonzero()[0])
        if time_slice.is_over:
            await time_slice.next()
        for number, partition in enumerate(self._partitions):
            await self._count(number, partition, now_ms, time_slice)
        if time_slice.is_over:
            await time_slice.next()
        counts = self._add_up()
        await self._date(counts.ready > 0, now_ms, time_slice)

    def _follow_partitions(self) -> None:
        """Begin anew where partitions were opened or closed."""
        here = self._topic.partitions.here()
        if list(map(id, here)) == list(map(id, self._partitions)):
            return
        self.close()
        self._partitions = here
        for partition in here:
            partition.group_changes.watch()
        self._changed = [set() for _ in here]
        self._tallies, self._ready = _empty_rows(len(here), len(self.names))

    def _follow_groups(self) -> None:
        groups = self._topic.groups
        if groups.keys() == self._places.keys():
            return
        names = sorted(groups)
        known = np.array([self._places.get(name, -1) for name in names], np.int64)
        tallies, ready = _empty_rows(len(self._partitions), len(names))
        is_known = known >= 0
        tallies[..., is_known] = self._tallies[..., known[is_known]]
        ready[..., is_known] = self._ready[..., known[is_known]]
        new = [names[place] for place in np.flatnonzero(~is_known).tolist()]
        for changed in self._changed:
            changed.update(new)
        self.names, self._places = names, {name: place for place, name in enumerate(names)}
        self._tallies, self._ready, self._matching = tallies, ready, {}

    async def _count(
        self, number: int, partition: Partition, now_ms: int, time_slice: TimeSlice
    ) -> None:
        """Count the changed groups of a partition, in slices."""
        changed, places = self._changed[number], self._places
        names = [name for name in changed if name in places]
        for start in range(0, len(names), _STEP):
            some = names[start : start + _STEP]
            where = [places[name] for name in some]
            tallies = partition.group_tallies(some, now_ms)
            self._tallies[:, number, where] = np.array(tallies, np.int64).T
            self._ready[:, number, where] = _NOT_ASKED
            changed.difference_update(some)
            if time_slice.is_over:
                await time_slice.next()
        changed.intersection_update(places)

    def _add_up(self) -> GroupColumns:
        """Return the counts in each partition, and keep their sums."""
        bounds = np.array([each.bounds for each in self._partitions], np.int64)
        counts = counts_of(self._tallies, bounds.reshape(-1, 3, 1).swapaxes(0, 1))
        self._sums = np.array(counts).sum(axis=1)
        self._due_ms = int(self._tallies[_NEXT_DUE].min(initial=NEVER))
        return counts

    async def _date(self, is_ready: Bools, now_ms: int, time_slice: TimeSlice) -> None:
        """Find since when groups wait that did not before; it stays so until they change.

        Only after the clock was set back a later message may be the older one.
        """
        self._ready[:, ~is_ready | (self._ready[0] > now_ms)] = _NOT_ASKED
        wanted, first = is_ready & (self._ready[0] < 0), self._tallies[_FIRST]
        if not wanted.any():
            return
        are_simple = wanted & (first >= 0)
        self._ready[0][are_simple], self._ready[1][are_simple] = 0, first[are_simple]
        for number, place in np.argwhere(wanted & ~are_simple).tolist():
            partition = self._partitions[number]
            name = self.names[place]
            since_ms, offset = ready_since(partition, name, now_ms)
            if not since_ms and partition.group(name).has_scheduler:
                since_ms = _ASK_AGAIN
            self._ready[:, number, place] = since_ms, offset
            if time_slice.is_over:
                await time_slice.next()

    # Queries

    def matching(self, part: str) -> Int64s:
        """Return the places of groups with a part in their names, in small letters."""
        found = self._matching.get(part)
        if found is None:
            places = [n for n, name in enumerate(self.names) if part in name.casefold()]
            found = self._matching[part] = np.array(places, np.int64)
        return found

    def totals(self, places: Int64s) -> GroupCounts:
        """Return the sums of the counts over groups."""
        return GroupCounts(*self._sums[:, places].sum(axis=1).tolist())

    def most_lag(self, places: Int64s, count: int) -> list[int]:
        """Return those of the groups that lag most, in this order; of equal ones, the first."""
        order = np.argsort(-self._sums[_LAG, places], kind="stable")[:count]
        most: list[int] = places[order].tolist()
        return most

    def counts(self, places: Sequence[int]) -> Iterator[GroupCounts]:
        """Yield the counts of groups over all partitions."""
        return map(GroupCounts._make, self._sums[:, places].T.tolist())

    def longest_waiting(self, places: Int64s, count: int) -> list[int]:
        """Return groups of which one may have waited longest, at most so many by each partition.

        Without consumers the one with the first message has.
        """
        since_ms, offsets = self._ready[:, :, places]
        times = np.where(since_ms > 0, since_ms, NEVER), np.where(offsets >= 0, offsets, NEVER)
        found: set[int] = set()
        for row in (row for rows in times for row in rows):
            first = np.argsort(row, kind="stable")[:count]
            found.update(places[first[row[first] < NEVER]].tolist())
        return sorted(found)

    async def since_ms(self, places: Sequence[int]) -> list[int]:
        """Return since when the oldest message of groups is ready, 0 where none is."""
        since_ms, offsets = self._ready[:, :, places].swapaxes(1, 2).tolist()
        unread = [
            (row, number)
            for row, of_group in enumerate(offsets)
            for number, offset in enumerate(of_group)
            if offset >= 0
        ]
        partitions = self._partitions
        read_ms = await self._ages.times_ms(
            [(partitions[number], offsets[row][number]) for row, number in unread]
        )
        for (row, number), time_ms in zip(unread, read_ms, strict=True):
            since_ms[row][number] = time_ms
        return [min((each for each in times if each > 0), default=0) for times in since_ms]
