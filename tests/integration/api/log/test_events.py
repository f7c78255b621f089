"""Reading a partition's events as they were written."""

from __future__ import annotations

from typing import Any

import pytest

from goq.broker.partition.partition import Partition
from goq.client import Client
from tests.support.api.calls import publish
from tests.support.node.running_node import RunningNode


def events(node: RunningNode, topic: str, query: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = node.call("GET", f"/v1/topics/{topic}/events?partition=0{query}")
    return answer


@pytest.fixture
def acked(node: RunningNode, topic: str) -> str:
    for number in range(3):
        publish(node, topic, str(number), partition=0)
    group = f"/v1/topics/{topic}/groups/g"
    found = node.call("POST", f"{group}/receive", {"max_messages": 3, "consumer": "c"})["messages"]
    node.call("POST", f"{group}/ack", {"receipts": [m["receipt"] for m in found]})
    return topic


def test_what_happened_is_told_in_order_with_its_time(node: RunningNode, acked: str) -> None:
    found = events(node, acked)
    kinds = [e["event"] for e in found["events"]]
    assert kinds.index("leased") < kinds.index("acked")
    leased = next(e for e in found["events"] if e["event"] == "leased")
    assert leased["group"] == "g"
    assert leased["consumer"] == "c"
    assert leased["time"].endswith("Z")
    assert found["next"] == found["events"][-1]["sequence"] + 1


def test_events_that_other_replicas_have_not_confirmed_are_not_told(
    node: RunningNode, acked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = events(node, acked)["events"]
    last = whole[-1]["sequence"]
    monkeypatch.setattr(Partition, "event_high_watermark", property(lambda _partition: last))
    found = events(node, acked)
    assert found["events"] == whole[:-1]
    assert found["next"] == last


def test_reading_goes_on_where_it_was_told_to(node: RunningNode, acked: str) -> None:
    whole = events(node, acked)["events"]
    pieces, at = [], 0
    while at < whole[-1]["sequence"] + 1:
        piece = events(node, acked, f"&offset={at}&limit=1")
        pieces += piece["events"]
        at = piece["next"]
    assert pieces == whole
    assert events(node, acked, f"&offset={at}")["events"] == []


def test_the_fast_form_has_the_same_events(node: RunningNode, acked: str) -> None:
    with Client(node.url) as client:
        batch = client.read_events(acked, partition=0)
    assert sum(view.header.message_count for view in batch.frames) == len(
        events(node, acked)["events"]
    )
    assert batch.next == batch.end


@pytest.mark.parametrize("query", ["", "?partition=x", "?partition=0&limit=0"])
def test_what_is_wrong_with_the_question_is_said(node: RunningNode, topic: str, query: str) -> None:
    answer = node.request("GET", f"/v1/topics/{topic}/events{query}")
    assert answer.status == 400
    assert answer.json["code"] == "invalid_input"
