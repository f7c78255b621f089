"""The members of a group over HTTP."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from goq.broker.group.coordinator import Coordinator
from goq.broker.topic.topic import Topic
from tests.support.api.calls import publish, receive, settle, values
from tests.support.broker.partition_internals import state_of
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer
from tests.support.node.running_node import RunningNode


class Host:
    """A topic as its coordinator sees it; its group ``g`` shares partitions."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.woken: list[str] = []

    def partition_count(self) -> int:
        return self.topic.partitions.count

    def shares_partitions(self, group: str) -> bool:
        return group == "g"

    def holder(self, group: str, partition: int, other_than: str | None) -> str | None:
        leases = state_of(self.topic.partitions[partition]).group(group).leases.values()
        return next((x.member for x in leases if x.member != other_than), None)

    def restart_consumers(self, group: str, consumers: Collection[str]) -> None:
        self.topic.restart_consumers(group, consumers)

    def wake_consumers(self, group: str, consumers: Collection[str]) -> None:
        assert group == "g"
        self.woken += sorted(consumers)


class Shared:
    """A topic of three partitions with a coordinator, and how to reach its members."""

    def __init__(self, node: RunningNode, topic: str) -> None:
        self.node, self.name = node, topic
        self.host = node.on_loop(self._attach)

    def _attach(self) -> Host:
        assert self.node.node.broker is not None
        topic = self.node.node.broker.topic(self.name)
        host = Host(topic)
        topic.coordinator = Coordinator(host, self.node.node.broker.clock)
        return host

    @property
    def coordinator(self) -> Coordinator:
        assert self.host.topic.coordinator is not None
        return self.host.topic.coordinator

    def path(self, group: str = "g") -> str:
        return f"/v1/topics/{self.name}/groups/{group}/members"

    def join(self, consumer: str, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.node.call("POST", self.path(), {"consumer": consumer, **more})
        return answer

    def beat(self, consumer: str) -> Answer:
        return self.node.request("POST", f"{self.path()}/{quote(consumer, safe='')}/heartbeat")

    def leave(self, consumer: str) -> Answer:
        return self.node.request("DELETE", f"{self.path()}/{quote(consumer, safe='')}")

    def show(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.node.call("GET", self.path())
        return answer


@pytest.fixture
def shared(node: RunningNode, topic: str) -> Iterator[Shared]:
    shared = Shared(node, topic)
    yield shared
    node.on_loop(shared.coordinator.close)


def test_consumers_join_share_the_partitions_and_leave(shared: Shared) -> None:
    assert shared.join("ann") == {"generation": 1, "partitions": [0, 1, 2], "revoking": []}
    assert shared.join("bob") == {"generation": 2, "partitions": [2], "revoking": []}
    assert shared.beat("ann").json == {"generation": 2, "partitions": [0, 1], "revoking": []}
    assert shared.leave("bob").status == 204
    assert shared.beat("ann").json["partitions"] == [0, 1, 2]
    assert shared.beat("bob").json["code"] == "member_not_found"
    assert shared.leave("bob").json["code"] == "member_not_found"


def test_a_partition_with_leases_is_handed_over_when_they_end(shared: Shared) -> None:
    node, topic = shared.node, shared.name
    for partition in range(3):
        publish(node, topic, f"m{partition}", partition=partition)
    shared.join("ann")
    held = {m["partition"]: m for m in receive(node, topic, consumer="ann")}
    shared.join("bob")
    assert shared.beat("ann").json == {"generation": 2, "partitions": [0, 1], "revoking": [2]}
    assert shared.beat("bob").json["partitions"] == []
    assert shared.show()["moving"] == [
        {"partition": 2, "from": "ann", "to": "bob", "paused_ms": None}
    ]
    settle(node, topic, "ack", held[2]["receipt"])
    node.on_loop(lambda: shared.coordinator.on_settled("g", 2))
    assert shared.beat("bob").json["partitions"] == [2]
    assert shared.host.woken == ["ann", "bob"]
    shown = shared.show()
    assert shown["moving"] == []
    (move,) = shown["history"][-1]["moves"]
    assert move["paused_ms"] >= 0


def test_members_and_what_happened_are_shown(shared: Shared) -> None:
    shared.join("bob", session_timeout="45s")
    shared.join("ann")
    shared.leave("bob")
    shown = shared.show()
    assert shown["generation"] == 3
    (ann,) = shown["members"]
    assert ann["last_seen"].endswith("Z")
    assert {name: ann[name] for name in ann if name != "last_seen"} == {
        "consumer": "ann",
        "partitions": [0, 1, 2],
        "revoking": [],
        "session_timeout_ms": 30_000,
        "open": False,
    }
    assert [(h["generation"], h["reason"], h["consumers"]) for h in shown["history"]] == [
        (1, "joined", ["bob"]),
        (2, "joined", ["ann"]),
        (3, "left", ["bob"]),
    ]
    assert [(m["from"], m["to"]) for m in shown["history"][0]["moves"]] == [(None, "bob")] * 3


def test_a_silent_member_is_evicted(shared: Shared) -> None:
    shared.join("ann", session_timeout=1)
    eventually(lambda: shared.show()["history"][-1]["reason"] == "evicted")
    assert shared.show()["members"] == []
    assert shared.beat("ann").status == 404


@pytest.mark.parametrize("timeout", ["999ms", "31m", 0, "soon", -1])
def test_a_session_timeout_out_of_bounds_is_refused(shared: Shared, timeout: str | int) -> None:
    body = {"consumer": "ann", "session_timeout": timeout}
    answer = shared.node.request("POST", shared.path(), body)
    assert (answer.status, answer.json["field"]) == (400, "session_timeout")
    assert shared.node.request("GET", shared.path()).json.get("members", []) == []


@pytest.mark.parametrize("consumer", ["", "a/b", "a\nb"])
def test_a_name_that_cannot_be_a_members_is_refused(shared: Shared, consumer: str) -> None:
    answer = shared.node.request("POST", shared.path(), {"consumer": consumer})
    assert (answer.status, answer.json["field"]) == (400, "consumer")
    assert shared.node.request("GET", shared.path()).json["code"] == "group_not_found"


@pytest.mark.parametrize("consumer", ["worker 1 (ä)", "50%", "a?b#c"])
def test_a_member_may_have_a_name_that_a_path_must_encode(shared: Shared, consumer: str) -> None:
    shared.join(consumer)
    assert shared.beat(consumer).json["partitions"] == [0, 1, 2]
    assert shared.leave(consumer).status == 204


def test_a_group_that_shares_otherwise_has_no_members(shared: Shared) -> None:
    path = shared.path("other")
    answer = shared.node.request("POST", path, {"consumer": "ann"})
    assert (answer.status, answer.json["code"]) == (409, "conflict")
    assert shared.node.request("GET", path).json["code"] == "group_not_found"
    receive(shared.node, shared.name, "other")
    assert shared.node.call("GET", path) == {
        "generation": 0,
        "members": [],
        "moving": [],
        "history": [],
    }


def test_a_topic_without_such_groups_has_no_members(node: RunningNode, topic: str) -> None:
    path = f"/v1/topics/{topic}/groups/g/members"
    assert node.request("POST", path, {"consumer": "ann"}).json["code"] == "conflict"
    assert node.request("POST", f"{path}/ann/heartbeat").json["code"] == "member_not_found"
    assert node.request("DELETE", f"{path}/ann").json["code"] == "member_not_found"
    publish(node, topic, "x")
    assert values(receive(node, topic)) == ["x"]
    assert node.call("GET", path)["members"] == []


def test_what_does_not_exist_is_not_found(node: RunningNode, topic: str) -> None:
    missing = "/v1/topics/no-such/groups/g/members"
    assert node.request("GET", missing).json["code"] == "topic_not_found"
    assert node.request("POST", missing, {"consumer": "a"}).json["code"] == "topic_not_found"
    assert node.request("POST", f"{missing}/a/heartbeat").json["code"] == "topic_not_found"
    assert node.request("DELETE", f"{missing}/a").json["code"] == "topic_not_found"
    unused = f"/v1/topics/{topic}/groups/unused/members"
    assert node.request("GET", unused).json["code"] == "group_not_found"
