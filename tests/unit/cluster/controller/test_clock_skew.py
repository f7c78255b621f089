"""How far the clocks of nodes are off, and what the controller decides for that."""

from __future__ import annotations

import pytest

from goq import limits
from goq.cluster.controller.clock_skew import (
    ClockSkew,
    clock_offset_ms,
    is_clock_off,
    node_clocks,
    skewed_nodes,
)
from goq.cluster.controller.controller import CLOCK_IS_OFF, decide
from goq.cluster.controller.node_liveness import Heartbeat, NodeLiveness
from goq.cluster.metadata.apply import apply
from goq.cluster.metadata.commands import AnyCommand, SetNodeHealth
from goq.cluster.metadata.state import MetadataState
from tests.support.cluster.metadata.states import after, nodes

HOUR_MS = 3_600_000
UNFIT_MS = limits.CLOCK_SKEW_UNFIT_MS
WALL_MS = 1_700_000_000_000


def skews(**offsets_ms: int) -> dict[str, int]:
    return {name: clock.skew_ms for name, clock in node_clocks(offsets_ms).items()}


def off(**offsets_ms: int) -> set[str]:
    clocks = node_clocks(offsets_ms)
    return {name for name, clock in clocks.items() if is_clock_off(clock, was_off=False)}


def test_skew_is_measured_from_the_median() -> None:
    assert skews(n1=0, n2=10, n3=HOUR_MS) == {"n1": -10, "n2": 0, "n3": HOUR_MS - 10}
    assert skews(n1=0, n2=1000) == {"n1": -500, "n2": 500}
    assert skews(n1=7) == {"n1": 0}
    assert skews() == {}


def test_a_controller_with_a_clock_of_its_own_is_the_one_that_is_off() -> None:
    assert off(controller=0, n2=HOUR_MS, n3=HOUR_MS + 3) == {"controller"}


def test_the_one_that_is_off_is_found_where_a_majority_agrees() -> None:
    assert off(n1=0, n2=3, n3=HOUR_MS) == {"n3"}
    assert off(n1=0, n2=3, n3=5, n4=-HOUR_MS) == {"n4"}
    assert off(n1=-UNFIT_MS, n2=0, n3=UNFIT_MS) == set()
    assert off(n1=-UNFIT_MS - 1, n2=0, n3=UNFIT_MS + 1) == {"n1", "n3"}


def test_where_half_contradicts_half_nobody_becomes_unfit_or_fit_again() -> None:
    for offsets_ms in ({"n1": 0, "n2": HOUR_MS}, {"n1": 0, "n2": 1, "n3": HOUR_MS, "n4": HOUR_MS}):
        clocks = node_clocks(offsets_ms)
        for was_off in (True, False):
            assert {is_clock_off(clock, was_off=was_off) for clock in clocks.values()} == {was_off}


@pytest.mark.parametrize("was_off", [True, False])
def test_a_clock_between_the_limits_stays_as_it_was_judged(was_off: bool) -> None:
    for distance_ms in (UNFIT_MS // 2 + 1, UNFIT_MS):
        clock = ClockSkew(distance_ms, distance_ms, distance_ms)
        assert is_clock_off(clock, was_off=was_off) is was_off
    assert is_clock_off(None, was_off=was_off) is was_off
    half_ms = UNFIT_MS // 2
    assert not is_clock_off(ClockSkew(half_ms, half_ms, half_ms), was_off=was_off)


def test_a_warning_ends_at_half_of_the_limit() -> None:
    limit_ms = limits.CLOCK_SKEW_WARN_MS
    seen: frozenset[str] = frozenset()
    shown = []
    for skew_ms in (0, limit_ms, limit_ms + 1, limit_ms, -limit_ms // 2 - 1, limit_ms // 2, -300):
        seen = skewed_nodes({"n1": skew_ms}, seen)
        shown.append(bool(seen))
    assert shown == [False, False, True, True, True, False, True]


def test_the_heartbeat_with_the_shortest_way_counts_and_half_a_round_trip_is_added() -> None:
    assert clock_offset_ms((-900, -20, -400), 40) == 0
    assert clock_offset_ms((HOUR_MS - 10,) * 3, 20) == HOUR_MS
    assert clock_offset_ms((0, 0), 0) is None


def heard(
    state: MetadataState, ahead_ms: dict[str, int], count: int, late_ms: int = 5
) -> NodeLiveness:
    """Return the liveness after some heartbeats; the controller's own clock is 0 ahead."""
    liveness = NodeLiveness.start(0)
    for now_ms in range(0, count * 100, 100):
        for name, node in state.nodes.items():
            heartbeat = Heartbeat(
                node.incarnation,
                clock_ms=WALL_MS + now_ms - late_ms + ahead_ms.get(name, 0),
                round_trip_ms=2 * late_ms,
            )
            liveness = liveness.with_heartbeat(name, heartbeat, now_ms, wall_ms=WALL_MS + now_ms)
        liveness = liveness.tick(now_ms)
    return liveness


def health(state: MetadataState, liveness: NodeLiveness) -> list[AnyCommand]:
    return [each for each in decide(state, liveness) if isinstance(each, SetNodeHealth)]


def test_a_node_with_a_wrong_clock_is_unfit_until_it_is_right() -> None:
    state = after(nodes(3))
    incarnation = state.nodes["n2"].incarnation
    assert health(state, heard(state, {"n2": HOUR_MS}, limits.CLOCK_SAMPLES_MIN - 1)) == []
    commands = health(state, heard(state, {"n2": HOUR_MS}, limits.CLOCK_SAMPLES_MIN))
    assert commands == [SetNodeHealth("n2", incarnation, CLOCK_IS_OFF)]
    state, _ = apply(state, commands[0], state.version + 1)
    assert health(state, heard(state, {"n2": HOUR_MS}, 9)) == []
    assert health(state, heard(state, {"n2": UNFIT_MS}, 9)) == []
    assert health(state, heard(state, {}, 1)) == []  # a new controller does not know yet
    right = [SetNodeHealth("n2", incarnation, "")]
    assert health(state, heard(state, {"n2": UNFIT_MS // 2}, 9)) == right


def test_a_clock_is_not_off_because_heartbeats_come_late_after_a_silence() -> None:
    state = after(nodes(3))
    liveness, late_ms = heard(state, {}, 9), 2 * UNFIT_MS
    for now_ms in range(20_000, 20_000 + 100 * limits.CLOCK_SAMPLES_MIN, 100):
        for name, node in state.nodes.items():
            sent_ms = now_ms - (late_ms if name == "n2" else 5)
            heartbeat = Heartbeat(node.incarnation, clock_ms=WALL_MS + sent_ms, round_trip_ms=10)
            liveness = liveness.with_heartbeat(name, heartbeat, now_ms, wall_ms=WALL_MS + now_ms)
        liveness = liveness.tick(now_ms)
    assert health(state, liveness) == []


def test_a_node_stays_unfit_when_the_others_that_agreed_are_gone() -> None:
    state = after(nodes(3))
    commands = health(state, heard(state, {"n2": HOUR_MS}, 9))
    state, _ = apply(state, commands[0], state.version + 1)
    liveness = heard(state, {"n2": HOUR_MS}, 9)
    received = {name: each for name, each in liveness.received.items() if name != "n3"}
    assert health(state, liveness._replace(received=received)) == []


def test_heartbeats_of_a_version_without_clocks_say_nothing_of_them() -> None:
    state = after(nodes(3))
    liveness = NodeLiveness.start(0)
    for now_ms in range(0, 1000, 100):
        for name, node in state.nodes.items():
            liveness = liveness.with_heartbeat(
                name, Heartbeat(node.incarnation), now_ms, wall_ms=WALL_MS
            )
        liveness = liveness.tick(now_ms)
    assert liveness.clocks(state.nodes) == {}
    assert health(state, liveness) == []
