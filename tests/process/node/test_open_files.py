"""A node that may open few files: more partitions than descriptors, and more clients."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess

OPEN_FILES = 128
TOPICS = 40


def open_logs(node: NodeProcess) -> int:
    found = 0
    for name in os.listdir(f"/proc/{node.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += "/topics/" in os.readlink(f"/proc/{node.pid}/fd/{name}")
    return found


def publish(node: NodeProcess, number: int) -> None:
    message = {"value": f"message {number}", "key": "a"}
    node.call("POST", f"/v1/topics/topic-{number}/messages", {"messages": [message]})


def is_published(node: NodeProcess, number: int) -> bool:
    """Publish one message, unless the node refuses the connection: too many are open still."""
    message = {"value": "by a client that came late"}
    try:
        answer = node.request(
            "POST", f"/v1/topics/topic-{number}/messages", {"messages": [message]}
        )
    except ConnectionError:
        return False
    assert answer.status in (200, 503), answer
    return answer.status == 200


@pytest.mark.long
def test_a_node_has_more_partitions_than_it_may_open_files(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", open_files_max=OPEN_FILES) as node:
        for number in range(TOPICS):
            publish(node, number)
            assert open_logs(node) <= OPEN_FILES // 4
        node.kill()
        node.start()
        for number in range(TOPICS):
            publish(node, number)
        assert open_logs(node) <= OPEN_FILES // 4
        for number in range(TOPICS):
            shown = node.call("GET", f"/v1/topics/topic-{number}")
            assert sum(p["end_offset"] for p in shown["partitions"]) == 2
        assert node.stop() == 0


def has_published(node: NodeProcess, number: int) -> bool:
    """Whether a publish was answered; the node closes connections while it has too many."""
    try:
        publish(node, number)
    except (ConnectionError, http.client.BadStatusLine):
        return False
    return True


def test_clients_cannot_take_the_files_that_a_node_needs(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", open_files_max=OPEN_FILES) as node:
        publish(node, 0)
        with contextlib.ExitStack() as resources:
            clients = [
                resources.enter_context(socket.create_connection(node.address, 10))
                for _ in range(2 * OPEN_FILES)
            ]
            head = b"POST /v1/topics/topic-0/messages HTTP/1.1\r\nHost: localhost\r\n"
            body = b'{"messages":[{"value":"by a client that came in time"}]}'
            about = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            clients[0].sendall(head + about + body)
            assert clients[0].recv(4096).startswith(b"HTTP/1.1 200")
            with contextlib.suppress(ConnectionResetError):  # refused, or closed at once
                assert clients[-1].recv(4096)[:12] in (b"HTTP/1.1 503", b"")
        eventually(lambda: is_published(node, 0))
        node.kill()
        node.start()
        shown = node.call("GET", "/v1/topics/topic-0")
        assert sum(p["end_offset"] for p in shown["partitions"]) == 3
        assert node.stop() == 0
