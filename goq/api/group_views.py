"""What people see of groups: progress, what a reset would do, messages by state."""

from __future__ import annotations

from goq import limits
from goq.api.bodies import (
    GroupOut,
    GroupPartitionOut,
    MemberOut,
    MessagesOut,
    ResetPartitionOut,
)
from goq.api.log_reading import read_log
from goq.api.messages_out import JsonMessages, messages_json
from goq.api.reading import time_us
from goq.broker.counts import group_counts
from goq.broker.partition import Partition
from goq.broker.topic import Topic
from goq.clock import Clock
from goq.delivery.parts import Part, gaps
from goq.errors import InvalidInput
from goq.model import MessageId
from goq.units import format_time_us

_STATES = ("ready", "leased", "retry")
_WINDOW = 100_000  # offsets looked at in one go


class GroupViews:
    """Read-only views over a group in all partitions of a topic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def group(self, topic: Topic, name: str) -> GroupOut:
        """Return a group's progress in total and by partition."""
        now_ms = self._clock.wall_ms()
        partitions = [
            GroupPartitionOut(
                partition=p.identity.number,
                cursor=p.state.group(name).taken.floor,
                **group_counts(p, name, now_ms)._asdict(),
            )
            for p in topic.partitions
        ]
        holders: dict[str, int] = {}
        for partition in topic.partitions:
            for lease in partition.state.group(name).leases.values():
                held = holders.get(lease.consumer, 0)
                holders[lease.consumer] = held + lease.parts.message_count
        return GroupOut(
            group=name,
            lag=sum(p.lag for p in partitions),
            ready=sum(p.ready for p in partitions),
            leased=sum(p.leased for p in partitions),
            retry=sum(p.retry for p in partitions),
            blocked=sum(p.blocked for p in partitions),
            scheduled=sum(p.scheduled for p in partitions),
            oldest_ready_age_ms=await self._oldest_age_ms(topic, name, now_ms),
            members=[MemberOut(consumer, held) for consumer, held in sorted(holders.items())],
            partitions=partitions,
            settings=topic.settings_of(name).written_for_group(),
        )

    async def _oldest_age_ms(self, topic: Topic, name: str, now_ms: int) -> int | None:
        times_us: list[int] = []
        for partition in list(topic.partitions):
            runs = await self._ready_runs(partition, name, now_ms, -1, 1)
            for run in runs[:1]:
                reading = await read_log(partition, run.start, run.start + 1)
                times_us += [view.header.append_time_us for view in reading.frames]
        return max(0, now_ms - min(times_us) // 1000) if times_us else None

    def reset(self, partition: Partition, name: str, offset: int) -> ResetPartitionOut:
        """Return what going on from ``offset`` means for what was done and what was not."""
        state = partition.state
        group = state.group(name)
        before = offset - state.start_offset
        return ResetPartitionOut(
            partition=partition.identity.number,
            cursor=group.taken.floor,
            to=offset,
            redelivers=group.taken.count(offset, state.end_offset),
            skips=before - group.taken.count(state.start_offset, offset),
            voids=group.leased_count,
        )

    async def peek(
        self, topic: Topic, name: str, state: str, limit: int, after: str | None
    ) -> MessagesOut:
        """Return messages in one state, and the id to go on behind if there are more."""
        if state not in _STATES:
            raise InvalidInput(
                f"{state[:50]!r} is not a state; there are {', '.join(_STATES)}", field="state"
            )
        after_partition, after_offset = _position(after, topic.name)
        found = JsonMessages(limits.READ_BYTES_MAX)
        for partition in topic.partitions[max(0, after_partition) :]:
            number = partition.identity.number
            behind = after_offset if number == after_partition else -1
            for run in await self._runs(partition, name, state, behind, limit):
                first = max(run.start, behind + 1)
                while first < run.end:
                    if len(found) >= limit:
                        return MessagesOut(found.messages, found.last_id)
                    last = min(run.end, first + limit - len(found))
                    reading = await read_log(partition, first, last)
                    last = min(last, reading.next_offset)
                    for out in messages_json(topic, number, reading.frames, first, last):
                        out.state, out.attempt = state, run.attempt
                        if state == "leased":
                            out.lease_until = format_time_us(run.time_ms * 1000)
                        elif state == "retry":
                            out.due = format_time_us(run.time_ms * 1000)
                        if not found.add(out):
                            return MessagesOut(found.messages, found.last_id)
                    if last <= first:
                        break  # the log was cut meanwhile
                    first = last
        return MessagesOut(found.messages)

    async def _runs(
        self, partition: Partition, name: str, state: str, behind: int, count: int
    ) -> list[Part]:
        """Return the offsets in a state, in order; attempts are those already made."""
        group, now_ms = partition.state.group(name), self._clock.wall_ms()
        if state == "leased":
            return sorted(part for lease in group.leases.values() for part in lease.parts)
        if state == "retry":
            return [part for part in group.retries if part.time_ms > now_ms]
        return await self._ready_runs(partition, name, now_ms, behind, count)

    async def _ready_runs(
        self, partition: Partition, name: str, now_ms: int, behind: int, count: int
    ) -> list[Part]:
        """Return what is ready behind an offset, in order of offset: at least ``count`` of it."""
        state = partition.state
        group = state.group(name)
        due = [p for p in group.retries if p.time_ms <= now_ms and p.end > behind + 1]
        fresh: list[Part] = []
        at, left = max(behind + 1, state.start_offset), count
        while left > 0 and at < state.end_offset:
            stop = min(at + _WINDOW, state.end_offset)
            waiting = [Part(s, e, 0, 0) for s, e in await partition.waiting(at, stop)]
            for run in state.deliverable(group, at, stop):
                for start, end in gaps(*run, waiting):
                    fresh.append(Part(start, end, 0, now_ms))
                    left -= end - start
            at = stop
        return sorted([*due, *fresh])


def _position(after: str | None, topic: str) -> tuple[int, int]:
    """Return the partition and offset to go on behind."""
    if after is None:
        return -1, -1
    try:
        message_id = MessageId.parse(after)
    except InvalidInput as error:
        error.field = "after"
        raise
    if message_id.topic != topic:
        raise InvalidInput(f"{after[:300]} is not in topic {topic}", field="after")
    return message_id.partition, message_id.offset


def reset_target(partition: Partition, to: str | int, now_us: int) -> int:
    """Return the offset that ``to`` means in a partition, within what it holds."""
    start, end = partition.messages.start_offset, partition.state.end_offset
    if to == "earliest":
        return start
    if to == "latest":
        return end
    if isinstance(to, str) and to.isascii() and to.isdigit():
        to = int(to) if len(to) < 20 else -1
    if isinstance(to, int):
        if not 0 <= to < 2**63:
            raise InvalidInput("an offset is a number from 0 on", field="to")
        return min(max(to, start), end)
    return partition.messages.reader.find_time(time_us(to, "to", now_us), end)
