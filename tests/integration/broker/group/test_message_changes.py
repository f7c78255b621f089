"""Random changes to single messages against a dictionary, live and as a crash leaves them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from goq.broker.group.message_changes import MessageChanges
from goq.broker.partition.delayed_reader import DelayedMessage, DelayedReader
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.errors import Conflict, GoqError
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from tests.support.broker.harness import (
    BrokenDisk,
    MemoryMetadata,
    ack,
    broker_on,
    leased,
    options,
    quiet,
    reopened,
    run,
)
from tests.support.broker.partition_internals import state_of
from tests.support.effort import first_of
from tests.support.eventually import until

HOUR_MS = 3_600_000
FOREVER_MS = 2**62


@dataclass
class Known:
    """A message as a dictionary would have it; ``due_ms`` 0 if it was never delayed."""

    due_ms: int
    lane: int
    is_waiting: bool
    is_cancelled: bool = False


class Model:
    """A partition and what should hold for its messages."""

    def __init__(self, topic: Topic, clock: ManualClock, seed: int) -> None:
        self.rng, self.clock, self.topic = random.Random(seed), clock, topic
        self.messages: dict[int, Known] = {}

    @property
    def partition(self) -> Partition:
        return self.topic.partitions[0]

    def some_time_ms(self) -> int:
        spread_ms = self.rng.choice([1000, HOUR_MS // 4, HOUR_MS, 30 * HOUR_MS])
        return self.clock.wall_ms() + 1 + self.rng.randrange(spread_ms)

    async def publish(self) -> None:
        count = self.rng.choice([1, 3, 12])
        if self.rng.random() < 0.2:
            columns, due, lanes = Columns([b""] * count), [0] * count, [1] * count
        else:
            lanes = [self.rng.randrange(3) for _ in range(count)]
            due = [self.rng.choice([0, self.some_time_ms()]) for _ in range(count)]
            columns = Columns([b""] * count, deliver_at_ms=due, lanes=lanes)
        frame = FrameView.parse(encode_frame(columns))
        (stored,) = await self.topic.publisher.publish_frames([(0, frame)])
        for index in range(count):
            known = Known(due[index], lanes[index], due[index] > 0)
            self.messages[stored.offset + index] = known

    async def change(self) -> None:
        if not self.messages:
            return
        offset = self.rng.choice(list(self.messages))
        known, marking = self.messages[offset], MessageChanges(self.partition, offset, ())
        kind = self.rng.randrange(3)
        try:
            if kind == 0:
                await marking.cancel("")
                known.is_cancelled, known.is_waiting = True, False
            elif kind == 1:
                lane = self.rng.randrange(3)
                await marking.move(lane)
                assert not known.is_cancelled
                known.lane = lane
            else:
                due_ms = self.rng.choice([self.some_time_ms(), self.clock.wall_ms() - HOUR_MS])
                await marking.reschedule(due_ms)
                assert known.is_waiting
                known.due_ms = due_ms
        except Conflict:
            assert known.is_cancelled or (kind == 2 and not known.is_waiting)

    async def pass_time(self) -> None:
        self.clock.advance_ms(self.rng.choice([0, 10, 1000, HOUR_MS // 2, 2 * HOUR_MS]))
        await self.mature()

    async def mature(self) -> None:
        for known in self.messages.values():
            known.is_waiting &= known.due_ms > self.clock.wall_ms()

        def is_done() -> bool:
            self.partition._timers._on_time()
            return self.partition.delayed_count == len(self.waiting())

        await until(is_done)

    def waiting(self) -> list[DelayedMessage]:
        return sorted(DelayedMessage(k.due_ms, o) for o, k in self.messages.items() if k.is_waiting)

    async def check(self) -> None:
        await self.mature()
        waiting, end = self.waiting(), self.partition.end_offset
        offsets = sorted(offset for _, offset in waiting)
        low, high = sorted(self.rng.randrange(end + 1) for _ in range(2))
        runs = await self.partition.read_delayed(partial(DelayedReader.runs, start=low, end=high))
        assert [o for run in runs for o in range(*run)] == [o for o in offsets if low <= o < high]
        first = await self.partition.read_delayed(partial(DelayedReader.first, start=low, end=high))
        assert first == min((o for o in offsets if low <= o < high), default=None)
        count, after = self.rng.choice([1, 2, 7, 1000]), DelayedMessage(0, -1)
        until_ms = self.rng.choice([FOREVER_MS, self.some_time_ms()])
        found: list[DelayedMessage] = []
        while page := await self.partition.read_delayed(
            partial(DelayedReader.earliest, after=after, until_ms=until_ms, count=count)
        ):
            assert len(page) <= count
            found += page
            after = page[-1]
        assert found == [pending for pending in waiting if pending.due_ms < until_ms]

    async def check_after_a_crash(self, directory: Path) -> None:
        """Compare with what a node would find that starts on the folder as it is now."""
        await quiet(self.partition)
        opened, live = reopened(directory), state_of(self.partition)
        assert opened.state.cancelled == live.cancelled
        assert opened.state.moved == live.moved
        assert opened.state.rescheduled == live.rescheduled
        assert opened.state.maturity.pairs == live.maturity.pairs
        assert sorted(opened.state.maturity.exempt) == sorted(live.maturity.exempt)


@pytest.mark.parametrize("seed", first_of(range(25), quick=10))
def test_random_changes_give_what_a_dictionary_says(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            model = Model(await broker.topic_admin.create("t", 1), clock, seed)
            for _ in range(40):
                steps = [model.publish, model.change, model.change, model.pass_time]
                await model.rng.choice(steps)()
                await model.check()
            await model.check_after_a_crash(tmp_path / "topics" / "t" / "0")
            clock.advance_ms(100 * HOUR_MS)
            await model.mature()
            found = leased(await model.topic.receiver.receive("g", options(10_000)))
            offsets = [offset for offset, _, _ in found]
            wanted = {o: k for o, k in model.messages.items() if not k.is_cancelled}
            assert sorted(offsets) == sorted(wanted)
            lanes = [wanted[offset].lane for offset in offsets]
            assert lanes == sorted(lanes)

    run(main())


@pytest.mark.parametrize("seed", range(10))
def test_changes_outlive_restarts(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        clock, metadata, model = ManualClock(), MemoryMetadata(), None
        for _ in range(3):
            async with broker_on(tmp_path, clock=clock, metadata=metadata) as broker:
                topic = await broker.topic_admin.topic_for_publish("t")
                model = model or Model(topic, clock, seed)
                model.topic = topic
                await model.check()
                for _ in range(12):
                    await model.rng.choice([model.publish, model.change, model.pass_time])()
                await model.check()
        assert model is not None
        clock.advance_ms(100 * HOUR_MS)
        async with broker_on(tmp_path, clock=clock, metadata=metadata) as broker:
            model.topic = broker.topic("t")
            await model.mature()
            found = leased(await model.topic.receiver.receive("g", options(10_000)))
            wanted = {o: k for o, k in model.messages.items() if not k.is_cancelled}
            assert sorted(offset for offset, _, _ in found) == sorted(wanted)
            lanes = [wanted[offset].lane for offset, _, _ in found]
            assert lanes == sorted(lanes)

    run(main())


def test_a_change_is_answered_only_when_it_is_durable(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t", 1)
            frame = FrameView.parse(encode_frame(Columns([b"a"])))
            await topic.publisher.publish_frames([(0, frame)])
            disk.fail("append", "events")
            with pytest.raises(GoqError):
                await MessageChanges(topic.partitions[0], 0, ()).cancel("")
            disk.heal()
            await until(lambda: topic.partitions[0].is_online)
            (partition,) = topic.partitions
            assert 0 not in state_of(partition).cancelled
            found = await topic.receiver.receive("g", options())
            assert [value for _, _, value in leased(found)] == [b"a"]
            await ack(topic, "g", found)
            with pytest.raises(Conflict):
                await MessageChanges(partition, 0, topic.groups).cancel("")

    run(main())


def test_an_offline_partition_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 1)
            frame = FrameView.parse(encode_frame(Columns([b"a"])))
            await topic.publisher.publish_frames([(0, frame)])
            (partition,) = topic.partitions
        for change in (
            MessageChanges(partition, 0, ()).cancel(""),
            MessageChanges(partition, 0, ()).move(0),
        ):
            with pytest.raises((GoqError, RuntimeError)):
                await change

    run(main())
