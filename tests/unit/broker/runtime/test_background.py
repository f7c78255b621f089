"""When a background read may go on, and that there is one at a time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from goq import limits
from goq.broker.runtime.background import (
    BUSY_FOR_S,
    BUSY_SHARE,
    LATE_S,
    PAUSE_S_MIN,
    BackgroundReads,
    ReadPacer,
)
from goq.errors import TooManyRequests


def test_without_live_traffic_there_is_no_pause() -> None:
    pace = ReadPacer()
    for now_s in range(5):
        pace.look(now_s, 7, 0.0)
        assert pace.wait_s(now_s) == 0
        pace.worked(now_s, 0.5)


def test_with_live_traffic_background_reads_have_a_quarter_of_the_time() -> None:
    pace, now_s, worked_s = ReadPacer(), 0.0, 0.0
    for piece in range(1000):
        pace.look(now_s, piece, 0.0)
        now_s += pace.wait_s(now_s)
        now_s += 0.01 * (piece % 3 + 1)
        worked_s += 0.01 * (piece % 3 + 1)
        pace.worked(now_s, 0.01 * (piece % 3 + 1))
    assert worked_s / now_s == pytest.approx(BUSY_SHARE, rel=0.01)


def test_a_pause_is_not_shorter_than_its_minimum() -> None:
    pace = ReadPacer()
    pace.look(0.0, 1, LATE_S)
    pace.worked(0.0, 0.001)
    assert pace.wait_s(0.0) == PAUSE_S_MIN


def test_traffic_counts_for_as_long_as_it_is_said() -> None:
    pace = ReadPacer()
    pace.look(0.0, 1, 0.0)
    pace.look(10.0, 2, 0.0)
    pace.worked(10.0 + BUSY_FOR_S - 0.001, 1.0)
    assert pace.wait_s(11.0) > 2
    pace.worked(10.0 + BUSY_FOR_S, 1.0)
    assert pace.wait_s(11.0) == 0


def test_a_late_event_loop_is_busy_whatever_was_written() -> None:
    for late_s, pause_s in ((LATE_S, 3.0), (LATE_S * 0.9, 0.0)):
        pace = ReadPacer()
        pace.look(0.0, 0, late_s)
        pace.worked(0.5, 1.0)
        assert pace.wait_s(0.5) == pytest.approx(pause_s)


def test_one_piece_runs_at_a_time_in_turn_and_no_more_may_wait_than_the_bound() -> None:
    running, order = [0], list[int]()
    go_on = threading.Event()

    def piece(number: int) -> int:
        running[0] += 1
        assert running[0] == 1
        assert go_on.wait(10)
        order.append(number)
        running[0] -= 1
        return number

    async def scenario() -> None:
        reads = BackgroundReads(lambda: 0)
        asked = [
            asyncio.ensure_future(reads.run(lambda n=n: piece(n)))  # type: ignore[misc]
            for n in range(limits.BACKGROUND_READS_WAITING_MAX + 1)
        ]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests) as refused:
            await reads.run(lambda: 0)
        assert refused.value.retry_after_ms == 1000
        go_on.set()
        assert await asyncio.gather(*asked) == order == [*range(len(asked))]
        assert await reads.run(lambda: 5) == 5
        reads.close()

    asyncio.run(scenario())


def test_a_piece_that_fails_or_is_given_up_does_not_hold_up_the_next() -> None:
    async def scenario() -> None:
        reads = BackgroundReads(lambda: 0)
        with pytest.raises(ZeroDivisionError):
            await reads.run(lambda: 1 // 0)
        blocked = threading.Event()
        given_up = asyncio.ensure_future(reads.run(lambda: blocked.wait(10)))
        await asyncio.sleep(0)
        given_up.cancel()
        blocked.set()
        assert await reads.run(lambda: 5) == 5
        reads.close()

    asyncio.run(scenario())
