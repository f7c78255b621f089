"""A share of an executor: its jobs take some of the threads, in turn, and all of them end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from goq.broker.runtime.bounded_executor import BoundedExecutor

WAIT_S_MAX = 30.0


def test_jobs_that_hang_leave_threads_for_others() -> None:
    with ThreadPoolExecutor(4) as threads:
        share, gate, running = (
            BoundedExecutor(threads, 2),
            threading.Event(),
            threading.Semaphore(0),
        )

        def hang() -> None:
            running.release()
            assert gate.wait(WAIT_S_MAX)

        hanging = [share.submit(hang) for _ in range(20)]
        for _ in range(2):
            assert running.acquire(timeout=WAIT_S_MAX)
        assert threads.submit(lambda: "done").result(WAIT_S_MAX) == "done"
        assert sum(each.running() for each in hanging) == 2
        gate.set()
        assert [each.result(WAIT_S_MAX) for each in hanging] == [None] * 20


def test_results_and_errors_come_and_jobs_run_in_turn() -> None:
    with ThreadPoolExecutor(4) as threads:
        share, begun = BoundedExecutor(threads, 1), list[int]()

        def job(number: int) -> int:
            begun.append(number)
            if number == 3:
                raise ValueError(number)
            return number

        jobs = [share.submit(job, number) for number in range(8)]
        with pytest.raises(ValueError, match="3"):
            jobs[3].result(WAIT_S_MAX)
        assert [each.result(WAIT_S_MAX) for n, each in enumerate(jobs) if n != 3] == [
            0, 1, 2, 4, 5, 6, 7,
        ]  # fmt: skip
        assert begun == list(range(8))


def test_a_job_that_was_cancelled_or_came_too_late_holds_up_none() -> None:
    threads = ThreadPoolExecutor(1)
    share, gate = BoundedExecutor(threads, 1), threading.Event()
    first = share.submit(gate.wait, WAIT_S_MAX)
    cancelled, last = share.submit(int), share.submit(int)
    assert cancelled.cancel()
    gate.set()
    assert (first.result(WAIT_S_MAX), last.result(WAIT_S_MAX)) == (True, 0)
    threads.shutdown()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            share.submit(int).result(WAIT_S_MAX)
