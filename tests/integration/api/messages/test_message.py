"""One message: shown, cancelled, moved, given another time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from goq import limits
from tests.support.api.calls import group_of, publish, receive, settle, values
from tests.support.api.delivery import (
    HIGH,
    HOUR_MS,
    LOW,
    NORMAL,
    cancel,
    change,
    now_ms,
    put,
    put_later,
    show,
    states,
)
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node


def scheduled(node: RunningNode, topic: str, query: str = "") -> list[str]:
    return values(node.call("GET", f"/v1/topics/{topic}/scheduled?{query}")["messages"])


def test_a_message_says_what_holds_for_it(node: RunningNode, topic: str) -> None:
    due_ms, end_ms = now_ms() + HOUR_MS, now_ms() + 2 * HOUR_MS
    (plain,) = put(node, topic, "plain")
    (later,) = put(
        node,
        topic,
        "later",
        deliver_at_ms=[due_ms],
        expires_at_ms=[end_ms],
        tenants=["acme"],
        lanes=[HIGH],
    )
    found = show(node, plain)
    assert (found["state"], found["priority"], found["groups"]) == ("available", "normal", [])
    assert not {"tenant", "deliver_at", "expires_at"} & set(found)
    found = show(node, later)
    assert (found["state"], found["priority"], found["tenant"]) == ("scheduled", "high", "acme")
    assert found["deliver_at"] < found["expires_at"]
    assert found["value"] == "later"


def test_a_message_says_what_it_is_for_each_group(node: RunningNode, topic: str) -> None:
    receive(node, topic, "ready")
    first, second = put(node, topic, "a", "b")
    (held,) = receive(node, topic, "leased", max_messages=1, consumer="c-1", visibility="1h")
    (done,) = receive(node, topic, "done", max_messages=1)
    settle(node, topic, "ack", done["receipt"], group="done")
    (again,) = receive(node, topic, "retry", max_messages=1)
    settle(node, topic, "nack", again["receipt"], group="retry", delay="1h")
    groups = {each.pop("group"): each for each in show(node, first)["groups"]}
    assert groups["ready"] == {"state": "ready"}
    assert groups["done"] == {"state": "done"}
    assert groups["leased"]["consumer"] == "c-1"
    assert (groups["leased"]["state"], groups["leased"]["attempt"]) == ("leased", 1)
    assert groups["leased"]["lease_until"] == held["lease_until"]
    assert (groups["retry"]["state"], groups["retry"]["attempt"]) == ("retry", 1)
    assert "due" in groups["retry"]
    assert states(node, second) == dict.fromkeys(("done", "leased", "ready", "retry"), "ready")


def test_what_is_cancelled_goes_to_no_group_that_has_not_got_it(
    node: RunningNode, topic: str
) -> None:
    first, _ = put(node, topic, "a", "b")
    (held,) = receive(node, topic, "holder", max_messages=1)
    answer = cancel(node, first)
    assert answer["state"] == "cancelled"
    assert values(receive(node, topic, "other")) == ["b"]
    assert states(node, first) == {"holder": "leased", "other": "cancelled"}
    assert settle(node, topic, "nack", held["receipt"], group="holder", delay=0)["settled"] == 1
    assert values(receive(node, topic, "holder")) == ["b"]
    assert states(node, first) == {"holder": "cancelled", "other": "cancelled"}
    assert values(receive(node, topic, "later")) == ["b"]


def test_who_holds_a_cancelled_message_may_still_finish_it(node: RunningNode, topic: str) -> None:
    (message,) = put(node, topic, "a")
    (held,) = receive(node, topic)
    cancel(node, message)
    assert settle(node, topic, "ack", held["receipt"]) == {"settled": 1, "failed": []}


def test_a_cancelled_message_stays_so_when_a_group_goes_back(node: RunningNode, topic: str) -> None:
    first, _ = put(node, topic, "a", "b")
    cancel(node, first)
    assert values(receive(node, topic)) == ["b"]
    node.call("POST", f"/v1/topics/{topic}/groups/g/reset", {"to": "earliest"})
    assert values(receive(node, topic)) == ["b"]


def test_a_waiting_retry_can_be_cancelled_and_frees_its_key(node: RunningNode, topic: str) -> None:
    first, _ = put(node, topic, "a", "b", keys=["k", "k"])
    (held,) = receive(node, topic, max_messages=1)
    settle(node, topic, "nack", held["receipt"], delay="1h")
    assert receive(node, topic) == []
    cancel(node, first)
    assert values(receive(node, topic, wait="10s")) == ["b"]
    assert group_of(node, topic)["retry"] == 0


def test_a_scheduled_message_can_be_cancelled(node: RunningNode, topic: str) -> None:
    first, second = put_later(node, topic, "a", "b")
    cancel(node, first)
    assert scheduled(node, topic) == ["b"]
    assert show(node, first)["state"] == "cancelled"
    change(node, second, deliver_at="-1s")
    assert values(receive(node, topic, wait="10s")) == ["b"]


def test_what_every_group_has_finished_cannot_be_cancelled(node: RunningNode, topic: str) -> None:
    (message,) = put(node, topic, "a")
    for group in ("g", "h"):
        (held,) = receive(node, topic, group)
        settle(node, topic, "ack", held["receipt"], group=group)
    assert cancel(node, message, code=409)["code"] == "conflict"
    assert show(node, message)["state"] == "available"


def test_what_one_group_has_not_finished_can_be_cancelled(node: RunningNode, topic: str) -> None:
    (message,) = put(node, topic, "a")
    (held,) = receive(node, topic, "g")
    settle(node, topic, "ack", held["receipt"], group="g")
    put(node, topic, "b")
    node.call("PUT", f"/v1/topics/{topic}/groups/h", {"settings": {"max_attempts": 9}})
    cancel(node, message)
    assert values(receive(node, topic, "h")) == ["b"]


def test_cancelling_twice_is_no_error(node: RunningNode, topic: str) -> None:
    (message,) = put_later(node, topic, "a")
    put_later(node, topic, "b")
    assert cancel(node, message)["state"] == cancel(node, message)["state"] == "cancelled"
    assert scheduled(node, topic) == ["b"]


def test_a_reason_may_be_long_but_not_endless(node: RunningNode, topic: str) -> None:
    (message,) = put(node, topic, "a")
    path = f"/v1/messages/{message}?reason="
    assert node.request("DELETE", path + "x" * (limits.REASON_CHARS_MAX + 1)).status == 413
    assert show(node, message)["state"] == "available"
    assert node.request("DELETE", path + "x" * limits.REASON_CHARS_MAX).status == 200


def test_a_ready_message_moves_ahead_of_others(node: RunningNode, topic: str) -> None:
    *_, last = put(node, topic, "a", "b", "c")
    assert change(node, last, priority="high")["priority"] == "high"
    found = receive(node, topic)
    assert [(m["value"], m["priority"]) for m in found] == [
        ("c", "high"),
        ("a", "normal"),
        ("b", "normal"),
    ]


def test_a_message_moved_back_in_time_is_delivered_once_and_in_its_old_place(
    node: RunningNode, topic: str
) -> None:
    first, _ = put(node, topic, "a", "b")
    change(node, first, priority="low")
    change(node, first, priority="normal")
    found = []
    while page := receive(node, topic, max_messages=1):
        found += values(page)
    assert found == ["a", "b"]


def test_a_message_moved_back_after_its_old_place_was_passed_goes_to_the_end(
    node: RunningNode, topic: str
) -> None:
    first, *_ = put(node, topic, "a", "b", "c")
    change(node, first, priority="low")
    assert values(receive(node, topic, max_messages=1)) == ["b"]
    change(node, first, priority="normal")
    assert values(receive(node, topic)) == ["c", "a"]


def test_a_moved_message_keeps_its_tenant(node: RunningNode, topic: str) -> None:
    _, second = put(node, topic, "a", "b", tenants=["x", "y"], lanes=[NORMAL, NORMAL])
    assert change(node, second, priority="high")["tenant"] == "y"
    assert values(receive(node, topic)) == ["b", "a"]


def test_a_scheduled_message_matures_into_the_lane_it_was_moved_to(
    node: RunningNode, topic: str
) -> None:
    put(node, topic, "a", "b")
    (later,) = put_later(node, topic, "c", lanes=[LOW])
    assert change(node, later, priority="high")["state"] == "scheduled"
    assert values(node.call("GET", f"/v1/topics/{topic}/scheduled")["messages"]) == ["c"]
    change(node, later, deliver_at="now")
    eventually(lambda: show(node, later)["state"] == "available")
    assert values(receive(node, topic)) == ["c", "a", "b"]


def test_a_retry_that_waits_moves_too(node: RunningNode, topic: str) -> None:
    first, _ = put(node, topic, "a", "b", lanes=[LOW, LOW])
    (held,) = receive(node, topic, max_messages=1)
    settle(node, topic, "nack", held["receipt"], delay="300ms")
    change(node, first, priority="high")
    put(node, topic, "c", lanes=[HIGH])
    eventually(lambda: group_of(node, topic)["retry"] == 0)
    assert values(receive(node, topic)) == ["a", "c", "b"]


def test_what_does_not_wait_cannot_move(node: RunningNode, topic: str) -> None:
    (message,) = put(node, topic, "a")
    (held,) = receive(node, topic)
    assert change(node, message, code=409, priority="high")["code"] == "conflict"
    settle(node, topic, "ack", held["receipt"])
    assert change(node, message, code=409, priority="high")["code"] == "conflict"
    assert show(node, message)["priority"] == "normal"


def test_what_one_group_holds_moves_for_another(node: RunningNode, topic: str) -> None:
    receive(node, topic, "other")
    first, _ = put(node, topic, "b", "a")
    receive(node, topic, "holder", max_messages=1)
    change(node, first, priority="low")
    assert values(receive(node, topic, "other")) == ["a", "b"]


def test_a_cancelled_message_neither_moves_nor_gets_a_time(node: RunningNode, topic: str) -> None:
    (message,) = put_later(node, topic, "a")
    cancel(node, message)
    assert change(node, message, code=409, priority="high")["code"] == "conflict"
    assert change(node, message, code=409, deliver_at="now")["code"] == "conflict"


@pytest.mark.parametrize("in_ms", [HOUR_MS // 4, 48 * HOUR_MS])
@pytest.mark.parametrize("to", ["+20m", "+3d"])
def test_a_scheduled_message_gets_another_time(
    node: RunningNode, topic: str, in_ms: int, to: str
) -> None:
    (message,) = put_later(node, topic, "a", in_ms=in_ms)
    before = show(node, message)["deliver_at"]
    answer = change(node, message, deliver_at=to)
    assert answer["deliver_at"] != before
    assert answer["state"] == "scheduled"
    assert receive(node, topic) == []
    assert change(node, message, deliver_at="-1h")["deliver_at"] < answer["timestamp"]
    assert values(receive(node, topic, wait="10s")) == ["a"]
    assert receive(node, topic) == []
    assert scheduled(node, topic) == []


def test_only_what_waits_for_its_time_gets_another(node: RunningNode, topic: str) -> None:
    (plain,) = put(node, topic, "a")
    assert change(node, plain, code=409, deliver_at="+1h")["code"] == "conflict"
    (due,) = put_later(node, topic, "b", in_ms=1)
    eventually(lambda: show(node, due)["state"] == "available")
    assert change(node, due, code=409, deliver_at="+1h")["code"] == "conflict"


def test_a_time_is_within_what_the_topic_allows(node: RunningNode, topic: str) -> None:
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": {"delay.max": "1h"}})
    (message,) = put_later(node, topic, "a", in_ms=1000)
    assert change(node, message, code=400, deliver_at="+61m")["field"] == "deliver_at"
    assert change(node, message, deliver_at="+59m")["state"] == "scheduled"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "priority"),
        ({"priority": "high", "deliver_at": "now"}, "priority"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": 3}, "priority"),
        ({"deliver_at": "soon"}, "deliver_at"),
        ({"deliver_at": -1e18}, "deliver_at"),
    ],
)
def test_a_change_says_what_is_wrong_with_it(
    node: RunningNode, topic: str, fields: dict[str, Any], field: str
) -> None:
    (message,) = put_later(node, topic, "a")
    problem = change(node, message, code=400, **fields)
    assert problem["field"] == field


def test_what_does_not_exist_cannot_be_changed(node: RunningNode, topic: str) -> None:
    publish(node, topic, "a", partition=0)
    for message in (f"{topic}:0:1", f"{topic}:1:0"):
        assert cancel(node, message, code=404)["code"] == "message_not_found"
        assert change(node, message, code=404, priority="high")["code"] == "message_not_found"
    assert cancel(node, f"{topic}:9:0", code=404)["code"] == "partition_not_found"
    assert cancel(node, "nowhere:0:0", code=404)["code"] == "topic_not_found"


def test_marks_are_bounded(node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c, d = put_later(node, topic, *"abcd")
    monkeypatch.setattr(limits, "MARKS_PER_PARTITION_MAX", 3)
    cancel(node, a)
    change(node, b, priority="high")
    change(node, c, deliver_at="+2h")
    for fields in ({"priority": "high"}, {"deliver_at": "+2h"}):
        assert change(node, d, code=429, **fields)["code"] == "too_many_requests"
    assert cancel(node, d, code=429)["code"] == "too_many_requests"
    change(node, b, priority="low")
    change(node, c, deliver_at="+3h")
    cancel(node, a)
    (other,) = put(node, topic, "x", partition=1)
    cancel(node, other)


def test_marks_outlive_the_node(tmp_path: Path) -> None:
    with running_node(tmp_path / "data") as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
        cancelled, _, kept = put(node, "t", "cancelled", "moved", "kept")
        first, second, third = put_later(node, "t", "first", "second", "third", lanes=[LOW] * 3)
        (held,) = receive(node, "t", max_messages=1)
        settle(node, "t", "nack", held["receipt"], delay=0)
        cancel(node, cancelled)
        change(node, kept, priority="high")
        change(node, first, deliver_at="+2h")
        change(node, second, deliver_at="+30m")
        change(node, third, priority="high")
        cancel(node, second)
    with running_node(tmp_path / "data") as node:
        assert show(node, cancelled)["state"] == show(node, second)["state"] == "cancelled"
        assert values(receive(node, "t")) == ["kept", "moved"]
        assert scheduled(node, "t") == ["third", "first"]
        assert show(node, third)["priority"] == "high"
        assert values(receive(node, "t", "new")) == ["kept", "moved"]
        change(node, first, deliver_at="-1h")
        assert values(receive(node, "t", "new", wait="10s")) == ["first"]
        change(node, third, deliver_at="-1h")
        assert values(receive(node, "t", "new", wait="10s")) == ["third"]
    with running_node(tmp_path / "data") as node:
        assert receive(node, "t", "new") == []
        assert scheduled(node, "t") == []
        assert sorted(values(receive(node, "t", "newest"))) == ["first", "kept", "moved", "third"]
