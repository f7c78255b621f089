"""A job on request: how it ends is kept, and no error leaves it."""

from __future__ import annotations

import asyncio

import pytest

from goq.broker.runtime.single_job import JobOutcome, SingleJob
from goq.errors import GoqError, Unavailable


async def one() -> int:
    return 1


async def refused() -> int:
    raise Unavailable("not now")


async def full() -> int:
    raise OSError(28, "No space left", "/place")


async def wrong() -> int:
    raise ValueError("a bug")


@pytest.mark.parametrize(
    ("work", "result", "words"),
    [
        (one, 1, ""),
        (refused, None, "not now"),
        (full, None, "the backup failed: [Errno 28] No space left: '/place'"),
        (wrong, None, "the backup failed: ValueError('a bug')"),
    ],
)
def test_the_result_or_the_reason_is_kept_and_told(
    work: object, result: int | None, words: str
) -> None:
    async def scenario() -> None:
        job, told = SingleJob[int]("backup"), list[JobOutcome[int]]()
        assert job.begin(work, told.append) == job.running == 1
        await job.wait()
        assert job.running is None
        assert told == [job.last]
        number, found, failure = told[0]
        assert (number, found) == (1, result)
        assert words == ("" if failure is None else failure.detail)
        assert failure is None or isinstance(failure, GoqError)
        assert job.begin(one, told.append) == 2
        await job.wait()

    asyncio.run(scenario())


def test_a_job_that_is_given_up_has_no_end() -> None:
    async def scenario() -> None:
        job, told = SingleJob[int]("backup"), list[JobOutcome[int]]()
        gate = asyncio.Event()

        async def endless() -> int:
            await gate.wait()
            return 1

        await job.cancel()
        job.begin(endless, told.append)
        await asyncio.sleep(0)
        await job.cancel()
        assert (job.running, job.last, told) == (None, None, [])

    asyncio.run(scenario())
