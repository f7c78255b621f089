"""When a background read may go on, and that there is one at a time."""

from __future__ import annotations

import asyncio
import math
import threading

import pytest

from goq import limits
from goq.broker.runtime.background import (
    BUSY_FOR_S,
    BUSY_SHARE,
    FULL_WRITES_PER_S,
    LATE_PAUSE_S_MIN,
    LATE_S,
    LATE_WRITES_PER_S,
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


def read_beside(writes_per_s: float, piece_s: float) -> float:
    """Return the share of the time that background reads get beside so many writes."""
    pace, now_s, began_s = ReadPacer(), 0.0, 0.0
    for piece in range(1000):
        if piece == 500:  # the rate is known by then
            began_s = now_s
        pace.look(now_s, int(now_s * writes_per_s), 0.0)
        now_s += pace.wait_s(now_s) + piece_s
        pace.worked(now_s, piece_s)
    return 500 * piece_s / (now_s - began_s)


@pytest.mark.parametrize("times", [1.5, 20])
def test_at_full_load_background_reads_have_a_quarter_of_the_time(times: float) -> None:
    share = read_beside(FULL_WRITES_PER_S * times, 0.01)
    assert share == pytest.approx(BUSY_SHARE, rel=0.03)


def test_the_share_falls_with_the_rate_of_writes() -> None:
    assert read_beside(2, 0.004) > 0.9
    # the pause at half load is half of the shortest
    assert read_beside(FULL_WRITES_PER_S / 2, 0.005) == pytest.approx(1 / 3, rel=0.1)
    assert read_beside(FULL_WRITES_PER_S * 2, 0.005) == pytest.approx(1 / 5, rel=0.03)


def test_the_rate_of_writes_does_not_depend_on_how_often_it_is_looked_at() -> None:
    often, seldom = ReadPacer(), ReadPacer()
    for step in range(1001):
        often.look(step / 100, step // 2, 0.0)
        if step % 100 == 0:
            seldom.look(step / 100, step // 2, 0.0)
    assert often.load == pytest.approx(50 / FULL_WRITES_PER_S, rel=0.05)
    assert seldom.load == pytest.approx(50 / FULL_WRITES_PER_S, rel=0.05)


def test_two_looks_at_one_moment_count_writes_once() -> None:
    pace = ReadPacer()
    for now_s, writes in ((0.0, 0), (0.0, 40), (1.0, 60), (1.0, 70), (2.0, 120)):
        pace.look(now_s, writes, 0.0)
    assert pace.load == pytest.approx(60 * (1 - math.exp(-2)) / FULL_WRITES_PER_S)


def test_a_pause_is_not_shorter_than_its_minimum() -> None:
    pace = ReadPacer()
    pace.look(0.0, 0, 0.0)
    pace.look(10.0, 10_000, 0.0)
    pace.worked(10.0, 0.001)
    assert pace.wait_s(10.0) == pytest.approx(PAUSE_S_MIN)
    pace.look(10.0, 10_000, LATE_S)
    pace.worked(10.0, 0.001)
    assert pace.wait_s(10.0) == pytest.approx(LATE_PAUSE_S_MIN)


def test_a_late_event_loop_counts_for_as_long_as_it_is_said() -> None:
    pace = ReadPacer()
    pace.look(9.9, 0, 0.0)
    pace.look(10.0, 60, LATE_S)
    pace.worked(10.0 + BUSY_FOR_S - 0.001, 1.0)
    assert pace.wait_s(11.0) > 2
    pace.worked(10.0 + BUSY_FOR_S, 1.0)
    assert pace.wait_s(11.0) < 1


@pytest.mark.parametrize("late_s", [LATE_S, LATE_S * 0.9])
def test_beside_a_late_event_loop_the_load_is_full_from_few_writes_on(late_s: float) -> None:
    pace = ReadPacer()
    for now_s in range(10):
        pace.look(now_s, round(now_s * LATE_WRITES_PER_S), late_s)
    pace.worked(9.0, 1.0)
    share = 1.0 if late_s >= LATE_S else LATE_WRITES_PER_S / FULL_WRITES_PER_S
    assert pace.wait_s(9.0) == pytest.approx(3.0 * share, rel=0.01)


def test_a_late_event_loop_holds_up_no_reads_of_a_node_that_nobody_writes_to() -> None:
    pace = ReadPacer()
    for now_s in range(5):
        pace.look(now_s, 7, 1.0)
        pace.worked(now_s, 0.5)
        assert pace.wait_s(now_s) == 0


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
            asyncio.ensure_future(reads.run(lambda n=n: piece(n)))
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


def test_a_pause_before_a_piece_is_kept_and_tells_how_late_the_event_loop_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = list[tuple[int, bool]]()
    done = list[str]()
    monkeypatch.setattr(ReadPacer, "wait_s", lambda _pace, _now_s: 0.01)
    monkeypatch.setattr(
        ReadPacer, "look", lambda _pace, _now_s, writes, late_s: looks.append((writes, late_s > 0))
    )

    async def scenario() -> None:
        reads = BackgroundReads(lambda: 7)
        asyncio.get_running_loop().call_later(0.001, done.append, "while it pauses")
        await reads.run(lambda: done.append("the piece"))
        reads.close()

    asyncio.run(scenario())
    assert done == ["while it pauses", "the piece"]
    assert looks[1:] == [(7, True), (7, False)]
