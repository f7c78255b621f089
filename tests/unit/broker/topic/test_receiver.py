"""Whom a receiver of a topic wakes: of which groups, members and readers, and whom it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from goq.broker.topic.receiver import Receiver
from goq.config.topic import Ordering

OWNERS = {("members", 0): "a", ("members", 1): "b"}


class Case:
    """A receiver of two partitions, and what waits at it."""

    def __init__(self) -> None:
        ends = [SimpleNamespace(end_offset=0), SimpleNamespace(end_offset=0)]
        coordinator = SimpleNamespace(owner=lambda group, number: OWNERS.get((group, number)))
        settings = dict.fromkeys(("g", "h"), SimpleNamespace(ordering=Ordering.NONE))
        parts: tuple[Any, ...] = (settings, ends, coordinator, SimpleNamespace(), None)
        self.receiver = Receiver(*parts, lambda _group, _batch: None)
        self.waiting: dict[str, asyncio.Task[None]] = {}
        self.served: list[str] = []

    async def begin(self, *queues: str) -> None:
        """Let one more wait in each of these queues; names after ``:`` tell them apart."""
        for name in queues:
            queue = name.partition(":")[0]
            wait = self.receiver.waiters.wait(
                queue, 60, serve=lambda name=name: self.served.append(name)
            )
            self.waiting[name] = asyncio.ensure_future(wait)
        await asyncio.sleep(0)

    async def begin_reading(self, number: int) -> None:
        wait = self.receiver.log_readers.wait(number, 0, 60_000)
        self.waiting[f"log {number}"] = asyncio.ensure_future(wait)
        await asyncio.sleep(0)

    async def woken(self) -> set[str]:
        """Return whose wait has ended since the last look."""
        for _ in range(3):
            await asyncio.sleep(0)
        found = {name for name, task in self.waiting.items() if task.done()}
        for name in found:
            await self.waiting.pop(name)
        return found


def run(steps: Callable[[Case], Awaitable[None]]) -> None:
    async def main() -> None:
        case = Case()
        await steps(case)
        for task in case.waiting.values():
            task.cancel()

    asyncio.run(main())


def test_what_becomes_ready_wakes_the_first_of_each_group_and_the_owner_among_members() -> None:
    async def steps(case: Case) -> None:
        await case.begin("g:first", "g:second", "h", "members/a", "members/b")
        case.receiver.on_ready(1, None)
        assert await case.woken() == {"g:first", "h", "members/b"}
        case.receiver.on_ready(0, None)
        assert await case.woken() == {"g:second", "members/a"}
        assert case.served == []

    run(steps)


def test_what_becomes_ready_for_one_group_wakes_nobody_else() -> None:
    async def steps(case: Case) -> None:
        await case.begin("g", "h", "members/a", "members/b")
        await case.begin_reading(0)
        case.receiver.on_ready(0, "h")
        assert await case.woken() == {"h"}
        case.receiver.on_ready(0, "members")
        assert await case.woken() == {"members/a"}

    run(steps)


def test_new_messages_wake_the_readers_of_the_log_of_their_partition() -> None:
    async def steps(case: Case) -> None:
        await case.begin_reading(0)
        await case.begin_reading(1)
        case.receiver._partitions[1].end_offset = 1
        case.receiver.on_ready(1, None)
        assert await case.woken() == {"log 1"}

    run(steps)


def test_of_many_groups_that_wait_four_are_served_before_a_write_and_all_are_woken() -> None:
    async def steps(case: Case) -> None:
        names = [f"group{number}" for number in range(6)]
        await case.begin(*names)
        case.receiver.on_staged(0)
        assert case.served == names[:4]
        assert await case.woken() == set(names)

    run(steps)


def test_a_restart_wakes_all_of_a_group_or_these_consumers_of_it() -> None:
    async def steps(case: Case) -> None:
        await case.begin("members/a:1", "members/a:2", "members/b", "h", "members:unnamed")
        case.receiver.restart("members", ["a"])
        assert await case.woken() == {"members/a:1", "members/a:2"}
        case.receiver.restart("members")
        assert await case.woken() == {"members/b", "members:unnamed"}
        assert case.receiver.restart_count == 2
        await case.begin("members/a", "members/b", "g")
        case.receiver.wake_consumers("members", ["a"])
        assert await case.woken() == {"members/a"}

    run(steps)


def test_the_ready_count_of_a_group_tells_what_concerns_it_and_nothing_else() -> None:
    async def steps(case: Case) -> None:
        changes: list[tuple[Callable[[], None], int, int]] = [
            (lambda: case.receiver.on_ready(0, None), 1, 1),
            (lambda: case.receiver.on_ready(0, "g"), 1, 0),
            (lambda: case.receiver.wake_consumers("h", ["x"]), 0, 1),
            (lambda: case.receiver.restart("g"), 1, 0),
            (case.receiver.wake, 1, 1),
            (case.receiver.on_offline, 1, 1),
        ]
        for change, for_g, for_h in changes:
            before = case.receiver.ready_count("g"), case.receiver.ready_count("h")
            change()
            after = case.receiver.ready_count("g"), case.receiver.ready_count("h")
            assert after == (before[0] + for_g, before[1] + for_h)

    run(steps)


def test_messages_that_may_have_become_ready_anywhere_wake_one_of_each_queue() -> None:
    async def steps(case: Case) -> None:
        assert not case.receiver.is_awaited()
        await case.begin("g:first", "g:second", "members/a", "members/b")
        assert case.receiver.is_awaited()
        case.receiver.wake()
        assert await case.woken() == {"g:first", "members/a", "members/b"}
        await case.begin("h")
        case.receiver.on_offline()
        assert await case.woken() == {"g:second", "h"}
        assert not case.receiver.is_awaited()

    run(steps)
