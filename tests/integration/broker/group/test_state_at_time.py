"""A group asked for as it was at a moment is as it was seen at that moment."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from goq import limits
from goq.api.views.group import GroupProgressView
from goq.api.views.group_at_time import GroupAtTimeView
from goq.broker.events import writer
from goq.broker.events.replay import read_events
from goq.broker.group.state_at_time import replayed_to
from goq.broker.partition.partition import Partition
from goq.clock import ManualClock
from goq.delivery.dedup.producer_table import ProducerTable
from goq.delivery.events.event import SNAPSHOT_PARTS, SnapshotEnded, SnapshotStarted
from goq.delivery.partition_state import PartitionState
from goq.errors import GroupNotFound, HistoryNotRetained, MessageNotFound
from goq.storage.log.time_lookup import read_backward
from goq.units import format_time_us
from tests.integration.broker.test_random_history import live
from tests.support.broker.harness import MemoryMetadata, ack, broker_on, options, publish, run
from tests.support.broker.partition_internals import event_log, event_writer, ready_state, state_of
from tests.support.broker.random_history import GROUP, TOPIC, Life
from tests.support.delivery.model import canonical
from tests.support.effort import first_of
from tests.support.eventually import until

OTHER = "h"
STEPS = 25
MOMENTS = 5
LIVES = 4


class Seen(NamedTuple):
    """What was seen of a group at a time; None where it did not exist by what is written."""

    time_us: int
    group: str
    found: dict[str, Any] | None


class Watched:
    """A life whose groups are looked at now and then.

    What was seen counts as long as its time is later than all before and earlier than all behind:
    where the clock steps back over it, it is forgotten.
    """

    def __init__(self, seed: int, clock: ManualClock) -> None:
        self.life = Life(seed, clock)
        self.clock = clock
        self.seen: list[Seen] = []
        self._latest_us = 0

    async def act(self, metadata: MemoryMetadata, *, trims: bool) -> None:
        """Do some things, and then something rarer."""
        for _ in range(STEPS):
            with contextlib.suppress(MessageNotFound):  # a mark of one that retention deleted
                await live(self.life, metadata, 1, alters=False)
            self._latest_us = max(self._latest_us, self.clock.now_us)
            self.seen = [seen for seen in self.seen if seen.time_us < self.clock.now_us]
        topic, chance = self.life.topic, self.life.chance
        kind = chance.choice(("other", "other", "reset", "delete", "snapshot", "trim"))
        partition = chance.choice(topic.partitions.here())
        if kind == "other":
            await self.life.broker.group_admin.remember(topic, OTHER)
            found = await topic.receiver.receive(OTHER, options(chance.randint(1, 20)))
            if found and chance.random() < 0.5:
                await ack(topic, OTHER, found)
        elif kind == "reset":
            state = state_of(partition)
            group = chance.choice((GROUP, OTHER))
            offset = chance.randint(state.start_offset, state.end_offset)
            end = chance.choice((None, chance.randint(offset, state.end_offset)))
            await partition.reset(group, offset, end)
        elif kind == "delete":
            await self.life.broker.group_admin.delete(topic, OTHER)
        elif kind == "snapshot":
            event_writer(partition).record_snapshot()
        elif trims:
            await partition.trimmer.roll()
            end = partition.log_end_offset
            waits = await partition.read_delayed(lambda waiting: waiting.first(0, end))
            await partition.trimmer.trim(end if waits is None else waits)

    async def look(self) -> None:
        """See how the groups are, once all that was done is written."""
        topic = self.life.topic
        if self.clock.now_us < self._latest_us and self.life.chance.random() < 0.5:
            self.clock.now_us = self._latest_us
        self.clock.now_us += 1_000
        await until(self._has_matured)
        await until(lambda: not any(p.outbox_entries for p in topic.partitions))
        await self.life._come_to_rest()
        if self.clock.now_us > self._latest_us:
            for name in (GROUP, OTHER):
                exists = any(name in state_of(p).groups for p in topic.partitions)
                found = await GroupProgressView(self.clock).group(topic, name) if exists else None
                self.seen.append(Seen(self.clock.now_us, name, found and plain(found)))
        self.clock.now_us += 1_000

    def _has_matured(self) -> bool:
        """Let what is due mature, and say whether all did: some may have to be read before."""
        self.life.tick()
        schedules = [ready_state(p).schedule for p in self.life.topic.partitions]
        times_ms = [schedule.next_ms() for schedule in schedules]
        return all(ms is None or ms > self.clock.wall_ms() for ms in times_ms) and not any(
            schedule._is_loading for schedule in schedules
        )

    async def check(self, *, trims: bool) -> int:
        """Ask for all that was seen; return how much of it could be told."""
        told = 0
        for seen in self.seen:
            views, at = (
                GroupAtTimeView(self.clock, self.life.broker.archive),
                format_time_us(seen.time_us),
            )
            try:
                found = plain(await views.group(self.life.topic, seen.group, at))
            except GroupNotFound:
                assert seen.found is None
                continue
            except HistoryNotRetained:
                assert trims
                continue
            assert found.pop("as_of") == at
            incomplete = found.pop("incomplete")
            assert trims or not incomplete
            if not incomplete:
                assert seen.found is not None, found
                wanted = expected(seen.found)
                if trims:
                    wanted, found = without_schedule(wanted), without_schedule(found)
                assert {name: found[name] for name in wanted} == wanted
                told += 1
        return told


def plain(found: Any) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.to_builtins(found)
    return answer


def expected(seen: dict[str, Any]) -> dict[str, Any]:
    """Return what is to be told of what was seen: not what was blocked, nor the settings."""
    known = {name: value for name, value in seen.items() if name != "settings"}
    if known["blocked"]:
        del known["oldest_ready_age_ms"]  # that is of the first that is not blocked
    partitions = [{**p, "blocked": None} for p in seen["partitions"]]
    return {**known, "blocked": None, "partitions": partitions}


def without_schedule(found: dict[str, Any]) -> dict[str, Any]:
    """Return what does not depend on rows that may be deleted with what a group was set past."""
    return {
        "left": found["lag"] + found["scheduled"],
        **{name: found[name] for name in ("leased", "retry", "dead", "members")},
        "cursors": [partition["cursor"] for partition in found["partitions"]],
    }


def one_past(path: Path, seed: int, moments: int, *, trims: bool = False) -> int:
    async def main() -> int:
        metadata, clock = MemoryMetadata(), ManualClock()
        watched, told = Watched(seed, clock), 0
        for turn in range(LIVES):
            async with broker_on(path, metadata=metadata, clock=clock) as broker:
                watched.life.bind(broker)
                if not turn:
                    topic = await broker.topic_admin.create(TOPIC, 2)
                    await broker.group_admin.remember(topic, GROUP)
                for _ in range(moments):
                    await watched.act(metadata, trims=trims)
                    await watched.look()
                told += await watched.check(trims=trims)
        return told

    return run(main())


@pytest.fixture
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let segments of events roll and snapshots take turns, and look at frames one by one."""
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 8 * limits.KIB)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 10)
    monkeypatch.setattr(writer, "GROUPS_AT_ONCE", 1)


@pytest.mark.usefixtures("_short_logs")
@pytest.mark.parametrize("seed", first_of(range(6), quick=1))
def test_the_past_is_as_it_was_seen(tmp_path: Path, seed: int) -> None:
    assert one_past(tmp_path, seed, MOMENTS)


@pytest.mark.usefixtures("_short_logs")
@pytest.mark.parametrize("seed", first_of(range(20, 24), quick=1))
def test_what_retention_left_of_the_past_is_as_it_was_seen(tmp_path: Path, seed: int) -> None:
    one_past(tmp_path, seed, MOMENTS, trims=True)


def naive(partition: Partition, end: int) -> PartitionState:
    """Apply all events before ``end`` from the beginning on, and no snapshot."""
    state = PartitionState()
    for stored in read_events(partition.event_reader, 0, end):
        assert stored is not None
        if not isinstance(stored.event, (SnapshotStarted, SnapshotEnded, *SNAPSHOT_PARTS)):
            state.apply(stored.event, stored.sequence, stored.epoch)
    return state


def without_producers(state: PartitionState) -> Any:
    """Return what events say of a state: its producers are in the messages, and in snapshots."""
    state.producers = ProducerTable()
    state.extend_to(state.known_end())
    return canonical(state)


@pytest.mark.usefixtures("_short_logs")
@pytest.mark.parametrize("seed", first_of(range(40, 44), quick=1))
def test_a_snapshot_and_what_follows_make_the_state_that_all_events_make(
    tmp_path: Path, seed: int
) -> None:
    async def main() -> None:
        metadata, clock = MemoryMetadata(), ManualClock()
        watched = Watched(seed, clock)
        async with broker_on(tmp_path, metadata=metadata, clock=clock) as broker:
            watched.life.bind(broker)
            topic = await broker.topic_admin.create(TOPIC, 1)
            await broker.group_admin.remember(topic, GROUP)
            for _ in range(8):
                await watched.act(metadata, trims=False)
                await watched.look()
            (partition,) = topic.partitions
            events = partition.event_reader
            assert len(event_log(partition).segments) > 1
            for place in read_backward(events, partition.event_high_watermark):
                end = place.view.header.end_offset
                states = replayed_to(events, end).state, naive(partition, end)
                found, wanted = (without_producers(state) for state in states)
                assert found == wanted

    run(main())


@pytest.mark.usefixtures("_short_logs")
def test_the_past_is_told_while_messages_come_and_go(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create(TOPIC, 1)
            (partition,) = topic.partitions
            views = GroupAtTimeView(clock, broker.archive)
            await publish(topic, b"a")
            await ack(topic, GROUP, await topic.receiver.receive(GROUP, options()))
            clock.now_us += 1_000
            asked: list[asyncio.Task[Any]] = []
            for number in range(60):
                await publish(topic, *[b"x"] * 10)
                asked.append(asyncio.ensure_future(views.group(topic, GROUP, "now")))
                await ack(
                    topic, GROUP, await topic.receiver.receive(GROUP, options(number % 20 + 1))
                )
                clock.now_us += 1_000
                if number % 10 == 9:
                    await partition.trimmer.roll()
                    await partition.trimmer.trim(partition.log_end_offset - 10)
            found = await asyncio.gather(*asked, return_exceptions=True)
            told = [each for each in found if not isinstance(each, HistoryNotRetained)]
            assert told
            for each in told:
                assert each.lag == each.ready + each.leased + each.retry

    run(main())


@pytest.mark.long
@pytest.mark.usefixtures("_short_logs")
@pytest.mark.parametrize("seed", range(100, 160))
def test_the_past_is_as_it_was_seen_at_length(tmp_path: Path, seed: int) -> None:
    one_past(tmp_path, seed, 15, trims=bool(seed % 2))
