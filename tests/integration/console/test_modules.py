"""What the modules of the console make of the node's answers, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api.console import Tab
from tests.support.effort import first_of
from tests.support.node.fixtures import node
from tests.support.node.running_node import RunningNode

__all__ = ["node"]


@pytest.fixture
def tab(browser: Any, node: RunningNode) -> Iterator[Tab]:
    opened = Tab(browser, node.url)
    yield opened
    opened.close()


def run(tab: Tab, module: str, code: str) -> Any:
    """Return what code makes of a module of the console."""
    return tab.page.evaluate(f"import('/ui/{module}').then((it) => {{ {code} }})")


LINE = """
const queue = (name, n) => ({name, published_messages: n, groups: []});
const nodes = (counts) => [{node: "n", publish: {counts}}];
const line = (second, rest) => ({
  time: `2025-01-15T10:30:0${second}.000000Z`, topics: [], removed: [],
  more: false, nodes: [], bounds_s: [0.1, 1], totals: {published_messages: 0}, ...rest});
const live = new it.LiveState();
"""


def test_rates_are_made_of_whole_moments_and_never_negative(tab: Tab) -> None:
    tab.open("/cluster", "Cluster")
    found = run(
        tab,
        "live.js",
        LINE
        + """
        const first = [line(1, {topics: [queue("a", 10)], more: true, nodes: nodes([1, 1, 0])}),
          line(1, {topics: [queue("b", 5)], totals: {published_messages: 15}})];
        const whole = first.map((one) => live.take(one));
        const next = {nodes: nodes([1, 3, 0]), totals: {published_messages: 35}};
        live.take(line(3, {...next, topics: [queue("a", 30)]}));
        const published = () =>
          [live.topics.get("a").rates, live.rates].map((one) => one.published_messages);
        const moving = published();
        const late = live.latencies.publish;
        live.take(line(4, {...next, removed: ["b"]}));
        const still = [live.topics.get("a").rates.published_messages, live.latencies.publish];
        const anew = {nodes: nodes([0, 0, 9]), totals: {published_messages: 2}};
        live.take(line(5, {...anew, topics: [queue("a", 2)]}));
        const began = published();
        return {whole, moving, late, still, began, names: [...live.topics.keys()],
          nodes: live.nodes};
        """,
    )
    assert found["whole"] == [False, True]
    assert found["moving"] == [10, 10]
    assert found["late"] == 1
    assert found["still"] == [0, None]
    assert found["began"] == [0, 0]
    assert found["names"] == ["a"]
    assert [node["status"] for node in found["nodes"]] == ["up"]


def test_a_lease_ends_with_the_step_that_ended_it(tab: Tab) -> None:
    tab.open("/cluster", "Cluster")
    found = run(
        tab,
        "timeline.js",
        """
        const step = (second, event, rest) =>
          ({time: `2025-01-15T10:30:${second}.000000Z`, event, id: "t:0:0", ...rest});
        const mine = (attempt) => ({group: "g", consumer: "c", attempt});
        const trace = {events: [
          step("00", "PUBLISHED"),
          step("01", "DELIVERED", {...mine(1), until: "2025-01-15T10:30:31Z"}),
          step("31", "EXPIRED", mine(1)),
          step("40", "DELIVERED", {...mine(2), until: "2025-01-15T10:31:40Z"})]};
        const drawn = it.life(trace, Date.parse("2025-01-15T10:30:50Z"));
        const {x, marks} = it.scale([0, 1, 1000000], 0, 100);
        const leases = drawn.rows[1].leases.map((one) =>
          [one.attempt, one.endMs - one.startMs, one.end, one.isOpen]);
        const places = [-5, 0, 1, 500000, 1000000, 2e6].map((ms) => Math.round(x(ms)));
        return {leases, places, marks, span: drawn.lastMs - drawn.firstMs};
        """,
    )
    assert found["leases"] == [[1, 30_000, "EXPIRED", False], [2, 10_000, "", True]]
    assert found["span"] == 50_000
    places = found["places"]
    assert places == sorted(places)
    assert places[:2] == [0, 0]
    assert places[4:] == [100, 100]
    assert places[2] > 5, "a short pause is seen beside a long one"


ENDS = {
    "RETURNED": 1,
    "RESET": 1,
    "GROUP_DELETED": 1,
    "DROPPED": 1,
    "SKIPPED": 1,
    "NACKED": 2,
    "CORRUPTED": 2,
}
"""Steps that end a lease, and the attempt of the delivery after it."""


@pytest.mark.parametrize("end", first_of(list(ENDS), quick=2))
def test_each_end_of_a_lease_ends_it_and_an_ack_ends_the_next(tab: Tab, end: str) -> None:
    tab.open("/cluster", "Cluster")
    found = run(
        tab,
        "timeline.js",
        f"""
        const end = "{end}", attempt = {ENDS[end]};
        """
        + """
        const step = (second, event, rest) =>
          ({time: `2025-01-15T10:30:${second}.000000Z`, event, id: "t:0:0", ...rest});
        const g = {group: "g", consumer: "c"};
        const h = {group: "h", consumer: "d"};
        const trace = {events: [
          step("01", "DELIVERED", {...g, attempt: 1}),
          step("02", "DELIVERED", {...h, attempt: 1}),
          step("05", end, end === "CORRUPTED" ? {} : {group: "g"}),
          step("10", "DELIVERED", {...g, attempt}),
          step("12", "ACKNOWLEDGED", {...g, attempt})]};
        const leases = it.life(trace, Date.parse("2025-01-15T10:30:50Z")).rows
          .filter((row) => row.group)
          .map((row) => row.leases.map((one) => [one.endMs - one.startMs, one.end, one.isOpen]));
        return leases;
        """,
    )
    of_others = [3_000, end, False] if end == "CORRUPTED" else [48_000, "", True]
    assert found == [[[4_000, end, False], [2_000, "ACKNOWLEDGED", False]], [of_others]]


def test_a_lease_whose_end_is_missing_ends_at_the_latest_with_the_next(tab: Tab) -> None:
    tab.open("/cluster", "Cluster")
    found = run(
        tab,
        "timeline.js",
        """
        const step = (second, until) => ({time: `2025-01-15T10:30:${second}.000000Z`,
          event: "DELIVERED", id: "t:0:0", group: "g", attempt: 1, until});
        const trace = {events: [step("01"), step("04", "2025-01-15T10:30:05Z"), step("10"),
          {...step("20"), event: "ACKNOWLEDGED"}]};
        return it.life(trace, Date.parse("2025-01-15T10:30:50Z")).rows[0].leases
          .map((one) => [one.endMs - one.startMs, one.end, one.isOpen]);
        """,
    )
    assert found == [[3_000, "", False], [1_000, "", False], [10_000, "ACKNOWLEDGED", False]]
