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
    clock: Any = SimpleNamespace(now_ms=context.clock.wall_ms)

    async def make() -> Timers:
        parts = (manager, nothing, clock, nothing, nothing)
        return Timers(loaded, context, nothing, nothing, *parts)

    timers = asyncio.run(make())
    timers._loop = loop
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


def test_on_a_full_disk_nothing_ends_and_the_timer_looks_again_in_a_second() -> None:
    loop = Loop()
    timers: Any = timers_with(loop)
    timers._availability = SimpleNamespace(error=None)
    timers._writer = SimpleNamespace(has_room=False)
    timers._on_time()
    assert loop.set_s == [101.0]
    timers._availability.error = OSError("offline")
    timers._on_time()
    assert loop.set_s == [101.0]


def timers_of_groups(loop: Loop, due_ms: dict[str, int | None]) -> Timers:
    timers: Any = timers_with(loop)
    timers._state = SimpleNamespace(groups=due_ms, next_timer_ms=due_ms.get)
    return timers


def test_a_group_sets_the_timer_for_its_next_time_and_once_for_each_earlier_one() -> None:
    loop, due_ms = Loop(), dict[str, int | None]({"g": NOW_MS + 500, "h": None})
    timers = timers_of_groups(loop, due_ms)
    for at_ms in (500, 500, 700, 300):
        due_ms["g"] = NOW_MS + at_ms
        timers.arm_for_group("g")
        timers.arm_for_group("h")
    assert loop.set_s == [100.5, 100.3]
    assert len(timers._groups) == 2
    assert timers._pop_due(NOW_MS + 299) is None
    assert timers._pop_due(NOW_MS + 300) == "g"
    assert timers._pop_due(NOW_MS + 10_000) is None
    due_ms["g"] = NOW_MS + 900
    timers.arm_for_group("g")
    assert timers._pop_due(NOW_MS + 900) == "g"


def test_the_timer_passes_over_groups_whose_time_has_changed_and_keeps_their_next_one() -> None:
    loop = Loop()
    due_ms = dict[str, int | None](
        {"ended": NOW_MS + 100, "later": NOW_MS + 200, "g": NOW_MS + 400}
    )
    timers = timers_of_groups(loop, due_ms)
    for group in due_ms:
        timers.arm_for_group(group)
    loop.set_s.clear()
    timers._timer = None
    due_ms.update(ended=None, later=NOW_MS + 600)
    timers._arm_for_first_group(SimpleNamespace(is_over=False))
    assert loop.set_s == [100.4]
    assert timers._pop_due(NOW_MS + 599) == "g"
    assert timers._pop_due(NOW_MS + 599) is None
    assert timers._pop_due(NOW_MS + 600) == "later"
    due_ms["ended"] = NOW_MS + 50
    timers.arm_for_group("ended")
    assert timers._pop_due(NOW_MS + 50) == "ended"


def test_when_the_slice_is_over_the_timer_is_set_for_the_first_group_without_a_look_at_others() -> (
    None
):
    loop = Loop()
    due_ms = dict[str, int | None]({"ended": NOW_MS + 100, "g": NOW_MS + 400})
    timers = timers_of_groups(loop, due_ms)
    for group in due_ms:
        timers.arm_for_group(group)
    loop.set_s.clear()
    timers._timer = None
    due_ms["ended"] = None
    timers._arm_for_first_group(SimpleNamespace(is_over=True))
    assert loop.set_s == [100.1]
