"""What is exactly at a limit is taken."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from goq import limits
from tests.support.api.bad_requests.case import b64
from tests.support.node.running_node import RunningNode

EXACTLY = {
    "the longest value": {"value": "x" * limits.VALUE_BYTES_MAX},
    "the longest value in base64": {"value_base64": b64(limits.VALUE_BYTES_MAX)},
    "the longest value of two-byte letters": {"value": "é" * (limits.VALUE_BYTES_MAX // 2)},
    "the longest key": {"value": "", "key": "k" * limits.KEY_BYTES_MAX},
    "the most headers": {
        "value": "",
        "headers": {str(n): "" for n in range(limits.HEADERS_PER_MESSAGE_MAX)},
    },
    "the longest header name": {"value": "", "headers": {"n" * limits.HEADER_NAME_BYTES_MAX: ""}},
    "the longest headers": {"value": "", "headers": {"n": "x" * (limits.HEADERS_BYTES_MAX - 1)}},
    "the longest headers, each letter written in six": {
        "value": "",
        "headers": {"n": "\0" * (limits.HEADERS_BYTES_MAX - 1)},
    },
}


@pytest.mark.parametrize("fields", EXACTLY.values(), ids=EXACTLY.keys())
def test_what_is_exactly_at_a_limit_is_taken(
    node: RunningNode, topic: str, fields: dict[str, Any]
) -> None:
    result = node.call("POST", f"/v1/topics/{topic}/messages", {"messages": [fields]})
    shown = node.call("GET", f"/v1/messages/{result['results'][0]['id']}")
    if "value_base64" in fields:
        assert shown["value"].encode() == base64.b64decode(fields["value_base64"])
    else:
        assert {name: shown[name] for name in fields} == fields


def test_the_most_messages_and_receipts_are_taken(node: RunningNode, topic: str) -> None:
    many = {"messages": [{"value": "", "partition": 0}] * limits.JSON_MESSAGES_PER_REQUEST_MAX}
    assert len(node.call("POST", f"/v1/topics/{topic}/messages", many)["results"]) == 10_000
    group = f"/v1/topics/{topic}/groups/g"
    messages = node.call("POST", f"{group}/receive", {"max_messages": limits.RECEIVE_MESSAGES_MAX})
    receipts = [m["receipt"] for m in messages["messages"]]
    assert len(receipts) == 10_000
    assert node.call("POST", f"{group}/ack", {"receipts": receipts}) == {
        "settled": 10_000,
        "failed": [],
    }


def test_the_longest_names_are_taken(node: RunningNode) -> None:
    name, group = "t" * limits.NAME_CHARS_MAX, "g" * limits.NAME_CHARS_MAX
    node.call("POST", "/v1/topics", {"name": name, "partitions": 1})
    body = {"consumer": "é" * limits.CONSUMER_NAME_CHARS_MAX, "wait": "0s", "visibility": "12h"}
    assert node.call("POST", f"/v1/topics/{name}/groups/{group}/receive", body) == {"messages": []}
    node.call("DELETE", f"/v1/topics/{name}")
