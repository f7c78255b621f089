from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from goq import limits
from tests.support.api.calls import group_of, publish, receive, settle
from tests.support.node.running_node import RunningNode


def at(node: RunningNode, topic: str, time: str, group: str = "g") -> dict[str, Any]:
    answer: dict[str, Any] = node.call("GET", f"/v1/topics/{topic}/groups/{group}?as_of={time}")
    return answer


def refusal(node: RunningNode, path: str) -> tuple[int, str, str]:
    answer = node.request("GET", path)
    return answer.status, answer.json["code"], answer.json.get("field", "")


def time_of(node: RunningNode, topic: str) -> str:
    """Return when a message was published after all that was done so far."""
    (stored,) = publish(node, topic, "mark", partition=2)
    found: str = node.call("GET", f"/v1/messages/{stored['id']}")["timestamp"]
    return found


@pytest.fixture
def past(node: RunningNode, topic: str) -> tuple[str, str, dict[str, Any]]:
    """A topic, a time at which all its states had messages, and the group as it was then."""
    publish(node, topic, *"abcdefghij", partition=0)
    publish(node, topic, "later", partition=1, delay="1h")
    receipts = [
        m["receipt"] for m in receive(node, topic, max_messages=7, consumer="c", visibility="1h")
    ]
    settle(node, topic, "ack", *receipts[:3])
    settle(node, topic, "nack", receipts[3], delay="1h")
    settle(node, topic, "reject", receipts[4])
    time = time_of(node, topic)
    seen = group_of(node, topic)
    settle(node, topic, "ack", *receipts[5:])
    publish(node, topic, "more")
    return topic, time, seen


def test_a_group_is_told_of_as_it_was(
    node: RunningNode, past: tuple[str, str, dict[str, Any]]
) -> None:
    topic, time, seen = past
    found = at(node, topic, time)
    assert (found.pop("as_of"), found.pop("incomplete")) == (time, [])
    assert found.pop("blocked") is None
    assert found["lag"] == 7
    assert (found["ready"], found["leased"], found["retry"]) == (4, 2, 1)
    assert (found["scheduled"], found["dead"]) == (1, 1)
    assert found["members"] == [{"consumer": "c", "leased": 2}]
    assert found["oldest_ready_age_ms"] <= seen.pop("oldest_ready_age_ms")
    del seen["settings"], seen["blocked"], found["oldest_ready_age_ms"]
    for partition in seen["partitions"]:
        partition["blocked"] = None
    assert found == seen
    assert group_of(node, topic)["leased"] == 0


def test_a_group_that_is_gone_is_told_of_as_long_as_it_was_there(
    node: RunningNode, past: tuple[str, str, dict[str, Any]]
) -> None:
    topic, time, _ = past
    node.request("DELETE", f"/v1/topics/{topic}/groups/g")
    assert at(node, topic, time)["lag"] == 7
    path = f"/v1/topics/{topic}/groups/g"
    assert refusal(node, f"{path}?as_of=now") == (404, "group_not_found", "group")


def test_a_time_at_which_nothing_can_be_told_is_refused(node: RunningNode, topic: str) -> None:
    path = f"/v1/topics/{topic}/groups"
    receive(node, topic)
    assert refusal(node, f"{path}/g?as_of=%2B1h") == (400, "invalid_input", "as_of")
    for time in ("999999999999999999", "99999999999d", "9" * 70):
        assert refusal(node, f"{path}/g?as_of=%2B{time}") == (400, "invalid_input", "as_of")
        assert refusal(node, f"{path}/g?as_of={time}") == (400, "invalid_input", "as_of")
    assert refusal(node, f"{path}/g?as_of=-99999999999999d") == (404, "group_not_found", "group")
    assert refusal(node, f"{path}/g?as_of=yesterday") == (400, "invalid_input", "as_of")
    assert refusal(node, f"{path}/g?as_of=1970-01-01") == (404, "group_not_found", "group")
    assert refusal(node, f"{path}/other?as_of=now") == (404, "group_not_found", "group")
    assert refusal(node, f"{path}/a%20b?as_of=now")[:2] == (400, "invalid_input")
    assert refusal(node, "/v1/topics/missing/groups/g?as_of=now")[1] == "topic_not_found"


def test_a_topic_is_shown_over_time(node: RunningNode, topic: str) -> None:
    path = f"/v1/topics/{topic}/history"
    empty = node.call("GET", path)
    assert (empty["first_time"], empty["last_time"], empty["days"]) == (None, None, [])
    assert empty["scheduled"] == {"count": 0, "next_due": None}
    publish(node, topic, *"abc")
    publish(node, topic, "x", delay="2h", partition=1)
    publish(node, topic, "y", delay="1h", partition=2)
    settle(node, topic, "ack", *[m["receipt"] for m in receive(node, topic)])
    found = node.call("GET", path)
    (today,) = found["days"][-1:]
    assert today["date"] in (found["last_time"][:10], datetime.now(UTC).date().isoformat())
    assert sum(day["messages"] for day in found["days"]) == 5
    stored = sum(p["bytes"] for p in node.call("GET", f"/v1/topics/{topic}")["partitions"])
    assert sum(day["bytes"] for day in found["days"]) == stored
    assert found["first_time"] <= found["last_time"]
    due = node.call("GET", f"/v1/topics/{topic}/scheduled")["messages"][0]["deliver_at"]
    assert found["scheduled"] == {"count": 2, "next_due": due}
    rates = found["rates"]
    assert 0 <= rates["published_per_s"] * rates["window_s"] <= 5.1
    assert rates["published_bytes_per_s"] >= rates["published_per_s"]
    assert 0 <= rates["acked_per_s"] * rates["window_s"] <= 3.1


@pytest.mark.parametrize(
    ("days", "status"),
    [("0", 400), ("1", 200), (str(limits.HISTORY_DAYS_MAX), 200),
     (str(limits.HISTORY_DAYS_MAX + 1), 400), ("x", 400)],
)  # fmt: skip
def test_history_has_bounds(node: RunningNode, topic: str, days: str, status: int) -> None:
    assert node.request("GET", f"/v1/topics/{topic}/history?days={days}").status == status
