"""Stopping while there is work: it is finished and answered, and what has not begun is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker.partition_internals import message_log
from tests.support.node.node_api import Answer
from tests.support.node.running_node import RunningNode, running_node

WAIT_S = 60.0


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_publish_whose_write_is_under_way_is_answered_when_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Answer] = []
    with running_node(tmp_path) as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
        begun, may_end = _slow_writes(node, monkeypatch)
        body = {"messages": [{"value": "in flight"}]}
        client = in_thread(
            lambda: answers.append(node.request("POST", "/v1/topics/t/messages", body))
        )
        assert begun.wait(WAIT_S)
        stopping = in_thread(node.stop)
        while not _is_refused(node):
            pass
        assert not answers
        may_end.set()
        client.join(WAIT_S)
        stopping.join(WAIT_S)
        assert [answer.status for answer in answers] == [200]
        assert answers[0].headers["connection"] == "close"
    with running_node(tmp_path) as node:
        read = node.call("GET", "/v1/topics/t/messages?partition=0")
        assert [message["value"] for message in read["messages"]] == ["in flight"]


def _slow_writes(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, threading.Event]:
    """Make the topic's next write wait; return when it has begun, and what lets it go on."""
    begun, may_end = threading.Event(), threading.Event()
    assert node.node.broker is not None
    log = message_log(node.node.broker.topics["t"].partitions[0])
    write = log.write

    def slow(batch: Any) -> None:
        begun.set()
        assert may_end.wait(WAIT_S)
        write(batch)

    monkeypatch.setattr(log, "write", slow)
    return begun, may_end


def _is_refused(node: RunningNode) -> bool:
    """Whether the node takes no more connections."""
    try:
        node.request("GET", "/livez")
    except OSError:
        return True
    return False
