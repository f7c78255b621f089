"""A stream through any node hands over what any node has."""

from __future__ import annotations

from goq.api.codec.leased import read_frames
from goq.api.route import FRAMES
from tests.support.cluster.running_cluster import RunningCluster, running_cluster
from tests.support.cluster.stream_reader import (
    group_path,
    in_flight,
    open_streams,
    publish_to_all,
    reading_stream,
)
from tests.support.eventually import eventually


def test_a_stream_has_the_messages_of_all_nodes(cluster: RunningCluster, topic: str) -> None:
    for number, node in enumerate(cluster.nodes):
        publish_to_all(node, topic, 6)
        with reading_stream(node, topic, group=f"g{number}", max_in_flight=60) as stream:
            found = [stream.message() for _ in range(12 * number + 6)]
            publish_to_all(node, topic, 6)
            found += [stream.message() for _ in range(6)]
            assert len({message["id"] for message in found}) == len(found)
            assert {message["partition"] for message in found} == set(range(6))
            receipts = {"receipts": [message["receipt"] for message in found]}
            settled = node.call("POST", group_path(topic, "ack", group=f"g{number}"), receipts)
            assert settled == {"settled": len(found), "failed": []}


def test_a_stream_of_frames_has_the_messages_of_all_nodes(
    cluster: RunningCluster, topic: str
) -> None:
    publish_to_all(cluster.nodes[0], topic, 12)
    with reading_stream(cluster.nodes[1], topic, {"Accept": FRAMES}, max_in_flight=30) as stream:
        found = []
        while len(found) < 12:
            leased = read_frames(stream.record())
            found += [r for r in leased.receipts() for _ in range(r.start, r.end)]
    assert {receipt.partition for receipt in found} == set(range(6))


def test_no_more_is_in_flight_than_a_stream_may_have_and_acks_and_grants_make_room(
    cluster: RunningCluster, topic: str
) -> None:
    publish_to_all(cluster.nodes[0], topic, 60)
    with reading_stream(cluster.nodes[2], topic, max_in_flight=6) as stream:
        first = [stream.message() for _ in range(6)]
        assert in_flight(cluster, topic) == 6
        receipts = {"receipts": [message["receipt"] for message in first]}
        cluster.nodes[0].call("POST", group_path(topic, "ack"), receipts)
        more = [stream.message() for _ in range(6)]
        assert not {m["id"] for m in more} & {m["id"] for m in first}
        assert in_flight(cluster, topic) == 6
        path = group_path(topic, f"streams/{stream.id}")
        granted = cluster.nodes[2].call("PATCH", path, {"more": 3})
        assert granted["stream"] == stream.id
        assert granted["max_in_flight"] == 9
        assert len([stream.message() for _ in range(3)]) == 3
        paused = cluster.nodes[2].call("PATCH", path, {"max_in_flight": 0})
        assert (paused["max_in_flight"], paused["in_flight"]) == (0, 9)


def test_what_is_in_flight_is_ready_again_when_the_connection_closes(
    cluster: RunningCluster, topic: str
) -> None:
    publish_to_all(cluster.nodes[0], topic, 6)
    with reading_stream(cluster.nodes[0], topic, max_in_flight=6) as stream:
        assert len([stream.message() for _ in range(6)]) == 6
    eventually(lambda: cluster.nodes[1].call("GET", group_path(topic))["ready"] == 6)
    for node in cluster.nodes:
        eventually(lambda node=node: open_streams(node) == 0)


def test_a_stream_that_is_ended_keeps_what_it_handed_over(
    cluster: RunningCluster, topic: str
) -> None:
    publish_to_all(cluster.nodes[0], topic, 6)
    with reading_stream(cluster.nodes[0], topic, max_in_flight=6) as stream:
        messages = [stream.message() for _ in range(6)]
        path = group_path(topic, f"streams/{stream.id}")
        assert cluster.nodes[0].request("DELETE", path).status == 204
        assert stream.rest() == b""
        assert cluster.nodes[0].request("DELETE", path).status == 404
    receipts = {"receipts": [message["receipt"] for message in messages]}
    assert cluster.nodes[1].call("POST", group_path(topic, "ack"), receipts)["settled"] == 6


def test_a_stream_ends_at_its_limit_and_leases_no_more(cluster: RunningCluster, topic: str) -> None:
    publish_to_all(cluster.nodes[0], topic, 60)
    with reading_stream(cluster.nodes[1], topic, max_in_flight=30, limit=7) as stream:
        lines = stream.rest().splitlines()
        assert len(lines) == 7
    eventually(lambda: in_flight(cluster, topic) == 7)
    for node in cluster.nodes:
        eventually(lambda node=node: open_streams(node) == 0)


def test_a_stream_with_a_limit_hands_over_each_message_at_its_first_attempt(
    cluster: RunningCluster, topic: str
) -> None:
    """Its nodes' streams end with the message, so its bytes come together with their end."""
    for number in range(90):
        node = cluster.nodes[number % 3]
        messages = [{"value": "v", "partition": number // 3 % 6}]
        node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})
        with reading_stream(node, topic, limit=1, max_in_flight=1) as stream:
            message = stream.message()
            assert stream.rest() == b""
        assert message["attempt"] == 1
        settled = node.call("POST", group_path(topic, "ack"), {"receipts": [message["receipt"]]})
        assert settled == {"settled": 1, "failed": []}


def test_a_mistake_is_refused(cluster: RunningCluster, topic: str) -> None:
    for body in ({"max_in_flight": 0}, {"limit": 0}, {"visibility": 0}, {"consumer": "c" * 1000}):
        for node in cluster.nodes:
            answer = node.request("POST", group_path(topic, "receive"), {"stream": True, **body})
            assert 400 <= answer.status < 500
    for node in cluster.nodes:
        assert open_streams(node) == 0


def test_a_stream_goes_on_when_a_leader_dies_and_ends_when_its_node_stops() -> None:
    with running_cluster() as cluster:
        cluster.create("t")
        node = cluster.by_name["n1"]
        with reading_stream(node, "t", max_in_flight=60) as stream:
            publish_to_all(node, "t", 6)
            first = [stream.message() for _ in range(6)]
            receipts = {"receipts": [message["receipt"] for message in first]}
            assert node.call("POST", group_path("t", "ack"), receipts)["settled"] == 6
            cluster.stop("n2")
            eventually(lambda: not {None, "n2"} & set(cluster.leaders("t")))
            publish_to_all(node, "t", 6)
            again = [stream.message() for _ in range(6)]
            assert {message["partition"] for message in again} == set(range(6))
            receipts = {"receipts": [message["receipt"] for message in again]}
            assert node.call("POST", group_path("t", "ack"), receipts)["settled"] == 6
            cluster.stop("n1")
            assert stream.rest() == b""
