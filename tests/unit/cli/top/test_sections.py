from __future__ import annotations

import pytest

from goq.client.results.live import WaitingMessages
from goq_cli.output.top.rates import RateMeter
from goq_cli.output.top.sections import (
    TopSection,
    group_section,
    node_section,
    shown_rate,
    shown_trend,
    summary,
    topic_section,
    waiting_section,
)
from tests.unit.cli.top.states import group, node, state, topic


def row(section: TopSection) -> dict[str, object]:
    """Return the only row of a section by column."""
    [cells] = section.rows
    return dict(zip(section.columns, cells, strict=True))


def test_the_summary_counts_nodes_topics_rates_and_lag() -> None:
    meter = RateMeter()
    lagging = (group(lag=1200),)
    first = meter.moment(state(0, topic(groups=lagging)))
    assert summary(first) == "10:30:00Z, 1 node, 1 topic, lag 1,200"
    second = state(
        1,
        topic(published_messages=30, groups=lagging),
        topic("mails"),
        nodes=(node(), node("node-2", problem="away")),
        is_partial=True,
    )
    assert summary(meter.moment(second)) == (
        "10:30:01Z, 2 nodes, 2 topics, published 30/s, delivered 0/s, acked 0/s, lag 1,200"
    )


def test_a_topic_is_a_row_of_rates_and_sizes() -> None:
    meter = RateMeter()
    meter.moment(state(0, topic()))
    busy = topic(published_messages=30, acked_messages=1, bytes=2048, messages=9, offline=2)
    found = row(topic_section(meter.moment(state(1, busy)).topics))
    assert found["publish/s"] == "30"
    assert found["ack/s"] == "1.0"
    assert (found["bytes"], found["messages"], found["offline"]) == (2048, 9, 2)


@pytest.mark.parametrize(
    ("lags", "trend", "drain"),
    [
        ((100, 50), "-50", "1.0 s"),
        ((1000, 900), "-100", "9.0 s"),
        ((100, 160), "+60", "never"),
        ((100, 100), "0", "never"),
        ((10**12, 10**12 - 1), "-1.0", "never"),
        ((10, 0), "-10", ""),
        ((100,), "", ""),
    ],
)
def test_a_group_is_a_row_with_trend_and_time_to_drain(
    lags: tuple[int, ...], trend: str, drain: str
) -> None:
    meter = RateMeter()
    for at_s, lag in enumerate(lags):
        moment = meter.moment(state(at_s, topic(groups=(group(lag=lag),))))
    found = row(group_section(moment.groups))
    assert (found["topic"], found["group"], found["lag"]) == ("orders", "billing", lags[-1])
    assert (found["trend/s"], found["drains in"]) == (trend, drain)
    assert "topic" not in group_section(moment.groups, has_topics=False).columns


def test_a_node_without_an_answer_shows_why_and_no_numbers() -> None:
    away = node("node-2", status="down", problem="it does not answer", version="")
    found = row(node_section(RateMeter().moment(state(0, nodes=(away,))).nodes))
    assert found.pop("node") == "node-2"
    assert found.pop("status") == "down: it does not answer"
    assert set(found.values()) == {""}


def test_a_full_disk_is_in_the_status() -> None:
    full = node(disk="nearly full", rss_bytes=2**20, disk_free_bytes=2**30)
    found = row(node_section(RateMeter().moment(state(0, nodes=(full,))).nodes))
    assert found["status"] == "up, disk nearly full"
    assert (found["memory"], found["disk free"]) == ("1MiB", "1GiB")


def test_lanes_and_tenants_that_wait_or_are_at_work_are_rows() -> None:
    lanes = (WaitingMessages(name="high", waiting=4), WaitingMessages(name="low", waiting=0))
    tenants = (WaitingMessages(name="acme", waiting=0, leased=3),)
    groups = RateMeter().moment(state(0, topic(groups=(group(lanes=lanes, tenants=tenants),))))
    rows = waiting_section(groups.groups).rows
    assert list(rows) == [("billing", "lane", "high", 4, 0), ("billing", "tenant", "acme", 0, 3)]


def test_lanes_and_tenants_that_are_not_known_are_rows_that_say_so() -> None:
    groups = RateMeter().moment(state(0, topic(groups=(group(lanes=None, tenants=None),))))
    rows = waiting_section(groups.groups).rows
    assert list(rows) == [
        ("billing", "lane", "(not known)", None, None),
        ("billing", "tenant", "(not known)", None, None),
    ]


def test_names_are_plain_text_of_a_bounded_width() -> None:
    moment = RateMeter().moment(state(0, topic("\x1b[2J" + "x" * 100)))
    found = row(topic_section(moment.topics, 20))
    assert found["topic"] == "\\x1b[2J" + "x" * 12 + "…"


def test_a_rate_is_short_and_an_unknown_one_is_nothing() -> None:
    rates = (None, 0.0, 0.04, 0.5, 9.94, 9.96, 12_345.6)
    assert [*map(shown_rate, rates)] == ["", "0", "0.0", "0.5", "9.9", "10", "12346"]
    assert [*map(shown_trend, (None, 0.0, 2.0, -300.0))] == ["", "0", "+2.0", "-300"]
