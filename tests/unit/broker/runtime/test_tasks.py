"""Background tasks: their errors are logged, and all of them end."""

from __future__ import annotations

import asyncio

import pytest

from goq.broker.runtime.tasks import Tasks
from tests.support.broker.harness import run


def test_what_is_started_is_waited_for_also_if_it_starts_more() -> None:
    async def test() -> None:
        tasks, done = Tasks(), list[int]()

        async def work(number: int) -> None:
            await asyncio.sleep(0)
            if number:
                tasks.start(work(number - 1))
            done.append(number)

        started = tasks.start(work(3))
        assert not started.done()
        await tasks.finish()
        assert sorted(done) == [0, 1, 2, 3]
        await tasks.finish()

    run(test())


def test_an_error_is_logged_and_ends_no_other_task(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        tasks, done = Tasks(), list[int]()

        async def fail() -> None:
            raise ValueError("a bug")

        async def work() -> None:
            await asyncio.sleep(0.001)
            done.append(1)

        tasks.start(fail())
        tasks.start(work())
        await tasks.finish()
        assert done == [1]

    run(test())
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


def test_cancelled_tasks_end_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        tasks = Tasks()
        waiting = [tasks.start(_forever()) for _ in range(2)]
        await asyncio.sleep(0)
        tasks.cancel()
        await tasks.finish()
        assert all(each.cancelled() for each in waiting)

    run(test())
    assert caplog.records == []


async def _forever() -> None:
    await asyncio.Event().wait()
