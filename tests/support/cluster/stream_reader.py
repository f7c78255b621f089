"""Streams of a cluster's nodes, read by a plain HTTP client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.cluster.running_cluster import RunningCluster
from tests.support.node.running_node import RunningNode


class StreamReader:
    """An open stream, read as its messages come."""

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
def reading_stream(
    node: RunningNode,
    topic: str,
    headers: dict[str, str] | None = None,
    *,
    group: str = "g",
    **asked: Any,
) -> Iterator[StreamReader]:
    stream = StreamReader(node, group_path(topic, "receive", group=group), asked, headers or {})
    try:
        yield stream
    finally:
        stream.close()


def publish_to_all(node: RunningNode, topic: str, count: int) -> None:
    messages = [{"value": "v", "partition": number % 6} for number in range(count)]
    node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})


def group_path(topic: str, verb: str = "", *, group: str = "g") -> str:
    return f"/v1/topics/{topic}/groups/{group}" + (f"/{verb}" if verb else "")


def in_flight(cluster: RunningCluster, topic: str) -> int:
    leased: int = cluster.nodes[0].call("GET", group_path(topic))["leased"]
    return leased


def open_streams(node: RunningNode) -> int:
    broker = node.node.broker
    assert broker is not None
    return node.on_loop(lambda: len(broker.streams))
