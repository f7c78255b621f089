"""The watchdog of the event loop, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from goq.http import loop_watch
from goq.http.loop_watch import BACKGROUND, Holder, LoopWatch
from goq.http.message import Request

PUBLISH = Holder("POST", "/v1/topics/{topic}/messages")


class _Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(loop_watch, "thread_time", made)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(loop_watch, "perf_counter", made)
    return made


class _Loop(asyncio.AbstractEventLoop):
    """A loop with one timer, which runs when the test says so."""

    def __init__(self) -> None:
        self.run: Callable[[], None]
        self.delay_s = 0.0

    def time(self) -> float:
        return 1.0

    def call_later(self, delay: float, callback: Any, *arguments: Any, **_: Any) -> Any:
        self.delay_s, self.run = delay, lambda: callback(*arguments)


def test_the_longest_hold_of_a_route_is_kept_for_a_while_and_then_forgotten(clock: _Clock) -> None:
    watch = LoopWatch()
    watch.note(PUBLISH, 0.02)
    watch.note(PUBLISH, 0.05)
    watch.note(PUBLISH, 0.01)
    assert watch.longest() == {PUBLISH: 0.05}
    clock.now_s += 61
    assert watch.longest() == {PUBLISH: 0.05}
    watch.note(PUBLISH, 0.03)
    clock.now_s += 61
    assert watch.longest() == {PUBLISH: 0.03}
    clock.now_s += 121
    assert watch.longest() == {}


def test_a_request_is_named_by_its_method_and_declared_path(clock: _Clock) -> None:
    watch = LoopWatch()
    request = Request("POST", "/v1/topics/a/messages")
    watch.end_step(request, clock.now_s - 1 / 32)
    request.route = PUBLISH.route
    watch.end_step(request, clock.now_s - 1 / 64)
    assert watch.longest() == {Holder("", "(none)"): 1 / 32, PUBLISH: 1 / 64}


def test_a_long_hold_is_logged_once_in_a_while_with_how_many_were_left_out(
    clock: _Clock, caplog: pytest.LogCaptureFixture
) -> None:
    watch = LoopWatch()
    with caplog.at_level(logging.WARNING, "goq.http"):
        watch.note(PUBLISH, 0.09)
        assert caplog.messages == []
        for _ in range(3):
            watch.note(PUBLISH, 0.25)
        clock.now_s += 11
        watch.note(PUBLISH, 0.25)
    first, later = caplog.messages
    assert first.startswith("POST /v1/topics/{topic}/messages held the event loop for 0.25 s")
    assert later.endswith("(2 more before)")


def test_a_late_timer_tells_of_work_without_a_request_but_not_of_steps_that_were_timed(
    clock: _Clock,
) -> None:
    watch, loop = LoopWatch(), _Loop()
    watch.start(loop)
    clock.now_s += loop.delay_s + 0.08
    watch.held_s += 0.078  # a request's step, timed and noted by itself
    loop.run()
    assert watch.longest() == {}
    clock.now_s += loop.delay_s + 0.08
    loop.run()
    assert watch.longest() == {BACKGROUND: pytest.approx(0.08)}


def test_a_loop_at_rest_wakes_less_often_until_it_works_or_is_held(
    clock: _Clock, cpu: _Clock
) -> None:
    watch, loop = LoopWatch(), _Loop()

    def delay_after(late_s: float, cpu_s: float) -> float:
        clock.now_s += loop.delay_s + late_s
        cpu.now_s += cpu_s
        loop.run()
        return loop.delay_s

    watch.start(loop)
    assert loop.delay_s == pytest.approx(0.1)
    assert delay_after(0.0, cpu_s=0.001) == pytest.approx(0.5)
    assert delay_after(0.0, cpu_s=0.001) == pytest.approx(0.5)
    assert delay_after(0.0, cpu_s=0.1) == pytest.approx(0.1)
    assert delay_after(0.0, cpu_s=0.001) == pytest.approx(0.5)
    assert delay_after(0.2, cpu_s=0.001) == pytest.approx(0.1)  # held by the disk
