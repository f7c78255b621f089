"""While a partition is at no leader, no answer silently leaves it out."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest

from goq import limits
from goq.api.routes import receive
from goq.cluster.forwarding.metadata_freshness import MetadataFreshness
from goq.cluster.forwarding.streamed_requests import StreamedRequests
from goq.cluster.replication.replica import Replica
from goq.cluster.rpc.peer_links import PeerLinks
from goq.errors import TimedOut, Unavailable
from tests.support.cluster.running_cluster import NAMES, RunningCluster, running_cluster
from tests.support.effort import first_of
from tests.support.eventually import eventually, until
from tests.support.node.running_node import RunningNode

_MOVING = 2


@pytest.fixture
def moving(cluster: RunningCluster, topic: str) -> str:
    """A topic with a message in each partition and a group that got all of them."""
    body = {"messages": [{"value": "v", "partition": number} for number in range(6)]}
    cluster.nodes[0].call("POST", f"/v1/topics/{topic}/messages", body)
    while taken := cluster.nodes[0].call("POST", _group(topic, "receive"), {"max_messages": 100})[
        "messages"
    ]:
        receipts = [message["receipt"] for message in taken]
        cluster.nodes[0].call("POST", _group(topic, "ack"), {"receipts": receipts})
    return topic


@pytest.mark.parametrize(
    "path",
    first_of(
        [
            "/groups/g",
            "/groups/g/peek",
            "/search?text=v",
            "/groups",
            "/groups/g?as_of=now",
            "/groups/g/members",
            "/scheduled",
            "/history",
            "/trace?key=k",
        ],
        quick=3,
    ),
)
def test_a_read_of_all_partitions_is_refused(
    cluster: RunningCluster, moving: str, path: str
) -> None:
    def is_told(node: RunningNode) -> bool:
        answer = node.request("GET", f"/v1/topics/{moving}{path}")
        assert (answer.status, answer.json["code"]) == (503, "partition_offline")
        return f"partition {_MOVING} of {moving}" in answer.json["detail"]  # another may move, too

    with _closed(cluster, moving), ThreadPoolExecutor(3) as pool:  # each waits for a leader
        list(pool.map(lambda node: eventually(lambda: is_told(node)), cluster.nodes))


def test_a_read_of_all_partitions_is_refused_while_one_has_no_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "FORWARD_LEADER_WAIT_S", 0.1)
    with running_cluster() as cluster:
        node = cluster.by_name["n1"]
        node.call("POST", "/v1/topics", {"name": "single", "replication_factor": 1})
        eventually(lambda: set(cluster.leaders("single")) == set(NAMES))
        messages = [{"value": "v", "partition": number} for number in range(6)]
        node.call("POST", "/v1/topics/single/messages", {"messages": messages})
        taken = node.call("POST", _group("single", "receive"), {"max_messages": 100})["messages"]
        receipts = {"receipts": [message["receipt"] for message in taken]}
        node.call("POST", _group("single", "reject"), receipts)
        eventually(lambda: set(cluster.leaders("single.dlq")) == set(NAMES))
        cluster.stop("n3")
        eventually(
            lambda: None in cluster.leaders("single") and None in cluster.leaders("single.dlq")
        )
        for path in ("groups", "groups/g", "groups/g/peek", "dead", "scheduled", "history"):
            answer = node.request("GET", f"/v1/topics/single/{path}")
            assert (path, answer.status, answer.json["code"]) == (path, 503, "partition_offline")


def test_a_lease_whose_answer_is_not_sent_is_returned_by_the_node_that_leads_then(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create("unsent", 1)
    first = str(cluster.leaders("unsent")[0])
    other = next(name for name in NAMES if name != first)
    cluster.nodes[0].call("POST", "/v1/topics/unsent/messages", {"messages": [{"value": "v"}]})
    encode, leased = receive.encode_deliveries, Event()

    async def encode_after_move(topic: Any, deliveries: Any, *rest: Any, **options: Any) -> Any:
        if deliveries and not leased.is_set():
            leased.set()
            await until(lambda: topic.partitions.get(0) is None)
            raise Unavailable("the client is gone")
        return await encode(topic, deliveries, *rest, **options)

    monkeypatch.setattr(receive, "encode_deliveries", encode_after_move)
    asked = {"visibility": "1h", "wait": "20s"}
    election = {"topic": "unsent", "partition": 0, "leader": other}
    with ThreadPoolExecutor(1) as pool:
        path = _group("unsent", "receive")
        unsent = pool.submit(cluster.by_name[first].request, "POST", path, asked)
        assert leased.wait(30)
        cluster.nodes[0].call("POST", "/v1/cluster/elections", election)
        (found,) = cluster.by_name[other].call("POST", path, asked)["messages"]
        assert found["attempt"] == 1
        assert unsent.result().status == 503


def test_messages_whose_answer_is_lost_between_two_nodes_are_received_at_once(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create("lost-answer", 1)
    leader = str(cluster.leaders("lost-answer")[0])
    via = cluster.by_name[next(name for name in NAMES if name != leader)]
    via.call("POST", "/v1/topics/lost-answer/messages", {"messages": [{"value": "v"}]})
    ask, lost = StreamedRequests.ask, list[int]()

    async def ask_in_vain(self: Any, node: str, request: Any, held_ms: int = 0) -> Any:
        answer = await ask(self, node, request, held_ms)
        if not lost and answer is not None and b"receipt" in answer.body:
            lost.append(answer.status)
            raise TimedOut("the stream with the leader has ended")
        return answer

    monkeypatch.setattr(StreamedRequests, "ask", ask_in_vain)
    path = _group("lost-answer", "receive")
    assert via.request("POST", path, {"visibility": "1h"}).status == 504
    assert lost == [200]
    (again,) = via.call("POST", path, {"visibility": "1h", "wait": "20s"})["messages"]
    assert (again["value"], again["attempt"]) == ("v", 1)


def test_a_leader_that_may_have_been_fenced_tells_parts_of_its_log_and_no_states(
    cluster: RunningCluster, moving: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FORWARD_LEADER_WAIT_S", 0.1)
    name = str(cluster.leaders(moving)[_MOVING])
    leaders = cluster.cluster_node(name).leaders
    monkeypatch.setattr(leaders, "has_session", lambda: False)
    message = f"/v1/messages/{moving}:{_MOVING}:0"
    log = f"/v1/topics/{moving}/messages?partition={_MOVING}"
    for asked in NAMES:
        for path in (message, f"{message}/trace", f"/v1/topics/{moving}/groups/g"):
            answer = cluster.by_name[asked].request("GET", path)
            refused = (answer.status, answer.json["code"])
            assert (asked, path, *refused) == (asked, path, 503, "partition_offline")
        assert len(cluster.by_name[asked].call("GET", log)["messages"]) == 1


def test_a_leader_that_may_have_been_fenced_reads_its_log_once_it_knows_that_it_leads(
    cluster: RunningCluster, moving: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FORWARD_LEADER_WAIT_S", 0.1)
    name = str(cluster.leaders(moving)[_MOVING])
    node, log = cluster.cluster_node(name), f"/v1/topics/{moving}/messages?partition={_MOVING}"
    led = _replica(cluster, name, moving).as_leader
    monkeypatch.setattr(node.leaders, "has_session", lambda: False)

    def told(asked: str) -> int:
        return cluster.by_name[asked].request("GET", log).status

    with monkeypatch.context() as replaced:
        replaced.setattr(led, "leader_epoch", 0)
        assert [told(asked) for asked in NAMES] == [503] * len(NAMES)
    assert [told(asked) for asked in NAMES] == [200] * len(NAMES)

    async def catch_up() -> None:
        raise Unavailable("the cluster cannot be asked")

    monkeypatch.setattr(node.freshness, "catch_up", catch_up)
    monkeypatch.setattr(MetadataFreshness, "is_cut_off", True)
    assert [told(asked) for asked in NAMES] == [503] * len(NAMES)
    monkeypatch.setattr(PeerLinks, "reaches_none", True)
    assert told(name) == 200


def test_a_leader_that_may_have_been_fenced_reads_nothing_up_to_a_time(
    cluster: RunningCluster, moving: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(cluster.leaders(moving)[_MOVING])
    log = f"/v1/topics/{moving}/messages?partition={_MOVING}&from_time=-1h"
    node = cluster.by_name[name]
    assert len(node.call("GET", f"{log}&to_time=now")["messages"]) == 1
    led = _replica(cluster, name, moving).as_leader
    monkeypatch.setattr(led, "has_session", lambda: False)
    for end in ("to_time=now", "as_of=now"):
        answer = node.request("GET", f"{log}&{end}")
        assert (end, answer.status, answer.json.get("code")) == (end, 421, "not_leader")
    assert len(node.call("GET", log)["messages"]) == 1


@pytest.mark.parametrize(
    ("method", "body"), [("DELETE", None), ("PATCH", {"priority": "high"})], ids=["cancel", "move"]
)
def test_a_leader_that_may_have_been_fenced_does_not_say_that_a_message_to_change_is_not_there(
    cluster: RunningCluster,
    moving: str,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    body: dict[str, str] | None,
) -> None:
    monkeypatch.setattr(limits, "FORWARD_LEADER_WAIT_S", 0.1)
    name = str(cluster.leaders(moving)[_MOVING])
    monkeypatch.setattr(cluster.cluster_node(name).leaders, "has_session", lambda: False)
    next_leader_may_have = f"/v1/messages/{moving}:{_MOVING}:1"
    for asked in NAMES:
        answer = cluster.by_name[asked].request(method, next_leader_may_have, body)
        refused = (answer.status, answer.json["code"])
        assert (asked, *refused) == (asked, 503, "partition_offline")


def test_a_topic_shows_it_as_offline(cluster: RunningCluster, moving: str) -> None:
    with _closed(cluster, moving):
        for node in cluster.nodes:
            shown = node.call("GET", f"/v1/topics/{moving}")["partitions"]
            assert [p["partition"] for p in shown if not p.get("online", True)] == [_MOVING]


def test_a_reset_that_leaves_it_out_is_in_doubt_and_done_when_it_is_repeated(
    cluster: RunningCluster, moving: str
) -> None:
    for node in cluster.nodes:
        with _closed(cluster, moving):
            answer = node.request("POST", _group(moving, "reset"), {"to": "earliest"})
            assert (answer.status, answer.json["code"]) == (504, "timed_out")
        done = node.call("POST", _group(moving, "reset"), {"to": "earliest"})["partitions"]
        assert [(each["partition"], each["to"]) for each in done] == [(n, 0) for n in range(6)]


def test_a_receive_that_does_not_wait_is_refused_if_no_other_partition_has_messages(
    cluster: RunningCluster, moving: str
) -> None:
    for node in cluster.nodes:
        with _closed(cluster, moving):
            answer = node.request("POST", _group(moving, "receive"), {})
            assert (answer.status, answer.json["code"]) == (503, "partition_offline")
        assert node.call("POST", _group(moving, "receive"), {}) == {"messages": []}


def test_a_lease_that_its_leader_could_not_confirm_is_free_at_the_next_leader(
    cluster: RunningCluster, moving: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(cluster.leaders(moving)[_MOVING])
    other = next(node for node in NAMES if node != name)
    body = {"messages": [{"value": "late", "partition": _MOVING}]}
    cluster.by_name[name].call("POST", f"/v1/topics/{moving}/messages", body)
    former = _replica(cluster, name, moving)
    assert former.as_leader is not None
    monkeypatch.setattr(former.as_leader, "_announce_high_watermark", lambda: None)
    before = former.as_leader.logs.events.end_offset
    with ThreadPoolExecutor(1) as pool:
        receiving = {"visibility": "1h"}
        pool.submit(cluster.by_name[name].request, "POST", _group(moving, "receive"), receiving)
        ends = _replica(cluster, other, moving)
        eventually(lambda: (f := ends.as_follower) and f.position.ends.events > before)
        cluster.on_loop(
            other, lambda node: node.view.operations.elect_leader(moving, _MOVING, other)
        )
        found = cluster.by_name[other].call("POST", _group(moving, "receive"), {"wait": "20s"})
    assert [(each["value"], each["attempt"]) for each in found["messages"]] == [("late", 1)]


def _replica(cluster: RunningCluster, node: str, topic: str) -> Replica:
    replicas = cluster.cluster_node(node).replicas
    return next(each for each in replicas if each.key[::2] == (topic, _MOVING))


def test_the_leader_of_all_partitions_does_not_answer_for_one_that_it_does_not_serve(
    cluster: RunningCluster,
) -> None:
    topic = "of-one-leader"
    cluster.create(topic, partitions=1)
    body = {"messages": [{"value": "v"}]}
    cluster.nodes[0].call("POST", f"/v1/topics/{topic}/messages", body)
    with _closed(cluster, topic, 0):
        for node in cluster.nodes:
            for method, path in (("POST", "/groups/g/receive"), ("GET", "/search?text=v")):
                answer = node.request(method, f"/v1/topics/{topic}{path}", {})
                assert (answer.status, answer.json["code"]) == (503, "partition_offline")
    assert len(cluster.nodes[0].call("POST", _group(topic, "receive"), {})["messages"]) == 1


@contextmanager
def _closed(cluster: RunningCluster, topic: str, number: int = _MOVING) -> Iterator[None]:
    """Have the leader of a partition not serve it, as one that has not opened it yet."""
    name = cluster.leaders(topic)[number]
    assert name in NAMES
    node: Any = cluster.by_name[name]
    partitions = node.node.broker.topics[topic].partitions
    closed = node.on_loop(lambda: partitions.take(number))
    try:
        yield
    finally:
        node.on_loop(lambda: partitions.put(closed))


def _group(topic: str, verb: str) -> str:
    return f"/v1/topics/{topic}/groups/g/{verb}"
