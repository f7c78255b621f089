"""A stream as its consumer sees it."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.node.running_node import RunningNode


class StreamOfLines:
    """An open stream; reading waits for what comes."""

    def __init__(
        self, node: RunningNode, path: str, asked: dict[str, Any], session: str | None
    ) -> None:
        self._connection = http.client.HTTPConnection(*node.address, timeout=60)
        body = json.dumps({"stream": True, **asked})
        headers = {"Content-Type": "application/json"}
        if session is not None:
            headers["Goq-Session"] = session
        self._connection.request("POST", path, body, headers)
        assert self._connection.sock is not None
        self.socket: socket.socket = self._connection.sock
        self.response = self._connection.getresponse()
        self.id = self.response.headers.get("Goq-Stream")

    def message(self) -> dict[str, Any]:
        """The next message; heartbeats before it are passed over, for 30 s."""
        until_s = time.monotonic() + 30
        while (line := self.response.readline()) == b"\n":
            assert time.monotonic() < until_s, "no message came"
        assert line, "the stream has ended"
        message: dict[str, Any] = json.loads(line)
        return message

    def messages(self, count: int) -> list[dict[str, Any]]:
        return [self.message() for _ in range(count)]

    def close(self) -> None:
        self.response.close()
        self._connection.close()


@contextmanager
def streaming(
    node: RunningNode, topic: str, group: str = "g", session: str | None = None, **asked: Any
) -> Iterator[StreamOfLines]:
    stream = StreamOfLines(node, f"/v1/topics/{topic}/groups/{group}/receive", asked, session)
    try:
        yield stream
    finally:
        stream.close()


def open_streams(node: RunningNode) -> int:
    broker = node.node.broker
    assert broker is not None
    return node.on_loop(lambda: len(broker.streams))
