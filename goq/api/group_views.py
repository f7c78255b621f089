"""What people see of groups: progress, what a reset would do, messages by state."""

from __future__ import annotations

from goq.api.bodies import (
    GroupOut,
    GroupPartitionOut,
    MemberOut,
    MessageOut,
    MessagesOut,
    ResetPartitionOut,
)
from goq.api.messages_out import messages_json
from goq.broker.partition import Partition
from goq.broker.topic import Topic
from goq.clock import Clock
from goq.delivery.group import Group
from goq.delivery.parts import Part
from goq.errors import DamagedData, InvalidInput
from goq.model import MessageId
from goq.units import format_time_us, parse_time_us

_STATES = ("ready", "leased", "retry")


class GroupViews:
    """Read-only views over a group in all partitions of a topic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def group(self, topic: Topic, name: str) -> GroupOut:
        """Return a group's progress in total and by partition."""
        now_ms = self._clock.wall_ms()
        partitions = [self._partition(p, p.state.group(name), now_ms) for p in topic.partitions]
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
            oldest_ready_age_ms=self._oldest_age_ms(topic, name, now_ms),
            members=[MemberOut(consumer, held) for consumer, held in sorted(holders.items())],
            partitions=partitions,
        )

    def _partition(self, partition: Partition, group: Group, now_ms: int) -> GroupPartitionOut:
        state = partition.state
        cursor = max(group.cursor, state.start_offset)
        behind = max(0, state.end_offset - cursor)
        unreadable = sum(
            max(0, min(r.end, state.end_offset) - max(r.start, cursor)) for r in state.corrupt
        )
        waiting = group.retries.message_count
        due = sum(p.end - p.start for p in group.retries if p.time_ms <= now_ms)
        return GroupPartitionOut(
            partition=partition.identity.number,
            cursor=cursor,
            lag=behind + group.leased_count + waiting,
            ready=behind - unreadable + due,
            leased=group.leased_count,
            retry=waiting - due,
        )

    def _oldest_age_ms(self, topic: Topic, name: str, now_ms: int) -> int | None:
        oldest_us: int | None = None
        for partition in topic.partitions:
            for start, _end, _attempt in partition.state.candidates(name, now_ms, 1):
                try:
                    time_us = partition.messages.reader.time_of(start)
                except DamagedData:
                    continue
                oldest_us = time_us if oldest_us is None else min(oldest_us, time_us)
        return None if oldest_us is None else max(0, now_ms - oldest_us // 1000)

    def reset(self, partition: Partition, name: str, offset: int) -> ResetPartitionOut:
        """Return what going on from ``offset`` means for what was done and what was not."""
        group = partition.state.group(name)
        return ResetPartitionOut(
            partition=partition.identity.number,
            cursor=group.cursor,
            to=offset,
            redelivers=max(0, group.cursor - offset),
            skips=max(0, offset - group.cursor),
            voids=group.leased_count,
        )

    def peek(
        self, topic: Topic, name: str, state: str, limit: int, after: str | None
    ) -> MessagesOut:
        """Return messages in one state, and the id to go on behind."""
        if state not in _STATES:
            raise InvalidInput(
                f"{state[:50]!r} is not a state; there are {', '.join(_STATES)}", field="state"
            )
        behind = (-1, -1) if after is None else MessageId.parse(after)[1:]
        messages: list[MessageOut] = []
        for partition in topic.partitions:
            number = partition.identity.number
            for start, end, attempt, time_ms in self._runs(partition, name, state):
                first = max(start, behind[1] + 1) if number == behind[0] else start
                if number < behind[0] or first >= end:
                    continue
                room = limit - len(messages)
                if room <= 0:
                    return MessagesOut(messages, messages[-1].id if messages else after)
                end = min(end, first + room)
                reading = partition.read(first, messages_max=end - first)
                for out in messages_json(topic.name, number, reading.frames, first, end):
                    out.state, out.attempt = state, attempt
                    if state == "leased":
                        out.lease_until = format_time_us(time_ms * 1000)
                    elif state == "retry":
                        out.due = format_time_us(time_ms * 1000)
                    messages.append(out)
        return MessagesOut(messages)

    def _runs(self, partition: Partition, name: str, state: str) -> list[Part]:
        """Return the offsets in a state, in order; attempts are those already made."""
        group, now_ms = partition.state.group(name), self._clock.wall_ms()
        if state == "leased":
            return sorted(part for lease in group.leases.values() for part in lease.parts)
        if state == "retry":
            return [part for part in group.retries if part.time_ms > now_ms]
        spans = partition.state.candidates(name, now_ms, partition.state.end_offset + 1)
        return sorted(Part(start, end, attempt - 1, now_ms) for start, end, attempt in spans)


def reset_target(partition: Partition, to: str | int, now_us: int) -> int:
    """Return the offset that ``to`` means in a partition, within what it holds."""
    start, end = partition.messages.start_offset, partition.state.end_offset
    if to == "earliest":
        return start
    if to == "latest":
        return end
    if isinstance(to, str) and to.isascii() and to.isdigit() and len(to) < 19:
        to = int(to)
    if isinstance(to, int):
        if to < 0:
            raise InvalidInput(f"{to} is no offset", field="to")
        return min(max(to, start), end)
    time_us = parse_time_us(to, now_us=now_us, field="to")
    return partition.messages.reader.find_time(time_us, end)
