"""Group progress, and the effect of a reset, as clients see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType

from goq.api.codec.request import time_us
from goq.api.schemas.groups import GroupOut, GroupPartitionOut, LeaseHolderOut, ResetPartitionOut
from goq.api.views.log_read import read_log
from goq.broker.group.messages_by_state import exact_counts, runs_of
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.clock import Clock, TimeSlice
from goq.delivery.events.transitions import MessageState
from goq.errors import InvalidInput

_MILLISECONDS: Final = range(10**12, 10**14)
"""Numbers that are meant as a time in milliseconds since 1970 where no offset is as high."""


class GroupProgressView:
    """Read-only views over a group in all partitions of a topic."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def group(self, topic: Topic, name: str) -> GroupOut:
        """Return a group's progress in total and by partition."""
        now_ms = self._clock.wall_ms()
        chosen = topic.partitions.here()
        counts, time_slice = [], TimeSlice()
        for partition in chosen:
            counts.append(await exact_counts(partition, name, now_ms))
            if time_slice.is_over:
                await time_slice.next()
        partitions = [
            GroupPartitionOut(
                partition=p.identity.number,
                cursor=p.group(name).cursor,
                end=or_unset(p.group(name).end_offset),
                **each._asdict(),
            )
            for p, each in zip(chosen, counts, strict=True)
        ]
        with_ready = [p for p, each in zip(chosen, counts, strict=True) if each.ready]
        holders: dict[str, int] = {}
        for partition in topic.partitions:
            for consumer, held in partition.group(name).leased_by_consumer().items():
                holders[consumer] = holders.get(consumer, 0) + held
        return GroupOut(
            group=name,
            lag=sum(p.lag for p in partitions),
            ready=sum(p.ready for p in partitions),
            leased=sum(p.leased for p in partitions),
            retry=sum(p.retry for p in partitions),
            blocked=sum(each.blocked for each in counts),
            scheduled=sum(p.scheduled for p in partitions),
            dead=sum(p.dead for p in partitions),
            oldest_ready_age_ms=await self._oldest_age_ms(with_ready, name, now_ms),
            members=[LeaseHolderOut(consumer, held) for consumer, held in sorted(holders.items())],
            partitions=partitions,
            settings=topic.settings_of(name).written_for_group(),
        )

    async def _oldest_age_ms(
        self, partitions: Sequence[Partition], name: str, now_ms: int
    ) -> int | None:
        """Return the age of the oldest ready message of partitions that have any."""
        times_us: list[int] = []
        for partition in partitions:
            async for run in runs_of(partition, name, MessageState.READY, 0, now_ms):
                reading = await read_log(partition, run.start, run.start + 1)
                times_us += [view.header.append_time_us for view in reading.frames]
                break
        return max(0, now_ms - min(times_us) // 1000) if times_us else None

    def reset(self, partition: Partition, name: str, target: ResetTarget) -> ResetPartitionOut:
        """Return the effect of a reset on messages that are done and messages that are not."""
        group, start = partition.group(name), partition.start_offset
        end = partition.end_offset if target.end is None else target.end
        return ResetPartitionOut(
            partition=partition.identity.number,
            cursor=group.cursor,
            to=target.start,
            redelivers=group.taken_count(target.start, end),
            skips=target.start - start - group.taken_count(start, target.start),
            voids=group.leased_count,
            end=or_unset(target.end),
            withholds=UNSET if target.end is None else partition.end_offset - target.end,
        )


def or_unset(offset: int | None) -> int | UnsetType:
    """Return an offset, or ``UNSET`` for ``None``, which an answer leaves out."""
    return UNSET if offset is None else offset


class ResetTarget(NamedTuple):
    """The offset where a group continues in a partition, and its end; ``None`` for no end."""

    start: int
    end: int | None


def reset_target(
    partition: Partition, to: str | int, end: str | int | None, now_us: int
) -> ResetTarget:
    """Return the offsets that ``to`` and ``end`` mean in a partition, within its bounds.

    A time means the first message, in log order, that was appended at that time or later. Raises
    ``InvalidInput``.
    """
    start = _offset_of(partition, to, "to", now_us)
    if end is None:
        return ResetTarget(start, None)
    stop = _offset_of(partition, end, "end", now_us)
    _check_order(to, end, now_us)
    return ResetTarget(start, max(start, stop))


def latest_time_us(to: str | int, end: str | int | None, now_us: int) -> int:
    """Return the later one of the times among two positions, 0 if neither is a time."""
    times = [
        _time_us(place, field, now_us)
        for place, field in ((to, "to"), (end, "end"))
        if place not in (None, "earliest", "latest") and _offset(place) is None
    ]
    return max(times, default=0)


def _check_order(to: str | int, end: str | int, now_us: int) -> None:
    """Raise ``InvalidInput`` if two offsets, or two times, are in the wrong order."""
    first, last = _offset(to), _offset(end)
    if first is None and last is None and not {to, end} & {"earliest", "latest"}:
        first, last = _time_us(to, "to", now_us), _time_us(end, "end", now_us)
    if first is not None and last is not None and last < first:
        raise InvalidInput("the end lies before the beginning", field="end")


def _offset(to: str | int) -> int | None:
    """Return an offset, -1 for one that is far out of bounds, None for anything else."""
    if isinstance(to, str) and to.isascii() and to.isdigit():
        return int(to) if len(to) < 20 else -1
    return to if isinstance(to, int) else None


def _offset_of(partition: Partition, to: str | int, field: str, now_us: int) -> int:
    start, end = partition.log_start_offset, partition.end_offset
    if to == "earliest":
        return start
    if to == "latest":
        return end
    offset = _offset(to)
    if offset is not None:
        if not 0 <= offset < 2**63:
            raise InvalidInput("an offset is a number from 0 on", field=field)
        if offset > end and offset in _MILLISECONDS:
            raise InvalidInput(
                f"a number is an offset, and {offset} is far past the end, {end};"
                " write a time as 2025-01-15T10:30:00Z or -15m",
                field=field,
            )
        return min(max(offset, start), end)
    return partition.message_reader.offset_for_time(_time_us(to, field, now_us), end)


def _time_us(to: str | int, field: str, now_us: int) -> int:
    """Return the time of a position that is no offset."""
    if isinstance(to, str) and to[:1].isalpha() and to != "now":
        raise InvalidInput(
            f"{to!r} is no position; write earliest, latest, an offset, or a time as"
            " 2025-01-15T10:30:00Z, 2025-01-15, now or -15m (a number is an offset)",
            field=field,
        )
    return time_us(to, field, now_us)
