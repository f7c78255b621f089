"""A stream through any node hands over what any node has."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from goq.api.codec.leased import read_frames
from goq.api.router import FRAMES
from tests.support.cluster.running_cluster import RunningCluster, running_cluster
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode


def test_a_stream_has_the_messages_of_all_nodes(cluster: RunningCluster, topic: str) -> None:
    for number, node in enumerate(cluster.nodes):
        _publish(node, topic, 6)
        with _stream(node, topic, group=f"g{number}", max_in_flight=60) as stream:
            found = [stream.message() for _ in range(12 * number + 6)]
            _publish(node, topic, 6)
            found += [stream.message() for _ in range(6)]
            assert len({message["id"] for message in found}) == len(found)
            assert {message["partition"] for message in found} == set(range(6))
            receipts = {"receipts": [message["receipt"] for message in found]}
            settled = node.call("POST", _path(topic, "ack", group=f"g{number}"), receipts)
            assert settled == {"settled": len(found), "failed": []}


def test_a_stream_of_frames_has_the_messages_of_all_nodes(
    cluster: RunningCluster, topic: str
) -> None:
    _publish(cluster.nodes[0], topic, 12)
    with _stream(cluster.nodes[1], topic, {"Accept": FRAMES}, max_in_flight=30) as stream:
        found = []
        while len(found) < 12:
            leased = read_frames(stream.record())
            found += [r for r in leased.receipts() for _ in range(r.start, r.end)]
    assert {receipt.partition for receipt in found} == set(range(6))


def test_no_more_is_in_flight_than_a_stream_may_have_and_acks_and_grants_make_room(
    cluster: RunningCluster, topic: str
) -> None:
    _publish(cluster.nodes[0], topic, 60)
    with _stream(cluster.nodes[2], topic, max_in_flight=6) as stream:
        first = [stream.message() for _ in range(6)]
        assert _in_flight(cluster, topic) == 6
        receipts = {"receipts": [message["receipt"] for message in first]}
        cluster.nodes[0].call("POST", _path(topic, "ack"), receipts)
        more = [stream.message() for _ in range(6)]
        assert not {m["id"] for m in more} & {m["id"] for m in first}
        assert _in_flight(cluster, topic) == 6
        path = _path(topic, f"streams/{stream.id}")
        granted = cluster.nodes[2].call("PATCH", path, {"more": 3})
        assert granted["stream"] == stream.id
        assert granted["max_in_flight"] == 9
        assert len([stream.message() for _ in range(3)]) == 3
        paused = cluster.nodes[2].call("PATCH", path, {"max_in_flight": 0})
        assert (paused["max_in_flight"], paused["in_flight"]) == (0, 9)


def test_what_is_in_flight_is_ready_again_when_the_connection_closes(
    cluster: RunningCluster, topic: str
) -> None:
    _publish(cluster.nodes[0], topic, 6)
    with _stream(cluster.nodes[0], topic, max_in_flight=6) as stream:
        assert len([stream.message() for _ in range(6)]) == 6
    eventually(lambda: cluster.nodes[1].call("GET", _path(topic))["ready"] == 6)
    for node in cluster.nodes:
        eventually(lambda node=node: _open_streams(node) == 0)


def test_a_stream_that_is_ended_keeps_what_it_handed_over(
    cluster: RunningCluster, topic: str
) -> None:
    _publish(cluster.nodes[0], topic, 6)
    with _stream(cluster.nodes[0], topic, max_in_flight=6) as stream:
        messages = [stream.message() for _ in range(6)]
        path = _path(topic, f"streams/{stream.id}")
        assert cluster.nodes[0].request("DELETE", path).status == 204
        assert stream.rest() == b""
        assert cluster.nodes[0].request("DELETE", path).status == 404
    receipts = {"receipts": [message["receipt"] for message in messages]}
    assert cluster.nodes[1].call("POST", _path(topic, "ack"), receipts)["settled"] == 6


def test_a_stream_ends_at_its_limit_and_leases_no_more(cluster: RunningCluster, topic: str) -> None:
    _publish(cluster.nodes[0], topic, 60)
    with _stream(cluster.nodes[1], topic, max_in_flight=30, limit=7) as stream:
        lines = stream.rest().splitlines()
        assert len(lines) == 7
    eventually(lambda: _in_flight(cluster, topic) == 7)
    for node in cluster.nodes:
        eventually(lambda node=node: _open_streams(node) == 0)


def test_a_stream_with_a_limit_hands_over_each_message_at_its_first_attempt(
    cluster: RunningCluster, topic: str
) -> None:
    """Its nodes' streams end with the message, so its bytes come together with their end."""
    for number in range(90):
        node = cluster.nodes[number % 3]
        messages = [{"value": "v", "partition": number // 3 % 6}]
        node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})
        with _stream(node, topic, limit=1, max_in_flight=1) as stream:
            message = stream.message()
            assert stream.rest() == b""
        assert message["attempt"] == 1
        settled = node.call("POST", _path(topic, "ack"), {"receipts": [message["receipt"]]})
        assert settled == {"settled": 1, "failed": []}


def test_a_mistake_is_refused(cluster: RunningCluster, topic: str) -> None:
    for body in ({"max_in_flight": 0}, {"limit": 0}, {"visibility": 0}, {"consumer": "c" * 1000}):
        for node in cluster.nodes:
            answer = node.request("POST", _path(topic, "receive"), {"stream": True, **body})
            assert 400 <= answer.status < 500
    for node in cluster.nodes:
        assert _open_streams(node) == 0


def test_a_stream_goes_on_when_a_leader_dies_and_ends_when_its_node_stops() -> None:
    with running_cluster() as cluster:
        cluster.create("t")
        node = cluster.by_name["n1"]
        with _stream(node, "t", max_in_flight=60) as stream:
            _publish(node, "t", 6)
            first = [stream.message() for _ in range(6)]
            receipts = {"receipts": [message["receipt"] for message in first]}
            assert node.call("POST", _path("t", "ack"), receipts)["settled"] == 6
            cluster.stop("n2")
            eventually(lambda: not {None, "n2"} & set(cluster.leaders("t")))
            _publish(node, "t", 6)
            again = [stream.message() for _ in range(6)]
            assert {message["partition"] for message in again} == set(range(6))
            receipts = {"receipts": [message["receipt"] for message in again]}
            assert node.call("POST", _path("t", "ack"), receipts)["settled"] == 6
            cluster.stop("n1")
            assert stream.rest() == b""


class _Stream:
    def __init__(
        self, node: RunningNode, path: str, asked: dict[str, Any], headers: dict[str, str]
    ) -> None:
        self._connection = http.client.HTTPConnection(*node.address, timeout=30)
        body = json.dumps({"stream": True, **asked})
        headers = {"Content-Type": "application/json", **headers}
        self._connection.request("POST", path, body, headers)
        self.response = self._connection.getresponse()
        assert self.response.status == 200, self.response.read()
        self.id = self.response.headers["Goq-Stream"]

    def message(self) -> Any:
        while (line := self.response.readline()) == b"\n":
            pass
        assert line, "the stream has ended"
        return json.loads(line)

    def record(self) -> bytes:
        size = int.from_bytes(self.response.read(4), "little")
        return self.response.read(size)

    def rest(self) -> bytes:
        return self.response.read().lstrip(b"\n")

    def close(self) -> None:
        self.response.close()
        self._connection.close()


@contextmanager
def _stream(
    node: RunningNode,
    topic: str,
    headers: dict[str, str] | None = None,
    *,
    group: str = "g",
    **asked: Any,
) -> Iterator[_Stream]:
    stream = _Stream(node, _path(topic, "receive", group=group), asked, headers or {})
    try:
        yield stream
    finally:
        stream.close()


def _publish(node: RunningNode, topic: str, count: int) -> None:
    messages = [{"value": "v", "partition": number % 6} for number in range(count)]
    node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})


def _path(topic: str, verb: str = "", *, group: str = "g") -> str:
    return f"/v1/topics/{topic}/groups/{group}" + (f"/{verb}" if verb else "")


def _in_flight(cluster: RunningCluster, topic: str) -> int:
    leased: int = cluster.nodes[0].call("GET", _path(topic))["leased"]
    return leased


def _open_streams(node: RunningNode) -> int:
    broker = node.node.broker
    assert broker is not None
    return node.on_loop(lambda: len(broker.streams))
