"""Consumers of one name in a group that is ordered by partition: each session is a member."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api.calls import group_of, publish, receive, settle, values
from tests.support.api.streams import streaming
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode


@pytest.fixture
def by_partition(node: RunningNode, topic: str) -> str:
    settings = {"settings": {"delivery": {"ordering": "partition"}}}
    node.call("PATCH", f"/v1/topics/{topic}", settings)
    return topic


def test_no_partition_is_with_two_streams_of_one_name(node: RunningNode, by_partition: str) -> None:
    topic = by_partition
    with (
        streaming(node, topic, consumer="c", max_in_flight=100) as one,
        streaming(node, topic, consumer="c", max_in_flight=100) as other,
    ):
        eventually(lambda: [len(each) for each in _owned(node, topic)] == [1, 2])
        for partition in range(3):
            publish(node, topic, *"abcd", partition=partition)
        owned = {m["session"]: m["partitions"] for m in _members(node, topic)["members"]}
        assert set(owned) == {one.id, other.id}
        for stream in (one, other):
            found = stream.messages(4 * len(owned[str(stream.id)]))
            assert sorted({m["partition"] for m in found}) == owned[str(stream.id)]
            assert {m["attempt"] for m in found} == {1}


def test_a_stream_that_closes_leaves_only_itself(node: RunningNode, by_partition: str) -> None:
    topic = by_partition
    with streaming(node, topic, consumer="c", max_in_flight=100) as stays:
        with streaming(node, topic, consumer="c", max_in_flight=100):
            eventually(lambda: len(_owned(node, topic)) == 2)
            before = _members(node, topic)["generation"]
        eventually(lambda: _owned(node, topic) == [[0, 1, 2]])
        shown = _members(node, topic)
        assert shown["generation"] == before + 1
        assert [each["reason"] for each in shown["history"]][-1] == "left"
        for partition in range(3):
            publish(node, topic, f"m{partition}", partition=partition)
        assert sorted(values(stays.messages(3))) == ["m0", "m1", "m2"]


@pytest.mark.parametrize("ordering", ["key", "none", "partition"])
def test_a_new_stream_of_a_session_takes_the_place_of_one_that_is_half_open(
    node: RunningNode, topic: str, ordering: str
) -> None:
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": {"delivery": {"ordering": ordering}}})
    for partition in range(3):
        publish(node, topic, f"m{partition}", partition=partition)
    asked: dict[str, Any] = {"consumer": "c", "session": "s", "max_in_flight": 9}
    with streaming(node, topic, visibility="1h", **asked) as old:
        assert sorted(values(old.messages(3))) == ["m0", "m1", "m2"]
        with streaming(node, topic, visibility="1h", **asked) as new:
            again = new.messages(3)
            assert sorted(values(again)) == ["m0", "m1", "m2"]
            assert {m["attempt"] for m in again} == {2}
            publish(node, topic, "m3", partition=0)
            assert new.message()["value"] == "m3"
            assert old.response.read() == b""
        eventually(lambda: group_of(node, topic)["leased"] == 0)


def test_a_stream_that_hangs_loses_its_partitions_after_its_session_timeout(
    node: RunningNode, by_partition: str
) -> None:
    topic = by_partition
    with streaming(node, topic, consumer="hung", max_in_flight=9, visibility="50ms") as hung:
        eventually(lambda: len(_owned(node, topic)) == 1)
        body = {"consumer": "hung", "session_timeout": "1s"}
        node.call("POST", f"/v1/topics/{topic}/groups/g/members", body)
        publish(node, topic, "a", partition=0)
        assert hung.message()["value"] == "a"
        with streaming(node, topic, consumer="good", max_in_flight=9) as good:
            for partition in range(3):
                publish(node, topic, f"m{partition}", partition=partition)
            found = {m["value"]: m for m in good.messages(4)}
            assert sorted(found) == ["a", "m0", "m1", "m2"]
            assert found["a"]["attempt"] >= 2  # "hung" had it twice if it was alone for long
            settle(node, topic, "ack", *(m["receipt"] for m in found.values()))
            assert group_of(node, topic)["dead"] == 0


def test_a_name_without_a_session_stands_for_all_its_sessions(
    node: RunningNode, by_partition: str
) -> None:
    topic = by_partition
    path = f"/v1/topics/{topic}/groups/g/members"
    with streaming(node, topic, consumer="c"), streaming(node, topic, consumer="c"):
        eventually(lambda: len(_owned(node, topic)) == 2)
        assert node.call("POST", f"{path}/c/heartbeat")["partitions"] == [0, 1, 2]
        assert node.call("POST", path, {"consumer": "c"})["partitions"] == [0, 1, 2]
        sessions = [member["session"] for member in _members(node, topic)["members"]]
        assert len(set(sessions)) == 2
        assert node.request("DELETE", f"{path}/c").status == 204
        eventually(lambda: len(_owned(node, topic)) == 2)
        assert not {m["session"] for m in _members(node, topic)["members"]} - set(sessions)


def test_a_member_that_only_joined_is_replaced_by_the_stream_of_its_name(
    node: RunningNode, by_partition: str
) -> None:
    topic = by_partition
    node.call("POST", f"/v1/topics/{topic}/groups/g/members", {"consumer": "c"})
    with streaming(node, topic, consumer="c"):
        eventually(lambda: [m["open"] for m in _members(node, topic)["members"]] == [True])
        assert _owned(node, topic) == [[0, 1, 2]]


def test_receives_of_two_loops_of_one_name_get_different_partitions(
    node: RunningNode, by_partition: str
) -> None:
    topic = by_partition
    for partition in range(3):
        publish(node, topic, *"ab", partition=partition)
    path = f"/v1/topics/{topic}/groups/g/receive"
    found = []
    for session in ("x", "y", "x", "y"):  # the first receive has all partitions to itself
        body = {"consumer": "c", "max_messages": 1}
        answer = node.request("POST", path, body, headers={"Goq-Session": session})
        messages = answer.json["messages"]
        if session == "x" and not found:
            settle(node, topic, "ack", messages[0]["receipt"])
        found += [(session, m["partition"]) for m in messages]
    del found[0]
    of_x = {partition for session, partition in found if session == "x"}
    of_y = {partition for session, partition in found if session == "y"}
    assert of_x
    assert of_y
    assert not of_x & of_y


@pytest.mark.parametrize("session", ["a/b", "x" * 65])
def test_a_session_id_that_cannot_be_one_is_refused(
    node: RunningNode, topic: str, session: str
) -> None:
    path = f"/v1/topics/{topic}/groups/g/receive"
    answer = node.request("POST", path, {}, headers={"Goq-Session": session})
    assert (answer.status, answer.json["field"]) == (400, "Goq-Session")


def test_a_poll_and_a_stream_of_one_name_are_two_members(
    node: RunningNode, by_partition: str
) -> None:
    topic = by_partition
    with streaming(node, topic, consumer="c"):
        eventually(lambda: len(_owned(node, topic)) == 1)
        receive(node, topic, consumer="c")
        assert ["session" in m for m in _members(node, topic)["members"]] == [False, True]


def _members(node: RunningNode, topic: str) -> dict[str, Any]:
    shown: dict[str, Any] = node.call("GET", f"/v1/topics/{topic}/groups/g/members")
    return shown


def _owned(node: RunningNode, topic: str) -> list[list[int]]:
    """The partitions of each member, the member with the fewest first; [] without a group."""
    answer = node.request("GET", f"/v1/topics/{topic}/groups/g/members")
    members = answer.json["members"] if answer.status == 200 else []
    return sorted((member["partitions"] for member in members), key=len)
