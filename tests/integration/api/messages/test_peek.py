"""Peeking: every state, stable pages, nothing touched."""

from __future__ import annotations

from typing import Any

import pytest

from goq import limits
from tests.support.api.calls import group_of, publish, receive, settle, values
from tests.support.api.delivery import HOUR_MS, LOW, cancel, change, now_ms, put, put_later
from tests.support.broker.copies import put_copies
from tests.support.node.running_node import RunningNode

STATES = (
    "ready",
    "blocked",
    "leased",
    "retry",
    "scheduled",
    "expired",
    "dead",
    "done",
    "cancelled",
)


def peek(node: RunningNode, topic: str, state: str, query: str = "") -> dict[str, Any]:
    path = f"/v1/topics/{topic}/groups/g/peek?state={state}{query}"
    answer: dict[str, Any] = node.call("GET", path)
    return answer


def peeked(node: RunningNode, topic: str, state: str) -> list[str]:
    return values(peek(node, topic, state)["messages"])


def paged(node: RunningNode, topic: str, state: str, limit: int) -> list[str]:
    found: list[str] = []
    after = ""
    while True:
        page = peek(node, topic, state, f"&limit={limit}{after}")
        assert len(page["messages"]) <= limit
        assert {message["state"] for message in page["messages"]} <= {state}
        found += values(page["messages"])
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


@pytest.fixture
def mixed(node: RunningNode, topic: str) -> str:
    """Messages in every state, in two partitions."""
    node.call("POST", "/v1/topics", {"name": f"{topic}.dlq", "partitions": 1})
    receive(node, topic)
    for number in (0, 1):
        names = [f"{name}{number}" for name in ("done", "leased", "retry")]
        put(node, topic, *names, keys=["a", "b", "c"], partition=number)
    for held in receive(node, topic, visibility="1h"):
        if held["value"].startswith("done"):
            settle(node, topic, "ack", held["receipt"])
        elif held["value"].startswith("retry"):
            settle(node, topic, "nack", held["receipt"], delay="1h")
    for number in (0, 1):
        put(node, topic, f"blocked{number}", f"wait{number}", keys=["b", "d"], partition=number)
    for held in receive(node, topic, visibility="1h"):
        settle(node, topic, "nack", held["receipt"], delay=0)
    for number in (0, 1):
        put_later(node, topic, f"later{number}", partition=number)
        put(
            node,
            topic,
            f"old{number}",
            f"fresh{number}",
            expires_at_ms=[now_ms() - 1, now_ms() + HOUR_MS],
            partition=number,
        )
        (gone,) = put(node, topic, f"gone{number}", partition=number)
        cancel(node, gone)
    header = {"goq-dead-group": "g"}
    put_copies(node, f"{topic}.dlq", "dead0", headers=header)
    put_copies(node, f"{topic}.dlq", "other", headers={"goq-dead-group": "h"})
    publish(node, f"{topic}.dlq", "claimed", headers=header)
    put_copies(node, f"{topic}.dlq", "dead1", headers=header)
    return topic


EXPECTED = {
    "ready": ["wait0", "fresh0", "wait1", "fresh1"],
    "blocked": ["blocked0", "blocked1"],
    "leased": ["leased0", "leased1"],
    "retry": ["retry0", "retry1"],
    "scheduled": ["later0", "later1"],
    "expired": ["old0", "old1"],
    "dead": ["dead0", "dead1"],
    "done": ["done0", "done1"],
    "cancelled": ["gone0", "gone1"],
}


def test_each_state_is_shown_and_nothing_is_touched(node: RunningNode, mixed: str) -> None:
    before = group_of(node, mixed)["partitions"]
    assert {state: peeked(node, mixed, state) for state in STATES} == EXPECTED
    assert {state: peeked(node, mixed, state) for state in STATES} == EXPECTED
    assert group_of(node, mixed)["partitions"] == before


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_each_state_has_pages(node: RunningNode, mixed: str, limit: int) -> None:
    assert {state: paged(node, mixed, state, limit) for state in STATES} == EXPECTED


def test_a_page_may_be_short_when_much_was_looked_at_in_vain(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PEEK_SCANNED_MESSAGES_MAX", 10)
    receive(node, topic)
    for number in range(30):
        put(
            node,
            topic,
            str(number),
            expires_at_ms=[now_ms() - 1 if number in (3, 25) else now_ms() + HOUR_MS],
        )
    first = peek(node, topic, "expired", "&limit=100")
    assert values(first["messages"]) == ["3"]
    assert first["next"] is not None
    assert paged(node, topic, "expired", 100) == ["3", "25"]
    ready = [str(number) for number in range(30) if number not in (3, 25)]
    assert paged(node, topic, "ready", 100) == ready


def test_what_expired_is_shown_until_it_is_passed_over(node: RunningNode, topic: str) -> None:
    receive(node, topic)
    put(node, topic, "old", expires_at_ms=[now_ms() - 1])
    assert peeked(node, topic, "expired") == ["old"]
    assert receive(node, topic) == []
    assert peeked(node, topic, "expired") == []


def test_a_held_message_that_is_moved_is_ready_in_its_new_lane(
    node: RunningNode, topic: str
) -> None:
    _, second = put(node, topic, "a", "b", keys=["k", "k"])
    (held,) = receive(node, topic, max_messages=1)
    assert receive(node, topic) == []
    assert peeked(node, topic, "blocked") == ["b"]
    change(node, second, priority="low")
    settle(node, topic, "ack", held["receipt"])
    assert values(receive(node, topic, wait="10s")) == ["b"]
    assert receive(node, topic) == []


def test_a_dead_letter_that_was_taken_away_is_not_shown(node: RunningNode, topic: str) -> None:
    node.call("POST", "/v1/topics", {"name": f"{topic}.dlq", "partitions": 1})
    receive(node, topic)
    assert peek(node, topic, "dead") == {"messages": [], "next": None, "damaged": []}
    put_copies(node, f"{topic}.dlq", "x", "y", headers={"goq-dead-group": "g"})
    cancel(node, f"{topic}.dlq:0:0")
    assert peeked(node, topic, "dead") == ["y"]


def test_without_a_topic_of_dead_letters_none_is_dead(node: RunningNode, topic: str) -> None:
    receive(node, topic)
    assert peeked(node, topic, "dead") == []


def test_an_unknown_state_is_refused_with_those_there_are(node: RunningNode, topic: str) -> None:
    receive(node, topic)
    answer = node.request("GET", f"/v1/topics/{topic}/groups/g/peek?state=gone")
    assert (answer.status, answer.json["field"]) == (400, "state")
    assert all(state in answer.json["detail"] for state in STATES)


def test_among_many_that_wait_the_few_that_are_ready_are_found(
    node: RunningNode, topic: str
) -> None:
    receive(node, topic)
    for _ in range(3):
        put_later(node, topic, *["x"] * 20_000)
    put(node, topic, "here", lanes=[LOW])
    assert peeked(node, topic, "ready") == ["here"]
    assert len(peeked(node, topic, "scheduled")) == 10
    assert group_of(node, topic)["scheduled"] == 60_000
