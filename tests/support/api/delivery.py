"""Messages with lanes, tenants and times, published as frames."""

from __future__ import annotations

import time
from typing import Any

from goq.frame.encoder import Columns, encode_frame
from goq.model import MessageId
from tests.support.api import frames as f
from tests.support.node.running_node import RunningNode

HOUR_MS = 3_600_000
HIGH, NORMAL, LOW = 0, 1, 2


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def put(
    node: RunningNode,
    topic: str,
    *values: str,
    partition: int = 0,
    keys: list[str | None] | None = None,
    **columns: Any,
) -> list[str]:
    """Publish a frame with these columns; return the messages' ids."""
    encoded = None if keys is None else [None if k is None else k.encode() for k in keys]
    data = encode_frame(Columns([v.encode() for v in values], keys=encoded, **columns))
    body = f.placed(data, partition)
    answer = node.request("POST", f"/v1/topics/{topic}/messages", body, f.FRAMES)
    assert answer.status == 200, answer
    first = answer.json["results"][0]["offset"]
    return [f"{topic}:{partition}:{first + n}" for n in range(len(values))]


def put_later(
    node: RunningNode, topic: str, *values: str, in_ms: int = HOUR_MS, **more: Any
) -> Any:
    return put(node, topic, *values, deliver_at_ms=[now_ms() + in_ms] * len(values), **more)


def show(node: RunningNode, message_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = node.call("GET", f"/v1/messages/{message_id}")
    return answer


def states(node: RunningNode, message_id: str) -> dict[str, str]:
    return {each["group"]: each["state"] for each in show(node, message_id)["groups"]}


def cancel(node: RunningNode, message_id: str, code: int = 200) -> dict[str, Any]:
    answer = node.request("DELETE", f"/v1/messages/{message_id}")
    assert answer.status == code, answer
    found: dict[str, Any] = answer.json
    return found


def change(node: RunningNode, message_id: str, code: int = 200, **fields: Any) -> dict[str, Any]:
    answer = node.request("PATCH", f"/v1/messages/{message_id}", fields)
    assert answer.status == code, answer
    found: dict[str, Any] = answer.json
    return found


def offset_of(message_id: str) -> int:
    return MessageId.parse(message_id).offset
