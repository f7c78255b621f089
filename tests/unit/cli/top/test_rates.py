from __future__ import annotations

import math

import pytest

from goq.client.results.live import LiveState
from goq_cli.output.top.rates import TREND_S_MAX, GroupRate, Moment, RateMeter, percentile
from tests.unit.cli.top.states import BEGIN, BOUNDS_S, group, latencies, node, state, topic


def moment(*states: LiveState) -> Moment:
    """Return the moment of the last of some states."""
    meter = RateMeter()
    return [meter.moment(each) for each in states][-1]


def lags(*samples: tuple[float, int]) -> GroupRate:
    states = [state(at_s, topic(groups=(group(lag=lag),))) for at_s, lag in samples]
    [found] = moment(*states).groups
    return found


def test_counters_of_two_states_give_rates() -> None:
    before = group(delivered_messages=5, acked_messages=4, nacked_messages=0)
    after = group(delivered_messages=25, acked_messages=14, nacked_messages=2)
    found = moment(
        state(0, topic(published_messages=100, published_bytes=1000, groups=(before,))),
        state(2, topic(published_messages=150, published_bytes=6000, groups=(after,))),
    )
    assert found.interval_s == 2
    [orders] = found.topics
    assert (orders.published_per_s, orders.published_bytes_per_s) == (25, 2500)
    [billing] = orders.groups
    assert (billing.delivered_per_s, billing.acked_per_s, billing.nacked_per_s) == (10, 5, 1)


def test_one_state_and_a_topic_that_is_new_have_no_rates() -> None:
    first = moment(state(0, topic(published_messages=100)))
    assert (first.interval_s, first.topics[0].published_per_s) == (None, None)
    found = moment(state(0), state(1, topic(published_messages=100)))
    assert (found.interval_s, found.topics[0].published_per_s) == (1, None)


def test_a_counter_that_fell_has_no_rate_and_others_have() -> None:
    found = moment(
        state(0, topic(published_messages=100, acked_messages=100)),
        state(1, topic(published_messages=99, acked_messages=101)),
    )
    [orders] = found.topics
    assert (orders.published_per_s, orders.acked_per_s) == (None, 1)


@pytest.mark.parametrize(
    "nodes",
    [
        (node(started="later"),),
        (node(), node("node-2")),
        (node(problem="it does not answer"),),
        (),
    ],
)
def test_a_node_that_comes_goes_or_restarts_makes_no_rate(nodes: tuple[object, ...]) -> None:
    """Its counters come into the sums, or leave them: the difference is no work of a second."""
    found = moment(
        state(0, topic(published_messages=100)),
        state(1, topic(published_messages=90_000), nodes=nodes),
    )
    assert (found.interval_s, found.topics[0].published_per_s) == (None, None)


def test_states_of_two_clocks_or_of_one_set_back_make_no_rate() -> None:
    assert moment(state(0), state(1, node="node-2")).interval_s is None
    assert moment(state(1), state(1)).interval_s is None
    assert moment(state(1), state(0)).interval_s is None


def test_the_trend_of_a_lag_tells_when_it_is_drained() -> None:
    falling = lags((0, 1000), (1, 900), (2, 800))
    assert (falling.lag_per_s, falling.drain_s) == (-100, 8)
    growing = lags((0, 100), (1, 150))
    assert (growing.lag_per_s, growing.drain_s) == (50, None)
    still = lags((0, 100), (1, 100))
    assert (still.lag_per_s, still.drain_s) == (0, None)
    done = lags((0, 100), (1, 0))
    assert done.drain_s == 0
    assert lags((0, 100)).lag_per_s is None


def test_the_trend_forgets_what_is_long_past() -> None:
    old = ((0.0, 100_000), (1.0, 10))
    assert lags(*old, (TREND_S_MAX, 10)).lag_per_s == pytest.approx(-99_990 / TREND_S_MAX)
    assert lags(*old, (TREND_S_MAX + 1, 10)).lag_per_s == 0


def test_the_trend_begins_anew_when_a_node_has_restarted() -> None:
    billing = topic(groups=(group(lag=50),))
    again = state(1, billing, nodes=(node(started="later"),))
    [found] = moment(state(0, topic(groups=(group(lag=100),))), again).groups
    assert found.lag_per_s is None


def test_a_topic_has_the_lag_of_all_its_groups_and_the_oldest_of_their_messages() -> None:
    began_ms = round(BEGIN.timestamp() * 1000)
    groups = (
        group("a", lag=3, oldest_ready=began_ms - 5_000),
        group("b", lag=4, oldest_ready=began_ms - 9_000),
        group("c"),
    )
    [orders] = moment(state(0, topic(groups=groups))).topics
    assert (orders.lag, orders.oldest_ready_ms) == (7, 9_000)
    assert [each.oldest_ready_ms for each in orders.groups] == [5_000, 9_000, None]
    ahead = topic(groups=(group(oldest_ready=began_ms + 700),))
    assert moment(state(0, ahead)).topics[0].oldest_ready_ms == 0


def test_a_node_has_its_share_of_a_core_and_percentiles_of_the_interval() -> None:
    slow = latencies(0, 100, 0, 0)
    found = moment(
        state(0, nodes=(node(cpu_s=10.0, requests=100, commit=slow),)),
        state(2, nodes=(node(cpu_s=11.0, requests=300, commit=latencies(99, 100, 1, 0)),)),
    )
    [load] = found.nodes
    assert (load.cpu_percent, load.requests_per_s) == (50, 100)
    assert (load.commit_p99_ms, load.publish_p99_ms) == (1, None)


def test_a_node_that_does_not_answer_has_no_load() -> None:
    away = node(status="down", problem="it does not answer")
    found = moment(state(0, nodes=(away,)), state(1, nodes=(away,)))
    [load] = found.nodes
    assert (load.cpu_percent, load.rss_bytes, load.problem) == (None, None, "it does not answer")


@pytest.mark.parametrize(
    ("after", "share", "expected"),
    [
        ((99, 1, 0, 0), 0.99, 0.001),
        ((98, 2, 0, 0), 0.99, 0.01),
        ((0, 0, 0, 1), 0.99, math.inf),
        ((0, 0, 0, 0), 0.99, None),
        ((-1, 5, 0, 0), 0.99, None),
    ],
)
def test_a_percentile_is_the_bound_of_its_class(
    after: tuple[int, ...], share: float, expected: float | None
) -> None:
    assert percentile((0, 0, 0, 0), after, BOUNDS_S, share) == expected
