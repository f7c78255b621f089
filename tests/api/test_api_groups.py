from __future__ import annotations

from typing import Any

import pytest
from api_calls import group_of, publish, receive, settle, values
from support.running_node import RunningNode


def peek(node: RunningNode, topic: str, query: str, group: str = "g") -> dict[str, Any]:
    answer: dict[str, Any] = node.call("GET", f"/v1/topics/{topic}/groups/{group}/peek?{query}")
    return answer


def reset(node: RunningNode, topic: str, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = node.call("POST", f"/v1/topics/{topic}/groups/g/reset", body)
    return answer


@pytest.fixture
def mixed(node: RunningNode, topic: str) -> str:
    """Of ten messages in partition 0, three done, two leased, one waiting, four ready."""
    publish(node, topic, *"abcdefghij", partition=0)
    held = receive(node, topic, max=6, consumer="c-1", visibility="1h")
    receipts = [m["receipt"] for m in held]
    settle(node, topic, "ack", *receipts[:3])
    settle(node, topic, "nack", receipts[3], delay="1h")
    return topic


def test_a_group_is_shown_with_its_progress(node: RunningNode, mixed: str) -> None:
    group = group_of(node, mixed)
    assert isinstance(group.pop("oldest_ready_age_ms"), int)
    assert group.pop("settings")["visibility_timeout"] == "30s"
    none = {"blocked": 0, "scheduled": 0, "dead": 0}
    nothing = {"cursor": 0, "lag": 0, "ready": 0, "leased": 0, "retry": 0, **none}
    assert group == {
        **none,
        "group": "g",
        "lag": 7,
        "ready": 4,
        "leased": 2,
        "retry": 1,
        "members": [{"consumer": "c-1", "leased": 2}],
        "partitions": [
            {"partition": 0, "cursor": 6, "lag": 7, "ready": 4, "leased": 2, "retry": 1, **none},
            {"partition": 1, **nothing},
            {"partition": 2, **nothing},
        ],
    }


def test_groups_are_listed_by_name(node: RunningNode, topic: str) -> None:
    for group in ("b", "a"):
        receive(node, topic, group)
    groups = node.call("GET", f"/v1/topics/{topic}/groups")["groups"]
    assert groups == [group_of(node, topic, "a"), group_of(node, topic, "b")]
    assert [group["oldest_ready_age_ms"] for group in groups] == [None, None]


def test_a_deleted_group_begins_anew(node: RunningNode, mixed: str) -> None:
    assert node.request("DELETE", f"/v1/topics/{mixed}/groups/g").status == 204
    assert node.call("GET", f"/v1/topics/{mixed}/groups") == {"groups": []}
    assert len(receive(node, mixed)) == 10


def test_peeking_shows_each_state_and_touches_nothing(node: RunningNode, mixed: str) -> None:
    before = group_of(node, mixed)["partitions"]
    ready, leased, retry = (peek(node, mixed, f"state={s}") for s in ("ready", "leased", "retry"))
    assert values(ready["messages"]) == list("ghij")
    assert {(m["state"], m["attempt"]) for m in ready["messages"]} == {("ready", 0)}
    assert values(leased["messages"]) == list("ef")
    assert {(m["state"], m["attempt"]) for m in leased["messages"]} == {("leased", 1)}
    assert all(m["lease_until"] > m["timestamp"] for m in leased["messages"])
    assert values(retry["messages"]) == ["d"]
    assert retry["messages"][0]["due"] > retry["messages"][0]["timestamp"]
    assert all("receipt" not in m for m in leased["messages"])
    assert group_of(node, mixed)["partitions"] == before


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 100])
def test_peeking_goes_on_page_by_page_until_there_is_no_more(
    node: RunningNode, topic: str, limit: int
) -> None:
    for partition, count in enumerate((3, 4, 2)):
        publish(node, topic, *(f"{partition}{n}" for n in range(count)), partition=partition)
    receive(node, topic, max=1)  # makes the group, and a hole
    held = values(peek(node, topic, "state=leased")["messages"])
    found: list[str] = []
    after = ""
    while True:
        page = peek(node, topic, f"limit={limit}{after}")
        assert len(page["messages"]) <= limit
        found += values(page["messages"])
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    everything = {f"{p}{n}" for p, count in enumerate((3, 4, 2)) for n in range(count)}
    assert sorted(found) == sorted(everything - set(held))


def test_a_peek_is_bounded_in_bytes_and_goes_on_behind(node: RunningNode, topic: str) -> None:
    for _ in range(3):
        publish(node, topic, "x" * 5_000_000, partition=0)
    receive(node, topic, "g", max=1)
    page = peek(node, topic, "limit=100")
    assert len(page["messages"]) == 1
    assert page["next"] == f"{topic}:0:1"
    last = peek(node, topic, f"limit=100&after={page['next']}")
    assert (len(last["messages"]), last["next"]) == (1, None)


def test_a_dry_reset_says_what_would_be_and_changes_nothing(node: RunningNode, mixed: str) -> None:
    before = group_of(node, mixed)["partitions"]
    plan = reset(node, mixed, to="earliest", dry_run=True)
    assert plan["dry_run"] is True
    assert plan["partitions"][0] == {
        "partition": 0,
        "cursor": 6,
        "to": 0,
        "redelivers": 6,
        "skips": 0,
        "voids": 2,
    }
    assert group_of(node, mixed)["partitions"] == before


def test_a_reset_group_goes_on_from_there(node: RunningNode, mixed: str) -> None:
    held = peek(node, mixed, "state=leased")["messages"]
    reset(node, mixed, to="earliest")
    group = group_of(node, mixed)
    assert (group["lag"], group["ready"], group["leased"], group["retry"]) == (10, 10, 0, 0)
    assert held
    again = receive(node, mixed)
    assert values(again) == list("abcdefghij")
    assert {m["attempt"] for m in again} == {1}


def test_resetting_voids_the_receipts(node: RunningNode, topic: str) -> None:
    publish(node, topic, "x", partition=0)
    (message,) = receive(node, topic)
    reset(node, topic, to="latest")
    assert settle(node, topic, "ack", message["receipt"])["done"] == 0
    assert group_of(node, topic)["lag"] == 0


@pytest.mark.parametrize(("to", "expected"), [("latest", 4), (2, 2), ("2", 2), (0, 0), (99, 4)])
def test_a_reset_goes_where_it_is_told(
    node: RunningNode, topic: str, to: str | int, expected: int
) -> None:
    publish(node, topic, *"abcd", partition=1)
    plan = reset(node, topic, to=to, partition=1)
    assert [(p["partition"], p["to"]) for p in plan["partitions"]] == [(1, expected)]
    assert values(receive(node, topic)) == list("abcd")[expected:]


def test_a_reset_to_a_time_begins_with_the_first_message_since(
    node: RunningNode, topic: str
) -> None:
    results = [publish(node, topic, value, partition=0)[0] for value in "abc"]
    reset(node, topic, to=results[1]["timestamp"])
    assert values(receive(node, topic)) == ["b", "c"]
    reset(node, topic, to="-1h")
    assert len(receive(node, topic)) == 3


def test_a_reset_wakes_who_waits(node: RunningNode, topic: str) -> None:
    publish(node, topic, "x", partition=0)
    (message,) = receive(node, topic)
    settle(node, topic, "ack", message["receipt"])
    reset(node, topic, to="earliest")
    assert values(receive(node, topic, wait="10s")) == ["x"]
