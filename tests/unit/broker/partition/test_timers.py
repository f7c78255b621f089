"""When the timer of a partition is set, by a loop that notes it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.partition.timers import Timers
from goq.clock import ManualClock

NOW_MS = 1_700_000_000_000
LOOP_S = 100.0


class Loop:
    """An event loop whose time stands; it notes what is to be called, and what no more."""

    def __init__(self) -> None:
        self.set_s: list[float] = []
        self.cancelled_s: list[float] = []

    def time(self) -> float:
        return LOOP_S

    def call_at(self, at_s: float, _callback: object) -> Any:
        self.set_s.append(at_s)
        return SimpleNamespace(cancel=lambda: self.cancelled_s.append(at_s))


def timers_with(loop: Loop, **ready: Any) -> Timers:
    nothing: Any = SimpleNamespace()
    loaded: Any = SimpleNamespace(messages=None, state=None)
    context: Any = SimpleNamespace(clock=ManualClock(NOW_MS * 1000))
    manager: Any = SimpleNamespace(**ready)

    async def make() -> Timers:
        return Timers(loaded, context, nothing, nothing, manager, nothing, nothing, nothing)

    timers = asyncio.run(make())
    timers._loop = loop  # type: ignore[assignment]
    return timers


@pytest.mark.parametrize(
    ("due_ms", "set_s"),
    [
        (None, []),
        (NOW_MS - 9_000, [100.0]),
        (NOW_MS, [100.0]),
        (NOW_MS + 250, [100.25]),
        (NOW_MS + 1_000, [101.0]),
        (NOW_MS + 1_001, [101.0]),
        (NOW_MS + 86_400_000, [101.0]),
    ],
)
def test_the_timer_is_due_when_the_wall_clock_will_be_and_looks_once_a_second_at_least(
    due_ms: int | None, set_s: list[float]
) -> None:
    loop = Loop()
    timers_with(loop).arm(due_ms)
    assert loop.set_s == set_s


def test_an_earlier_time_takes_the_place_of_a_later_one_and_no_later_one_of_it() -> None:
    loop = Loop()
    timers = timers_with(loop)
    for due_ms in (500, 700, 500, 200, 300):
        timers.arm(NOW_MS + due_ms)
    assert loop.set_s == [100.5, 100.2]
    assert loop.cancelled_s == [100.5]
    timers.cancel()
    assert loop.cancelled_s == [100.5, 100.2]


def test_nothing_matures_while_the_queues_are_made_anew() -> None:
    assert timers_with(Loop(), is_rebuilding=True)._mature(NOW_MS) is False
