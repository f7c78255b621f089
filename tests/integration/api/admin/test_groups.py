from __future__ import annotations

from typing import Any

import pytest

from goq import limits
from goq.api.routing_policy import DONE, encode_partitions
from tests.support.api.calls import group_of, publish, receive, settle, values
from tests.support.node.running_node import RunningNode


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
    held = receive(node, topic, max_messages=6, consumer="c-1", visibility="1h")
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
    receive(node, topic, max_messages=1)  # makes the group, and a hole
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
    receive(node, topic, "g", max_messages=1)
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
    assert settle(node, topic, "ack", message["receipt"])["settled"] == 0
    assert group_of(node, topic)["lag"] == 0


def test_a_reset_leaves_the_partitions_in_which_another_try_has_done_it(
    node: RunningNode, mixed: str
) -> None:
    path = f"/v1/topics/{mixed}/groups/g/reset"
    before = group_of(node, mixed)["partitions"]
    headers = {DONE: encode_partitions([0, 2])}
    answer = node.request("POST", path, {"to": "earliest"}, headers)
    assert [partition["partition"] for partition in answer.json["partitions"]] == [1]
    assert group_of(node, mixed)["partitions"] == before


@pytest.mark.parametrize(("to", "expected"), [("latest", 4), (2, 2), ("2", 2), (0, 0), (99, 4)])
def test_a_reset_goes_where_it_is_told(
    node: RunningNode, topic: str, to: str | int, expected: int
) -> None:
    publish(node, topic, *"abcd", partition=1)
    plan = reset(node, topic, to=to, partition=1)
    assert [(p["partition"], p["to"]) for p in plan["partitions"]] == [(1, expected)]
    assert values(receive(node, topic)) == list("abcd")[expected:]


@pytest.mark.parametrize("field", ["to", "end"])
def test_a_word_that_is_no_position_is_answered_with_those_that_are(
    node: RunningNode, topic: str, field: str
) -> None:
    publish(node, topic, "a", partition=0)
    body = {"to": "earliest", "dry_run": True, field: "oldest"}
    answer = node.request("POST", f"/v1/topics/{topic}/groups/g/reset", body)
    assert (answer.status, answer.json["field"]) == (400, field)
    detail = answer.json["detail"]
    assert "earliest, latest, an offset, or a time" in detail
    assert "milliseconds" not in detail


def test_a_time_in_milliseconds_is_not_taken_for_an_offset_past_all_messages(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "a", partition=0)
    body = {"to": 1_736_937_000_000}
    answer = node.request("POST", f"/v1/topics/{topic}/groups/g/reset", body)
    assert (answer.status, answer.json["field"]) == (400, "to")
    assert "write a time as" in answer.json["detail"]
    assert values(receive(node, topic)) == ["a"]


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


def test_a_reset_with_an_end_stops_the_group_there_until_it_is_reset_again(
    node: RunningNode, topic: str
) -> None:
    results = [publish(node, topic, value, partition=0)[0] for value in "abcdef"]
    plan = reset(node, topic, to=results[1]["timestamp"], end=results[4]["timestamp"])
    assert plan["partitions"][0] == {
        "partition": 0,
        "cursor": 0,
        "to": 1,
        "redelivers": 0,
        "skips": 1,
        "voids": 0,
        "end": 4,
        "withholds": 2,
    }
    assert [p.get("end") for p in group_of(node, topic)["partitions"]] == [4, 0, 0]
    assert group_of(node, topic)["lag"] == 3
    assert values(peek(node, topic, "state=ready")["messages"]) == list("bcd")
    publish(node, topic, "g", partition=1)
    assert values(receive(node, topic)) == list("bcd")
    group = group_of(node, topic)
    assert (group["lag"], group["ready"], group["leased"]) == (3, 0, 3)
    assert receive(node, topic) == []
    reset(node, topic, to="earliest")
    assert "end" not in group_of(node, topic)["partitions"][0]
    assert sorted(values(receive(node, topic))) == list("abcdefg")


@pytest.mark.parametrize(
    ("to", "end"), [(3, 2), ("3", 2), ("now", "-1h"), ("-1m", "-2m"), (2**62, 0)]
)
def test_a_reset_whose_end_lies_before_its_beginning_is_refused(
    node: RunningNode, mixed: str, to: object, end: object
) -> None:
    path = f"/v1/topics/{mixed}/groups/g/reset"
    before = group_of(node, mixed)["partitions"]
    refused = node.request("POST", path, {"to": to, "end": end})
    assert (refused.status, refused.json["field"]) == (400, "end")
    assert group_of(node, mixed)["partitions"] == before
    same = node.request("POST", path, {"to": 3, "end": 3, "dry_run": True})
    assert same.status == 200


def test_a_dry_reset_of_a_group_that_has_an_end_counts_only_what_it_was_handed(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, *"abcdef", partition=0)
    reset(node, topic, to=0, end=2)
    receive(node, topic)
    redelivering = reset(node, topic, to=0, end="latest", dry_run=True)["partitions"][0]
    assert (redelivering["redelivers"], redelivering["end"]) == (2, 6)
    assert (redelivering["withholds"], redelivering["voids"]) == (0, 2)
    skipping = reset(node, topic, to=4, dry_run=True)["partitions"][0]
    assert (skipping["skips"], skipping["redelivers"]) == (2, 0)
    assert "end" not in skipping


def test_an_end_at_the_beginning_makes_a_group_that_gets_nothing(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, *"abc", partition=0)
    plan = reset(node, topic, to=2, end=2, partition=0)["partitions"][0]
    assert (plan["to"], plan["end"], plan["withholds"]) == (2, 2, 1)
    assert receive(node, topic) == []
    assert group_of(node, topic)["lag"] == 0


def test_what_is_scheduled_behind_the_end_is_not_the_groups(node: RunningNode, topic: str) -> None:
    publish(node, topic, *"ab", partition=0)
    late = {"value": "c", "delay": "1h", "partition": 0}
    node.call("POST", f"/v1/topics/{topic}/messages", {"messages": [late, late, late]})
    reset(node, topic, to=0, end=3)
    group = group_of(node, topic)
    assert (group["lag"], group["ready"], group["scheduled"]) == (2, 2, 1)
    assert len(peek(node, topic, "state=scheduled")["messages"]) == 1


def test_a_group_that_ends_gives_way_to_others_and_to_what_comes_later(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, *"abc", partition=0)
    reset(node, topic, to=0, end=2)
    first = receive(node, topic, max_messages=1)
    settle(node, topic, "nack", first[0]["receipt"], delay="0s")
    assert sorted(values(receive(node, topic))) == ["a", "b"]
    assert values(receive(node, topic, "other")) == list("abc")


def test_a_group_comes_to_what_stands_behind_much_that_is_not_for_it(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RUNS_PASSED_MAX", 2)
    lanes = ("high", "low") * 10
    messages = [{"value": f"{n}", "priority": p, "partition": 0} for n, p in enumerate(lanes)]
    node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})
    node.call("PATCH", f"/v1/messages/{topic}:0:1", {"priority": "high"})
    reset(node, topic, to=0, end=2)
    assert sorted(values(receive(node, topic, max_messages=1)) + values(receive(node, topic))) == [
        "0",
        "1",
    ]
    assert receive(node, topic) == []
