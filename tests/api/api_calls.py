"""Short names for what most tests of the API do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from support.running_node import RunningNode

WAIT_S_MAX = 15.0


def publish(node: RunningNode, topic: str, *values: str, **fields: Any) -> list[dict[str, Any]]:
    messages = [{"value": value, **fields} for value in values]
    answer = node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})
    results: list[dict[str, Any]] = answer["results"]
    return results


def receive(node: RunningNode, topic: str, group: str = "g", **asked: Any) -> list[dict[str, Any]]:
    answer = node.call("POST", f"/v1/topics/{topic}/groups/{group}/receive", {"max": 100, **asked})
    messages: list[dict[str, Any]] = answer["messages"]
    return messages


def settle(
    node: RunningNode, topic: str, verb: str, *receipts: str, group: str = "g", **fields: Any
) -> dict[str, Any]:
    body = {"receipts": list(receipts), **fields}
    answer: dict[str, Any] = node.call("POST", f"/v1/topics/{topic}/groups/{group}/{verb}", body)
    return answer


def group_of(node: RunningNode, topic: str, group: str = "g") -> dict[str, Any]:
    answer: dict[str, Any] = node.call("GET", f"/v1/topics/{topic}/groups/{group}")
    return answer


def values(messages: list[dict[str, Any]]) -> list[str]:
    return [message["value"] for message in messages]


def eventually(condition: Callable[[], object]) -> None:
    """Return when ``condition`` holds; fail when it does not in time."""
    until = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < until, "the condition did not come true in time"
        time.sleep(0.005)


def waiting(node: RunningNode, topic: str, group: str = "g") -> int:
    """How many receives wait in a group."""
    broker = node.node.broker
    assert broker is not None
    return node.on_loop(lambda: broker.topics[topic].waiters.count(group))
