"""The life of one message, as the API tells it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from goq import limits
from goq.broker.events.live_index import LiveEventIndex
from tests.support.api.calls import publish, receive, settle
from tests.support.api.delivery import cancel, change
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer
from tests.support.node.running_node import RunningNode, running_node


def trace(node: RunningNode, message_id: str, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = node.call("GET", f"/v1/messages/{message_id}/trace{query}")
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [step["event"] for step in found["events"]]


def one(node: RunningNode, topic: str, value: str = "x", **fields: Any) -> str:
    (stored,) = publish(node, topic, value, partition=0, **fields)
    return str(stored["id"])


def watches(node: RunningNode, topic: str) -> int:
    assert node.node.broker is not None
    spans: LiveEventIndex = node.node.broker.topic(topic).partitions[0].live_event_index
    return node.on_loop(lambda: spans._watch_count)


def test_a_message_that_was_only_published_has_one_step(node: RunningNode, topic: str) -> None:
    message_id = one(
        node, topic, "four", key="k", tenant="acme", headers={"traceparent": "00-a-b-01"}
    )
    found = trace(node, message_id)
    message = found["message"]
    assert list(found) == ["message", "events", "attempts", "publish_to_ack_ms", "incomplete"]
    assert (found["attempts"], found["publish_to_ack_ms"], found["incomplete"]) == (0, None, [])
    assert message["retained_until"] > message["timestamp"]
    del message["retained_until"], message["timestamp"]
    assert message == {
        "id": message_id,
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "key": "k",
        "lane": "normal",
        "size_bytes": 4 + 1 + 11 + 9,
        "tenant": "acme",
        "headers": {"traceparent": "00-a-b-01"},
        "traceparent": "00-a-b-01",
        "state": "live",
    }
    (step,) = found["events"]
    assert set(step) == {"time", "event", "id", "node", "durability"}
    assert (step["event"], step["id"]) == ("PUBLISHED", message_id)


def test_each_step_says_who_had_the_message_and_why(node: RunningNode, topic: str) -> None:
    message_id = one(node, topic)
    (held,) = receive(node, topic, consumer="one")
    settle(node, topic, "nack", held["receipt"], reason="busy", delay=0)
    (held,) = receive(node, topic, consumer="two")
    settle(node, topic, "extend", held["receipt"], visibility="2m")
    settle(node, topic, "ack", held["receipt"])
    found = trace(node, message_id)
    assert names(found) == [
        "PUBLISHED",
        "DELIVERED",
        "NACKED",
        "DELIVERED",
        "EXTENDED",
        "ACKNOWLEDGED",
    ]
    _, first, nacked, second, extended, acked = found["events"]
    assert (first["consumer"], first["attempt"], first["group"]) == ("one", 1, "g")
    assert "until" not in first
    assert (nacked["consumer"], nacked["reason"]) == ("one", "busy")
    assert (second["consumer"], second["attempt"]) == ("two", 2)
    assert extended["until"] > extended["time"]
    assert acked["consumer"] == "two"
    assert found["attempts"] == 2
    assert found["publish_to_ack_ms"] > 0


def test_a_lease_that_is_open_says_until_when(node: RunningNode, topic: str) -> None:
    message_id = one(node, topic)
    (held,) = receive(node, topic)
    assert trace(node, message_id)["events"][1]["until"] == held["lease_until"]


def test_changes_of_a_message_that_waits_are_steps(node: RunningNode, topic: str) -> None:
    message_id = one(node, topic, delay="1h")
    change(node, message_id, priority="high")
    change(node, message_id, deliver_at="+2h")
    node.call("DELETE", f"/v1/messages/{message_id}?reason=enough")
    found = trace(node, message_id)
    assert names(found) == ["PUBLISHED", "SCHEDULED", "MOVED", "RESCHEDULED", "CANCELLED"]
    _, scheduled, moved, rescheduled, cancelled = found["events"]
    assert scheduled["due"] == found["message"]["deliver_at"]
    assert (moved["lane"], cancelled["reason"]) == ("high", "enough")
    assert rescheduled["due"] > scheduled["due"]


def test_a_trace_follows_the_message_to_dead_letters_and_back(
    node: RunningNode, topic: str
) -> None:
    message_id = one(node, topic, headers={"a": "b"})
    (held,) = receive(node, topic)
    settle(node, topic, "reject", held["receipt"], reason="bad")
    eventually(lambda: "to" in trace(node, message_id)["events"][-2])
    node.call("POST", f"/v1/topics/{topic}/redrive", {"group": "g"})
    (again,) = receive(node, topic, wait="10s")
    settle(node, topic, "ack", again["receipt"])
    found = trace(node, message_id)
    dead, back = f"{topic}.dlq:0:0", again["id"]
    told = [(s["event"], s["id"], s.get("from"), s.get("to")) for s in found["events"]]
    assert told == [
        ("PUBLISHED", message_id, None, None),
        ("DELIVERED", message_id, None, None),
        ("REJECTED", message_id, None, None),
        ("DEAD_LETTERED", message_id, None, dead),
        ("PUBLISHED", dead, message_id, None),
        ("REDRIVEN", dead, None, back),
        ("PUBLISHED", back, dead, None),
        ("DELIVERED", back, None, None),
        ("ACKNOWLEDGED", back, None, None),
    ]
    assert found["attempts"] == 2
    assert found["publish_to_ack_ms"] > 0
    for other in (dead, back):
        also = trace(node, other)
        assert also["events"] == found["events"]
        assert also["message"]["id"] == other


def test_headers_that_name_another_message_do_not_bring_in_its_steps(
    node: RunningNode, topic: str
) -> None:
    other = one(node, topic)
    liar = one(node, topic, headers={"goq-dead-id": other, "goq-dead-group": "g"})
    (step,) = trace(node, liar)["events"]
    assert (step["id"], "from" in step) == (liar, False)


@pytest.mark.parametrize("text", ["nonsense", "orders:0", "orders:0:-1"])
def test_what_is_no_id_is_refused(node: RunningNode, text: str) -> None:
    answer = node.request("GET", f"/v1/messages/{text}/trace")
    assert (answer.status, answer.json["field"]) == (400, "id")


def test_a_message_that_is_not_there_yet_says_what_is(node: RunningNode, topic: str) -> None:
    one(node, topic)
    answer = node.request("GET", f"/v1/messages/{topic}:0:7/trace")
    assert (answer.status, answer.json["code"]) == (404, "message_not_found")
    assert "the next message there gets offset 1" in answer.json["detail"]
    answer = node.request("GET", "/v1/messages/no-such:0:7/trace")
    assert (answer.status, answer.json["code"]) == (404, "topic_not_found")


@pytest.mark.parametrize("query", ["wait=2m", "wait=x", "seen=-1", "seen=x", "other=1"])
def test_parameters_out_of_bounds_are_refused(node: RunningNode, topic: str, query: str) -> None:
    message_id = one(node, topic)
    answer = node.request("GET", f"/v1/messages/{message_id}/trace?{query}")
    assert answer.status == 400
    assert answer.json["field"] == query.partition("=")[0]


def following(node: RunningNode, message_id: str, query: str) -> tuple[threading.Thread, list[Any]]:
    answers: list[Answer] = []

    def ask() -> None:
        answers.append(node.request("GET", f"/v1/messages/{message_id}/trace?{query}"))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, answers


def test_a_trace_waits_for_the_next_step(node: RunningNode, topic: str) -> None:
    message_id, other = one(node, topic), one(node, topic)
    thread, answers = following(node, message_id, "wait=20s&seen=1")
    eventually(lambda: watches(node, topic) == 1)
    cancel(node, other)
    assert not answers
    (held,) = receive(node, topic, max_messages=1)
    assert held["id"] == message_id
    thread.join()
    assert names(answers[0].json) == ["PUBLISHED", "DELIVERED"]
    assert watches(node, topic) == 0


def test_a_trace_waits_for_what_becomes_of_the_copy(node: RunningNode, topic: str) -> None:
    message_id = one(node, topic)
    (held,) = receive(node, topic)
    settle(node, topic, "reject", held["receipt"])
    eventually(lambda: len(trace(node, message_id)["events"]) == 5)
    thread, answers = following(node, message_id, "wait=20s&seen=5")
    eventually(lambda: watches(node, f"{topic}.dlq") == 1)
    (dead,) = receive(node, f"{topic}.dlq", "look")
    thread.join()
    assert answers[0].json["events"][-1]["id"] == dead["id"]
    assert answers[0].json["events"][-1]["event"] == "DELIVERED"


def test_a_trace_waits_until_a_message_has_matured(node: RunningNode, topic: str) -> None:
    message_id = one(node, topic, delay="300ms")
    found = trace(node, message_id, "?wait=20s&seen=2")
    assert names(found) == ["PUBLISHED", "SCHEDULED", "MATURED"]


def test_a_trace_that_waits_in_vain_says_what_was_known(node: RunningNode, topic: str) -> None:
    message_id = one(node, topic)
    assert names(trace(node, message_id, "?wait=50ms&seen=1")) == ["PUBLISHED"]


def test_too_many_that_wait_are_refused(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TRACE_WATCHES_MAX", 1)
    message_id = one(node, topic)
    thread, answers = following(node, message_id, "wait=20s&seen=1")
    eventually(lambda: watches(node, topic) == 1)
    refused = node.request("GET", f"/v1/messages/{message_id}/trace?wait=20s&seen=1")
    assert (refused.status, refused.json["code"]) == (429, "too_many_requests")
    receive(node, topic)
    thread.join()
    assert answers[0].status == 200


def test_a_stopping_node_answers_whoever_waits(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
        message_id = one(node, "t")
        thread, answers = following(node, message_id, "wait=60s&seen=1")
        eventually(lambda: watches(node, "t") == 1)
    thread.join()
    assert (answers[0].status, answers[0].json["code"]) == (503, "shutting_down")
