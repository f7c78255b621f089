"""What waits for its time: listed in order of due time, a page at a time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from goq import limits
from tests.support.api.calls import publish, receive, values
from tests.support.api.delivery import HIGH, HOUR_MS, cancel, change, now_ms, put, put_later, show
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node


def page(node: RunningNode, topic: str, query: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = node.call("GET", f"/v1/topics/{topic}/scheduled?{query}")
    return answer


def pages(node: RunningNode, topic: str, limit: int, query: str = "") -> list[str]:
    found: list[str] = []
    after = ""
    while True:
        some = page(node, topic, f"limit={limit}{after}{query}")
        assert 0 < len(some["messages"]) <= limit
        found += values(some["messages"])
        if some["next"] is None:
            return found
        after = f"&after={some['next']}"


def test_nothing_scheduled_is_an_empty_page(node: RunningNode, topic: str) -> None:
    publish(node, topic, "a")
    assert page(node, topic) == {"messages": [], "next": None}


@pytest.mark.parametrize("limit", [1, 2, 5, 13, 100])
def test_messages_are_listed_by_due_time_then_partition_then_offset(
    node: RunningNode, topic: str, limit: int
) -> None:
    rng, base_ms = random.Random(limit), now_ms() + HOUR_MS
    expected = []
    for partition in (2, 0, 1):
        times = [
            base_ms + rng.randrange(4) * 60_000 + 90 * HOUR_MS * rng.randrange(2) for _ in range(9)
        ]
        names = [f"{partition}-{n}" for n in range(9)]
        ids = put(node, topic, *names, partition=partition, deliver_at_ms=times)
        expected += [
            (t, partition, n, name) for t, n, name in zip(times, range(9), names, strict=True)
        ]
        assert len(ids) == 9
    publish(node, topic, "plain", partition=1)
    in_order = [name for *_, name in sorted(expected)]
    assert pages(node, topic, limit) == in_order


def test_what_was_cancelled_moved_or_rescheduled_is_listed_as_it_is_now(
    node: RunningNode, topic: str
) -> None:
    a, b, c, d = put_later(node, topic, *"abcd", tenants=["x", "x", "x", "x"])
    change(node, a, deliver_at="+3d")
    change(node, b, deliver_at="+2h")
    cancel(node, c)
    change(node, d, priority="high")
    found = page(node, topic)["messages"]
    assert values(found) == ["d", "b", "a"]
    assert [m["priority"] for m in found] == ["high", "normal", "normal"]
    assert {m["tenant"] for m in found} == {"x"}
    assert {m["state"] for m in found} == {"scheduled"}
    assert [m["deliver_at"] for m in found] == sorted(m["deliver_at"] for m in found)
    assert found[2]["deliver_at"] == show(node, a)["deliver_at"]
    assert pages(node, topic, 1) == ["d", "b", "a"]
    change(node, a, deliver_at="+10m")
    assert pages(node, topic, 1) == ["a", "d", "b"]


def test_until_leaves_out_what_is_due_then(node: RunningNode, topic: str) -> None:
    base_ms = now_ms() + HOUR_MS
    put(node, topic, *"abc", deliver_at_ms=[base_ms, base_ms + 1, base_ms + 2])
    assert values(page(node, topic, f"until={base_ms + 1}")["messages"]) == ["a"]
    assert values(page(node, topic, f"until={base_ms + 2}")["messages"]) == ["a", "b"]
    assert page(node, topic, f"until={base_ms}")["messages"] == []
    assert pages(node, topic, 1, f"&until={base_ms + 2}") == ["a", "b"]


def test_what_has_matured_is_listed_no_more(node: RunningNode, topic: str) -> None:
    put_later(node, topic, "soon", in_ms=1, lanes=[HIGH])
    put_later(node, topic, "late")
    eventually(lambda: values(page(node, topic)["messages"]) == ["late"])
    assert values(receive(node, topic)) == ["soon"]


def test_an_answer_is_bounded_in_bytes(node: RunningNode, topic: str) -> None:
    for letter in "abc":
        put_later(node, topic, letter * 5_000_000)
    assert [len(v) for v in pages(node, topic, 100)] == [5_000_000] * 3
    assert len(page(node, topic)["messages"]) == 1


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        (f"limit={limits.SCHEDULED_MESSAGES_MAX + 1}", "limit"),
        ("after=t:0:1", "after"),
        ("after=1.2", "after"),
        ("after=1.2.x", "after"),
        (f"after={'9' * 5000}.1.1", "after"),
        (f"after={'0' * 5000}.1.1", "after"),
        (f"after=1.1.{2**63}", "after"),
        ("until=soon", "until"),
    ],
)
def test_a_bad_parameter_is_named(node: RunningNode, topic: str, query: str, field: str) -> None:
    put_later(node, topic, "a")
    answer = node.request("GET", f"/v1/topics/{topic}/scheduled?{query}")
    assert (answer.status, answer.json["field"]) == (400, field)


def test_as_many_as_may_be_fit_a_page(node: RunningNode, topic: str) -> None:
    count = limits.SCHEDULED_MESSAGES_MAX
    put_later(node, topic, *map(str, range(count + 1)))
    assert len(page(node, topic, f"limit={count}")["messages"]) == count


def test_the_list_is_the_same_after_a_restart(tmp_path: Path) -> None:
    with running_node(tmp_path / "data") as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 2})
        times = [now_ms() + HOUR_MS * (1 + n * 7 % 5) for n in range(20)]
        for partition in (0, 1):
            put(node, "t", *map(str, range(20)), partition=partition, deliver_at_ms=times)
        change(node, "t:0:3", deliver_at="+9h")
        cancel(node, "t:1:4")
        before = page(node, "t")
    with running_node(tmp_path / "data") as node:
        assert page(node, "t") == before
        assert len(before["messages"]) == 39
