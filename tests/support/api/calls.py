"""Short names for what most tests of the API do."""

from __future__ import annotations

from typing import Any

from tests.support.node.running_node import RunningNode


def publish(node: RunningNode, topic: str, *values: str, **fields: Any) -> list[dict[str, Any]]:
    messages = [{"value": value, **fields} for value in values]
    answer = node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})
    results: list[dict[str, Any]] = answer["results"]
    return results


def receive(node: RunningNode, topic: str, group: str = "g", **asked: Any) -> list[dict[str, Any]]:
    answer = node.call(
        "POST", f"/v1/topics/{topic}/groups/{group}/receive", {"max_messages": 100, **asked}
    )
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


def waiting(node: RunningNode, topic: str, group: str = "g") -> int:
    """How many receives wait in a group."""
    broker = node.node.broker
    assert broker is not None
    return node.on_loop(lambda: broker.topics[topic].receiver.waiters.count(group))
