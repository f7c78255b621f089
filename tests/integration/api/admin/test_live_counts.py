"""What is kept up to date for lookers is what counting everything again would give."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from heapq import nsmallest
from pathlib import Path
from typing import Any

import msgspec
import pytest

from goq import clock, limits
from goq.api.schemas.live import LiveGroupOut, LiveTopicOut
from goq.api.views.group_backlog import GroupQueues, ReadyAges
from goq.api.views.live import view as live_view
from goq.api.views.live.group_table import GroupTable
from goq.api.views.live.view import LiveView
from goq.broker.broker import Broker
from goq.broker.group.message_changes import MessageChanges
from goq.broker.partition.group_view import GroupCounts
from goq.broker.runtime.metrics import GroupCounters
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock, TimeSlice
from goq.errors import Conflict, GoqError
from goq.model import Message, Receipt
from goq.storage.scanner import Damage
from tests.support.broker.harness import broker_on, options, receipts, run, trim
from tests.support.effort import first_of

STEPS = 250
_HOUR_MS = 3_600_000
_FEW = 3
_PART = "-1"
_LOOKS = 50
_PAUSE_S = 0.01
_NAMES = [f"group-{n}" for n in range(8, 16)]


async def recounted_group(topic: Topic, name: str, now_ms: int) -> LiveGroupOut:
    counts, times_ms = [], []
    for partition in topic.partitions:
        counts.append(partition.group_counts(name, now_ms))
        if counts[-1].ready:
            times_ms.append(await ReadyAges().since_ms(partition, name, now_ms))
    total = GroupCounts(*map(sum, zip(*counts, strict=True)))
    counters = topic.stats.groups.get(name) or GroupCounters()
    return LiveGroupOut(
        name,
        counters.delivered_messages,
        counters.acked_messages,
        counters.nacked_messages,
        counters.expired_messages,
        total.dead,
        total.lag,
        total.ready,
        total.leased,
        total.retry,
        total.blocked,
        total.scheduled,
        min(filter(None, times_ms), default=0),
        topic.receiver.waiters.count(name),
    )


async def recounted(topic: Topic, now_ms: int) -> LiveTopicOut:
    """Return a topic with all of its groups, all of it counted anew."""
    here, stats = list(topic.partitions), topic.stats
    groups = [await recounted_group(topic, name, now_ms) for name in sorted(topic.groups)]
    return LiveTopicOut(
        name=topic.name,
        partitions=topic.partitions.count,
        offline=sum(not each.is_online for each in here),
        messages=sum(each.log_end_offset - each.log_start_offset for each in here),
        bytes=sum(each.size_bytes for each in here),
        published_messages=stats.published_messages,
        published_bytes=stats.published_bytes,
        delivered_messages=stats.delivered_messages,
        acked_messages=stats.acked_messages,
        nacked_messages=stats.nacked_messages,
        expired_messages=stats.expired_messages,
        last_append=stats.last_append_ms,
        group_count=len(topic.groups),
        groups=groups,
        lag=sum(group.lag for group in groups),
        leased=sum(group.leased for group in groups),
        scheduled=sum(group.scheduled for group in groups),
        oldest_ready=min(filter(None, (group.oldest_ready for group in groups)), default=0),
    )


def differences(told: LiveTopicOut, expected: LiveTopicOut) -> list[str]:
    """Return the figures that differ, in words."""
    names = [[each.group for each in topic.groups] for topic in (told, expected)]
    if names[0] != names[1]:
        return [f"groups {names[0]} instead of {names[1]}"]
    pairs: list[tuple[str, Any, Any]] = [("", told, expected)]
    pairs += zip(names[0], told.groups, expected.groups, strict=True)
    return [
        f"{name} {field}: {getattr(one, field)} instead of {getattr(other, field)}"
        for name, one, other in pairs
        for field in ({*one.__struct_fields__} - {"groups"})
        if getattr(one, field) != getattr(other, field)
    ]


class Traffic:
    """Everything that can happen to a topic and its groups, by chance."""

    def __init__(self, seed: int, broker: Broker, clock: ManualClock) -> None:
        self.chance = random.Random(seed)
        self.broker = broker
        self.clock = clock
        self.held: dict[str, list[Receipt]] = {}

    @property
    def topic(self) -> Topic:
        return self.broker.topic("t")

    async def begin(self) -> None:
        await self.broker.topic_admin.create("t", 2)
        self.held.clear()

    def group(self) -> str:
        return self.chance.choice(_NAMES)

    async def publish(self) -> None:
        is_plain = self.chance.random() < 0.5
        messages = []
        for number in range(self.chance.choice((1, 1, 4))):
            delay_ms = self.chance.choice((0, 0, 1_000, _HOUR_MS))
            kind = Message(
                b"value",
                self.chance.choice((None, b"a", b"b")),
                lane=self.chance.choice((None, 0, 2)),
                tenant=self.chance.choice((None, "x", "y")),
                deliver_at_ms=delay_ms and self.clock.wall_ms() + delay_ms,
            )
            messages.append(RoutedMessage(number % 2, Message(b"value") if is_plain else kind))
        await self.topic.publisher.publish_messages(messages)

    async def receive(self) -> None:
        group, count = self.group(), self.chance.randint(1, 4)
        await self.broker.group_admin.remember(self.topic, group)
        visibility_ms = self.chance.choice((1_000, 5_000, _HOUR_MS))
        found = await self.topic.receiver.receive(
            group, options(count, visibility_ms=visibility_ms)
        )
        self.held.setdefault(group, []).extend(receipts(found, self.topic.id))

    async def settle(self) -> None:
        group, settler = self.group(), self.topic.settler
        held = self.held.pop(group, [])
        if not held or group not in self.topic.groups:
            return
        kind = self.chance.randrange(5)
        if kind == 0:
            delay_ms = self.chance.choice((0, 1_000, _HOUR_MS))
            await settler.nack(group, held, delay_ms, "busy")
        elif kind == 1:
            await settler.reject(group, held, "bad")
        elif kind == 2:
            await settler.release(group, held)
        else:
            await settler.acknowledge(group, held)

    async def mark(self) -> None:
        partition = self.chance.choice(list(self.topic.partitions))
        if partition.end_offset == partition.start_offset:
            return
        offset = self.chance.randrange(partition.start_offset, partition.end_offset)
        change = MessageChanges(partition, offset, list(self.topic.groups))
        kind = self.chance.randrange(3)
        with suppress(Conflict):
            if kind == 0:
                await change.cancel("")
            elif kind == 1:
                await change.move(self.chance.randrange(3))
            else:
                await change.reschedule(self.clock.wall_ms() + 1_000)

    async def reset(self) -> None:
        group = self.group()
        await self.broker.group_admin.remember(self.topic, group)
        partition = self.chance.choice(list(self.topic.partitions))
        start, end = partition.start_offset, partition.end_offset
        offset = self.chance.randint(start, end)
        ends = self.chance.choice((None, self.chance.randint(offset, end)))
        await partition.reset(group, offset, ends)
        self.held.pop(group, None)

    async def change_groups(self) -> None:
        group = self.group()
        if group in self.topic.groups and self.chance.random() < 0.7:
            self.held.pop(group, None)
            await self.broker.group_admin.delete(self.topic, group)
        else:
            ordering = {"ordering": self.chance.choice(("key", "none"))}
            await self.broker.group_admin.configure(self.topic, group, ordering)

    async def lose(self) -> None:
        """Let retention delete, or the disk damage, what is in a partition."""
        partition = self.chance.choice(list(self.topic.partitions))
        if partition.start_offset == partition.end_offset:
            return
        offset = self.chance.randrange(partition.start_offset, partition.end_offset)
        if self.chance.random() < 0.5:
            await partition.trimmer.roll()
            await trim(partition, offset)
        else:
            partition.note_damage(Damage(Path("0.log"), 0, 1, offset, offset + 1, "bad page"))

    async def change_topic(self) -> None:
        if self.chance.random() < 0.5:
            weights = self.chance.choice(("strict", "3,2,1"))
            await self.broker.topic_admin.alter("t", {"priority.weights": weights})
        else:
            await self.broker.topic_admin.delete("t")
            await self.begin()

    def step_clock(self) -> None:
        """Let time pass, or set the clock; by seconds, as times of messages are less exact."""
        steps = (1_000, 3_000, 20_000, _HOUR_MS, -_HOUR_MS)
        self.clock.advance_ms(self.chance.choices(steps, (8, 8, 6, 1, 1))[0])
        for topic in self.broker.topics.values():
            for partition in topic.partitions:
                partition._timers._on_time()

    async def step(self) -> None:
        work = self.chance.choices(
            [
                *(self.publish, self.receive, self.settle, self.mark),
                *(self.reset, self.change_groups, self.lose, self.change_topic),
            ],
            (20, 30, 25, 6, 6, 4, 3, 1),
        )[0]
        await work()
        if self.chance.random() < 0.2:
            self.step_clock()


def with_queues(topic: Topic, group: LiveGroupOut) -> LiveGroupOut:
    queues = GroupQueues(topic, group.group)
    queues.add_leased()
    if not queues.is_known:
        return msgspec.structs.replace(group, lanes=None, tenants=None)
    return msgspec.structs.replace(
        group, lanes=queues.shown_lanes(), tenants=queues.shown_tenants()
    )


def named_differences(told: LiveTopicOut, topic: Topic, expected: LiveTopicOut) -> list[str]:
    """Return what is wrong with the groups that have ``_PART`` in their names."""
    groups = [with_queues(topic, each) for each in expected.groups if _PART in each.group]
    sums = {name: sum(getattr(each, name) for each in groups) for name in ("lag", "leased")}
    return [
        f"{field}: {found} instead of {wanted}"
        for field, found, wanted in (
            ("groups", told.groups, groups),
            ("lag", told.lag, sums["lag"]),
            ("leased", told.leased, sums["leased"]),
            ("group_count", told.group_count, expected.group_count),
        )
        if found != wanted
    ]


def few_differences(told: LiveTopicOut, expected: LiveTopicOut) -> list[str]:
    """Return what is wrong with a topic that is told with ``_FEW`` groups."""
    if len(expected.groups) <= _FEW:
        return differences(told, expected)
    most = nsmallest(_FEW, expected.groups, key=lambda each: (-each.lag, each.group))
    waiting = [each for each in expected.groups if each.oldest_ready == expected.oldest_ready]
    found = [] if told.groups[:_FEW] == most else ["not those that lag most"]
    if expected.oldest_ready and not any(each in told.groups for each in waiting):
        found.append("not the one that has waited longest")
    return found + differences(told, msgspec.structs.replace(expected, groups=told.groups))


async def look(view: LiveView, topics: Mapping[str, Topic]) -> None:
    """Compare all topics; what goes on in the background may come between the two counts."""
    found: list[str] = []
    for _ in range(_LOOKS):
        now_ms = view.clock.wall_ms()
        told = await view.topics(limits.LIVE_GROUPS_MAX)
        assert list(told) == sorted(told)
        few = await view.topics(_FEW)
        named = await view.named(frozenset(topics), _PART.upper(), limits.LIVE_GROUPS_MAX)
        found = [*map(str, told.keys() ^ topics.keys())]
        for name in told.keys() & topics.keys():
            expected = await recounted(topics[name], now_ms)
            found += differences(told[name], expected)
            found += few_differences(few[name], expected)
            found += named_differences(named[name], topics[name], expected)
        if not found:
            return
        await asyncio.sleep(_PAUSE_S)
    assert found == []


@pytest.mark.parametrize("seed", first_of(range(6), quick=3))
def test_whatever_happens_the_counts_are_those_of_a_recount(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_view, "_SHARED_S", 0.0)

    async def main() -> None:
        now = ManualClock()
        async with broker_on(tmp_path, clock=now) as broker:
            view, traffic = LiveView(broker, ReadyAges()), Traffic(seed, broker, now)
            await traffic.begin()
            for _ in range(STEPS):
                await traffic.step()
                if traffic.chance.random() < 0.5:
                    await look(view, broker.topics)

    run(main())


@pytest.mark.parametrize("seed", first_of(range(4), quick=2))
def test_what_happens_between_two_slices_of_a_look_is_counted_by_the_next(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_view, "_SHARED_S", 0.0)
    monkeypatch.setattr(clock, "SLICE_S", 0.0)
    turns: list[int] = []
    yields = TimeSlice.next

    async def main() -> None:
        now = ManualClock()
        async with broker_on(tmp_path, clock=now) as broker:
            view, traffic = LiveView(broker, ReadyAges()), Traffic(seed, broker, now)
            left = 0

            async def next_slice(each: TimeSlice) -> None:
                nonlocal left
                if left:
                    left -= 1
                    turns.append(left)
                    with suppress(GoqError):  # a partition may be closed just now
                        await traffic.step()
                await yields(each)

            monkeypatch.setattr(TimeSlice, "next", next_slice)
            await traffic.begin()
            for _ in range(STEPS // 2):
                await traffic.step()
                left = traffic.chance.randint(1, 4)
                await view.topics(limits.LIVE_GROUPS_MAX)
                left = 0
                await look(view, broker.topics)

    run(main())
    assert len(turns) > STEPS // 2


def test_a_look_at_a_topic_gives_others_a_turn_before_it_counts_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "SLICE_S", 0.0)
    steps: list[str] = []
    count, yields = GroupTable._count, TimeSlice.next

    async def counted(table: GroupTable, *arguments: Any) -> None:
        steps.append("count")
        await count(table, *arguments)

    async def next_slice(each: TimeSlice) -> None:
        steps.append("turn")
        await yields(each)

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topic_admin.create("t", 2)
            view = LiveView(broker, ReadyAges())
            monkeypatch.setattr(GroupTable, "_count", counted)
            monkeypatch.setattr(TimeSlice, "next", next_slice)
            await view.topics(limits.LIVE_GROUPS_MAX)

    run(main())
    assert steps[:4] == ["turn", "turn", "turn", "count"]
