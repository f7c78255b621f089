"""The runner of schedules, with a clock that the test moves and publishes that it sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from goq import limits
from goq.clock import ManualClock
from goq.errors import Conflict, GoqError, InvalidInput, NotAllowed, NotFound, Unavailable
from goq.schedules.schedule_manager import ScheduleManager
from goq.schedules.schedule_record import ScheduleRecord, ScheduleRun
from goq.schedules.schedule_runner import ScheduleRunner
from tests.support.broker.harness import MemoryMetadata
from tests.support.eventually import until

DAY_S = 86_400
DAY_MS = DAY_S * 1000
MESSAGES = '[{"value":"v"}]'


class World:
    """A store, its manager and runners; ``published`` has names with due seconds from the start."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000_000_000)
        self.start_ms = self.clock.wall_ms()
        self.store = MemoryMetadata()
        self.published: list[tuple[str, float]] = []
        self.failure: Callable[[str], GoqError | None] = lambda _name: None
        self.manager = ScheduleManager(self.store, self.clock.wall_ms)
        self.leads = True

    async def publish(self, record: ScheduleRecord, due_ms: int) -> None:
        error = self.failure(record.name)
        if error is not None:
            raise error
        self.published.append((record.name, (due_ms - self.start_ms) / 1000))

    @asynccontextmanager
    async def runner(self) -> AsyncIterator[ScheduleRunner]:
        runner = ScheduleRunner(self.store, self.publish, lambda: self.leads, self.clock.wall_ms)
        self.manager.on_change = runner.wake
        runner.start()
        yield runner
        await runner.stop()

    async def add(self, name: str = "tick", every_ms: int = 10_000) -> ScheduleRecord:
        return await self.manager.create(name, "orders", MESSAGES, every_ms=every_ms, principal="-")

    async def go(self, runner: ScheduleRunner, seconds: float) -> None:
        """Move the clock, and have the runner look at it."""
        self.clock.advance_ms(int(seconds * 1000))
        runner.wake()

    async def recorded(self, name: str, seconds: float) -> None:
        """Wait until the store knows that a schedule has published for a time."""
        due_ms = self.start_ms + int(seconds * 1000)
        await until(lambda: self.store.schedules[name].last_due_ms == due_ms)

    async def planned(self, runner: ScheduleRunner, seconds: float) -> None:
        """Wait until the schedule's next time is that one."""
        due_ms = self.start_ms + int(seconds * 1000)
        await until(lambda: "tick" in runner._plans and runner._plans["tick"].next_ms == due_ms)


def run(test: Callable[[World], object]) -> None:
    async def main() -> None:
        found = test(World())
        assert asyncio.iscoroutine(found)
        await found

    asyncio.run(main())


def test_each_time_is_published_for_once() -> None:
    async def check(world: World) -> None:
        await world.add()
        async with world.runner() as runner:
            for seconds in (10, 20, 30):
                await world.go(runner, 10)
                await world.recorded("tick", seconds)
        assert world.published == [("tick", 10), ("tick", 20), ("tick", 30)]

    run(check)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_schedule_goes_on_when_a_clock_that_was_ahead_is_set_right(restarts: bool) -> None:
    async def check(world: World) -> None:
        world.clock.jump_ms(400 * DAY_MS)
        await world.add()
        async with world.runner() as runner:
            await world.go(runner, 10)
            await world.recorded("tick", 400 * DAY_S + 10)
            world.clock.jump_ms(-400 * DAY_MS)
            if not restarts:
                await world.go(runner, 0)
                await world.planned(runner, 20)
        async with world.runner() as runner:
            await world.go(runner, 0)
            await world.planned(runner, 20)
            for seconds in (20, 30):
                await world.go(runner, 10)
                await world.recorded("tick", seconds)
        assert world.published == [
            ("tick", 400 * DAY_S + 10),
            ("tick", 20),
            ("tick", 30),
        ]

    run(check)


def test_a_schedule_publishes_nothing_again_when_the_clock_is_set_back_a_little() -> None:
    async def check(world: World) -> None:
        await world.add()
        async with world.runner() as runner:
            for seconds in (10, 20):
                await world.go(runner, 10)
                await world.recorded("tick", seconds)
            world.clock.jump_ms(-15_000)
            await world.go(runner, 10)
            await world.go(runner, 15)
            await world.recorded("tick", 30)
        assert world.published == [("tick", 10), ("tick", 20), ("tick", 30)]

    run(check)


def test_a_paused_schedule_that_was_resumed_by_a_clock_ahead_goes_on_by_the_right_one() -> None:
    async def check(world: World) -> None:
        await world.add()
        world.clock.jump_ms(400 * DAY_MS)
        await world.manager.pause("tick")
        await world.manager.resume("tick")
        world.clock.jump_ms(-400 * DAY_MS)
        async with world.runner() as runner:
            await world.planned(runner, 10)
            await world.go(runner, 10)
            await world.recorded("tick", 10)

    run(check)


def test_a_schedule_added_to_an_idle_runner_is_run() -> None:
    async def check(world: World) -> None:
        async with world.runner() as runner:
            await world.add()
            await world.go(runner, 10)
            await world.recorded("tick", 10)

    run(check)


def test_a_long_outage_is_made_up_for_once() -> None:
    async def check(world: World) -> None:
        await world.add(every_ms=100_000)
        world.clock.advance_ms(990_000)
        async with world.runner():
            await world.recorded("tick", 900)
        assert world.published == [("tick", 900)]

    run(check)


def test_a_paused_schedule_publishes_nothing_and_makes_nothing_up() -> None:
    async def check(world: World) -> None:
        await world.add()
        await world.manager.pause("tick")
        async with world.runner() as runner:
            await world.add("other")
            await world.go(runner, 25)
            await world.recorded("other", 20)
            resumed = await world.manager.resume("tick")
            assert resumed.resumed_ms == world.clock.wall_ms()
            await world.go(runner, 5)
            await world.recorded("tick", 30)
        assert [each for each in world.published if each[0] == "tick"] == [("tick", 30)]

    run(check)


def test_a_node_that_is_not_the_runner_publishes_nothing_until_it_is() -> None:
    async def check(world: World) -> None:
        await world.add()
        world.leads = False
        async with world.runner() as runner:
            await world.go(runner, 10)
            for _ in range(20):
                await asyncio.sleep(0)
            assert world.published == []
            world.leads = True
            runner.wake()
            await world.recorded("tick", 10)

    run(check)


def test_what_a_retry_may_overcome_is_retried_for_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SCHEDULE_RETRY_MS", 1)

    async def check(world: World) -> None:
        await world.add()
        failures: list[str] = []

        def failure(name: str) -> GoqError | None:
            failures.append(name)
            return Unavailable("no leader") if len(failures) < 3 else None

        world.failure = failure
        async with world.runner() as runner:
            await world.go(runner, 10)
            while len(failures) < 3:
                await world.go(runner, 0.001)
                await asyncio.sleep(0.001)
            await world.recorded("tick", 10)
        assert world.published == [("tick", 10)]

    run(check)


def test_a_refusal_is_recorded_and_other_schedules_run() -> None:
    async def check(world: World) -> None:
        await world.add("bad")
        await world.add("good")
        long = "x" * 2000
        world.failure = lambda name: NotAllowed(long) if name == "bad" else None
        async with world.runner() as runner:
            await world.go(runner, 10)
            await world.recorded("bad", 10)
            await world.recorded("good", 10)
            assert world.store.schedules["bad"].problem == "x" * limits.SCHEDULE_PROBLEM_CHARS_MAX
            world.failure = lambda _name: None
            await world.go(runner, 10)
            await world.recorded("bad", 20)
            assert world.store.schedules["bad"].problem == ""

    run(check)


def test_a_run_that_cannot_be_recorded_is_recorded_later_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SCHEDULE_RETRY_MS", 1)

    async def check(world: World) -> None:
        await world.add()
        record_runs, failures = world.store.record_runs, 0

        async def failing(runs: Mapping[str, ScheduleRun]) -> None:
            nonlocal failures
            failures += 1
            if failures < 3:
                raise Unavailable("no quorum")
            await record_runs(runs)

        monkeypatch.setattr(world.store, "record_runs", failing)
        async with world.runner() as runner:
            await world.go(runner, 10)
            await world.recorded("tick", 10)
        assert failures == 3
        assert world.published == [("tick", 10)]

    run(check)


def test_many_schedules_are_recorded_in_bounded_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCHEDULE_RUNS_MAX", 3)

    async def check(world: World) -> None:
        for number in range(20):
            await world.add(f"s{number}")
        record_runs, sizes = world.store.record_runs, []

        async def counting(runs: Mapping[str, ScheduleRun]) -> None:
            sizes.append(len(runs))
            await record_runs(runs)

        monkeypatch.setattr(world.store, "record_runs", counting)
        async with world.runner() as runner:
            await world.go(runner, 10)
            for number in range(20):
                await world.recorded(f"s{number}", 10)
        assert max(sizes) <= 3
        assert len(world.published) == 20

    run(check)


def test_a_schedule_that_is_removed_while_it_publishes_stays_removed() -> None:
    async def check(world: World) -> None:
        await world.add()
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def slow(record: ScheduleRecord, due_ms: int) -> None:
            begun.set()
            await may_end.wait()
            world.published.append((record.name, 0))

        world.publish = slow
        async with world.runner() as runner:
            await world.go(runner, 10)
            await begun.wait()
            await world.manager.remove("tick")
            may_end.set()
            await world.add("next")
            await world.go(runner, 10)
            await world.recorded("next", 20)
        assert set(world.store.schedules) == {"next"}

    run(check)


def test_a_change_keeps_the_run_that_was_recorded_meanwhile() -> None:
    async def check(world: World) -> None:
        record = await world.add()
        await world.store.record_runs({"tick": ScheduleRun(record.created_ms + 10_000, "why")})
        await world.manager.pause("tick")
        stale = record.created_ms + 5_000
        await world.store.record_runs({"tick": ScheduleRun(stale), "gone": ScheduleRun(stale)})
        found = world.store.schedules["tick"]
        assert (found.last_due_ms, found.problem) == (record.created_ms + 10_000, "why")
        assert set(world.store.schedules) == {"tick"}

    run(check)


def test_schedules_are_created_once_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(world: World) -> None:
        first = await world.add()
        world.clock.advance_ms(1)
        assert await world.add() is first
        with pytest.raises(Conflict):
            await world.add(every_ms=20_000)
        with pytest.raises(NotFound):
            await world.manager.pause("none")
        monkeypatch.setattr(limits, "SCHEDULES_MAX", 2)
        await world.add("second")
        with pytest.raises(InvalidInput, match="the most"):
            await world.add("third")
        fits = '[{"value":"' + "v" * (limits.SCHEDULE_BYTES_MAX - 14) + '"}]'
        assert len(fits) == limits.SCHEDULE_BYTES_MAX
        await world.manager.remove("second")
        create = world.manager.create
        await create("large", "orders", fits, every_ms=10_000, principal="-")
        for wrong in ({"every_ms": 1, "cron": "* * * * *"}, {}):
            with pytest.raises(InvalidInput, match="either"):
                await create("x", "orders", MESSAGES, principal="-", **wrong)
        with pytest.raises(InvalidInput, match="at most"):
            await create("x", "orders", fits + " ", every_ms=10_000, principal="-")

    run(check)
