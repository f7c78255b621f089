"""Group progress at an earlier time, as clients see it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from goq.api.codec.request import time_us
from goq.api.schemas.groups import GroupGapOut, GroupOut, GroupPartitionOut, LeaseHolderOut
from goq.api.views.group import or_unset
from goq.api.views.merge import group_unknown_at
from goq.broker.group.state_at_time import GroupAtTime, earliest_us, group_at, not_kept
from goq.broker.partition.partition import Partition
from goq.broker.retention.archiver import Archiver
from goq.broker.retention.tiered_log import tiered_logs
from goq.broker.topic.topic import Topic
from goq.clock import Clock
from goq.errors import CorruptData, InvalidInput, raise_failures
from goq.storage.log.reader import LogReader
from goq.units import format_time_us


class GroupAtTimeView:
    """Groups at earlier times; one at a time is rebuilt, which leaves threads for other work."""

    def __init__(self, clock: Clock, archive: Archiver) -> None:
        self._clock = clock
        self._archive = archive
        self._rebuilding = asyncio.Lock()

    async def group(self, topic: Topic, name: str, at: str, *, is_part: bool = False) -> GroupOut:
        """Return a group's progress at the time that ``at`` says, in total and by partition.

        What was being stored then counts: another answer for that time is the same.

        With ``is_part``, for another node, the result tells whether this node knows the group.

        Raises ``InvalidInput`` for a future time, ``HistoryNotRetained`` for a time before the
        retained history, and ``GroupNotFound`` if the group did not exist then.
        """
        now_us = self._clock.wall_us()
        at_us = max(0, time_us(at, "as_of", now_us))
        if at_us > now_us:
            raise InvalidInput(
                f"{at!r} is in the future; it is {format_time_us(now_us)} now", field="as_of"
            )
        partitions = topic.partitions.here()
        waits = [partition.wait_for_history_before(at_us + 1) for partition in partitions]
        raise_failures(await asyncio.gather(*waits, return_exceptions=True))
        async with self._rebuilding:
            found = await self._found(partitions, name, at_us)
        is_known = any(past.is_known for past in found)
        if not is_known and not is_part:
            raise group_unknown_at(topic.name, name, format_time_us(at_us))
        numbers = [partition.identity.number for partition in partitions]
        out = _out(name, at_us, dict(zip(numbers, found, strict=True)))
        if is_part:
            out.known = is_known
        return out

    async def _found(
        self, partitions: Sequence[Partition], name: str, at_us: int
    ) -> list[GroupAtTime]:
        """Return the group in each partition, from live events and archived ones without a gap."""
        tiered = [tiered_logs(self._archive, each, is_unbroken=True) for each in partitions]
        try:
            return await self._groups_at(tiered, name, at_us)
        except (CorruptData, OSError):  # an unreadable archive does not hide live events
            live = [(each.message_reader, each.event_reader) for each in partitions]
            return await self._groups_at(live, name, at_us)

    async def _groups_at(
        self, logs: Sequence[tuple[LogReader, LogReader]], name: str, at_us: int
    ) -> list[GroupAtTime]:
        in_thread = self._archive.in_thread
        kept_us = await in_thread(lambda: max((earliest_us(*each) for each in logs), default=0))
        if at_us < kept_us:
            raise not_kept(kept_us)
        return [await in_thread(partial(group_at, *each, name, at_us)) for each in logs]


def _out(name: str, at_us: int, by_number: Mapping[int, GroupAtTime]) -> GroupOut:
    found = by_number.values()
    partitions = [
        GroupPartitionOut(
            partition=number,
            cursor=past.cursor,
            end=or_unset(past.end),
            **{**past.counts._asdict(), "blocked": None},
        )
        for number, past in by_number.items()
    ]
    held: dict[str, int] = {}
    for past in found:
        for consumer, count in past.held.items():
            held[consumer] = held.get(consumer, 0) + count
    oldest_us = min([p.oldest_us for p in found if p.oldest_us is not None], default=None)
    return GroupOut(
        group=name,
        lag=sum(p.lag for p in partitions),
        ready=sum(p.ready for p in partitions),
        leased=sum(p.leased for p in partitions),
        retry=sum(p.retry for p in partitions),
        blocked=None,
        scheduled=sum(p.scheduled for p in partitions),
        dead=sum(p.dead for p in partitions),
        oldest_ready_age_ms=(
            None if oldest_us is None else max(0, at_us // 1000 - oldest_us // 1000)
        ),
        members=[LeaseHolderOut(consumer, count) for consumer, count in sorted(held.items())],
        partitions=partitions,
        as_of=format_time_us(at_us),
        incomplete=[
            GroupGapOut(number, each.reason, *map(_time, each[1:]))
            for number, past in by_number.items()
            for each in past.incomplete
        ],
    )


def _time(time_us: int | None) -> str | None:
    return None if time_us is None else format_time_us(time_us)
