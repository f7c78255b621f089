"""Whatever is wrong with a request: a 4xx that names it, nothing stored, the node goes on."""

from __future__ import annotations

import base64
import gzip
import json
import socket
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from goq import limits
from tests.support.node.running_node import RunningNode

PUBLISH = "/v1/topics/bad/messages"
GROUP = "/v1/topics/bad/groups/g"
HUGE = 10**30
DIGITS = "9" * 5000


OWN_PAGE = {"Host": "localhost", "Origin": "http://localhost"}


class Case(NamedTuple):
    method: str
    path: str
    body: Any
    code: str
    field: str | None
    headers: Mapping[str, str] = MappingProxyType({})


@pytest.fixture(scope="module", autouse=True)
def _topic(node: RunningNode) -> Iterator[None]:
    node.call("POST", "/v1/topics", {"name": "bad", "partitions": 2})
    node.call("POST", PUBLISH, {"messages": [{"value": "first", "partition": 0}]})
    node.call("POST", f"{GROUP}/receive", {"max_messages": 1})
    yield
    node.call("DELETE", "/v1/topics/bad")


def end_offsets(node: RunningNode) -> list[int]:
    return [p["end_offset"] for p in node.call("GET", "/v1/topics/bad")["partitions"]]


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"value": "good"}, fields]}


def b64(size: int) -> str:
    return base64.b64encode(bytes(size)).decode()


BODIES = {
    "a key twice": Case(
        "POST",
        PUBLISH,
        b'{"messages": [{"value": "a", "key": "k", "value": "b"}]}',
        "invalid_input",
        "value",
    ),
    "a key twice, once escaped": Case(
        "POST",
        PUBLISH,
        b'{"messages": [{"value": "a", "\\u0076alue": "b"}]}',
        "invalid_input",
        "value",
    ),
    "a header twice": Case(
        "POST",
        PUBLISH,
        b'{"messages": [{"value": "a", "headers": {"n": "1", "n": "2"}}]}',
        "invalid_input",
        "n",
    ),
    "a setting twice": Case(
        "POST",
        "/v1/topics",
        b'{"name": "n", "settings": {"retention.age": "1h", "retention.age": "2h"}}',
        "invalid_input",
        "retention.age",
    ),
    "no JSON": Case("POST", PUBLISH, b"hello", "invalid_input", "body"),
    "half a JSON": Case("POST", PUBLISH, b'{"messages": [', "invalid_input", "body"),
    "JSON and more": Case("POST", PUBLISH, b'{"messages": []} x', "invalid_input", "body"),
    "a byte order mark": Case("POST", PUBLISH, b"\xef\xbb\xbf{}", "invalid_input", "body"),
    "UTF-16": Case("POST", PUBLISH, '{"messages": []}'.encode("utf-16"), "invalid_input", "body"),
    "bytes that are not UTF-8": Case(
        "POST", PUBLISH, b'{"messages": [{"value": "\xff"}]}', "invalid_input", "body"
    ),
    "half a surrogate pair": Case(
        "POST", PUBLISH, b'{"messages": [{"value": "\\ud800"}]}', "invalid_input", "body"
    ),
    "half a surrogate pair in a header": Case(
        "POST",
        PUBLISH,
        b'{"messages": [{"value": "", "headers": {"\\udc00": ""}}]}',
        "invalid_input",
        "body",
    ),
    "an array": Case("POST", PUBLISH, b"[]", "invalid_input", "body"),
    "null": Case("POST", PUBLISH, b"null", "invalid_input", "body"),
    "forty thousand open braces": Case(
        "POST", "/v1/topics", b'{"settings":' + b'{"a":' * 40_000, "invalid_input", "body"
    ),
    "a hundred thousand open brackets": Case(
        "POST", PUBLISH, b"[" * 100_000, "invalid_input", "body"
    ),
    "headers a thousand deep": Case(
        "POST",
        PUBLISH,
        b'{"messages": [{"value": "", "headers": ' + b'{"a":' * 1000 + b"1" + b"}" * 1000 + b"}]}",
        "invalid_input",
        "body",
    ),
    "an empty body": Case("POST", PUBLISH, b"", "invalid_input", "body"),
    "another media type": Case(
        "POST",
        PUBLISH,
        b"{}",
        "unsupported_media_type",
        "Content-Type",
        {"Content-Type": "text/plain"},
    ),
    "a compressed body": Case(
        "POST",
        PUBLISH,
        gzip.compress(b'{"messages": [{"value": "x"}]}'),
        "unsupported_media_type",
        "Content-Encoding",
        {"Content-Encoding": "gzip"},
    ),
    "compressed frames": Case(
        "POST",
        PUBLISH,
        b"x",
        "unsupported_media_type",
        "Content-Encoding",
        {"Content-Encoding": " ZSTD", "Content-Type": "application/vnd.goq.frames"},
    ),
    "frames where there are none": Case(
        "POST",
        f"{GROUP}/receive",
        b"{}",
        "unsupported_media_type",
        "Content-Type",
        {"Content-Type": "application/vnd.goq.frames"},
    ),
    "a form from a web page": Case(
        "POST",
        PUBLISH,
        b'{"messages": [{"value": "x"}]}',
        "unsupported_media_type",
        "Content-Type",
        {"Content-Type": "application/x-www-form-urlencoded", **OWN_PAGE},
    ),
    "an untyped body from a web page": Case(
        "POST",
        f"{GROUP}/receive",
        b"",
        "unsupported_media_type",
        "Content-Type",
        OWN_PAGE,
    ),
    "more than two megabytes of receipts": Case(
        "POST",
        f"{GROUP}/ack",
        b'{"receipts": [' + b'"",' * 700_000 + b'""]}',
        "too_large",
        "body",
    ),
}

PUBLISHING = {
    "no messages": Case("POST", PUBLISH, {}, "invalid_input", "body"),
    "an empty list": Case("POST", PUBLISH, {"messages": []}, "invalid_input", "messages"),
    "messages that are no list": Case(
        "POST", PUBLISH, {"messages": {}}, "invalid_input", "messages"
    ),
    "a message that is no object": Case(
        "POST", PUBLISH, {"messages": ["x"]}, "invalid_input", "messages[0]"
    ),
    "one message too many": Case(
        "POST",
        PUBLISH,
        {"messages": [{"value": ""}] * (limits.JSON_MESSAGES_PER_REQUEST_MAX + 1)},
        "too_large",
        "messages",
    ),
    "an unknown field": Case("POST", PUBLISH, message(delya="1s"), "invalid_input", "messages[1]"),
    "an unknown field at the top": Case(
        "POST", PUBLISH, {"messages": [], "ack": 1}, "invalid_input", "body"
    ),
    "no value": Case("POST", PUBLISH, message(), "invalid_input", "messages[1].value"),
    "a number as value": Case(
        "POST", PUBLISH, message(value=1), "invalid_input", "messages[1].value"
    ),
    "value and value_base64": Case(
        "POST",
        PUBLISH,
        message(value="x", value_base64="eA=="),
        "invalid_input",
        "messages[1].value",
    ),
    "null and value_base64": Case(
        "POST",
        PUBLISH,
        message(value=None, value_base64="eA=="),
        "invalid_input",
        "messages[1].value",
    ),
    "base64 without padding": Case(
        "POST", PUBLISH, message(value_base64="eA"), "invalid_input", "messages[1].value_base64"
    ),
    "base64 with a foreign letter": Case(
        "POST", PUBLISH, message(value_base64="e!=="), "invalid_input", "messages[1].value_base64"
    ),
    "base64 that is not ASCII": Case(
        "POST", PUBLISH, message(value_base64="éé=="), "invalid_input", "messages[1].value_base64"
    ),
    "URL-safe base64": Case(
        "POST", PUBLISH, message(value_base64="-_8="), "invalid_input", "messages[1].value_base64"
    ),
    "key and key_base64": Case(
        "POST",
        PUBLISH,
        message(value="x", key="a", key_base64="eA=="),
        "invalid_input",
        "messages[1].key",
    ),
    "a bad key_base64": Case(
        "POST",
        PUBLISH,
        message(value="x", key_base64="="),
        "invalid_input",
        "messages[1].key_base64",
    ),
    "a value one byte too long": Case(
        "POST",
        PUBLISH,
        message(value="x" * (limits.VALUE_BYTES_MAX + 1)),
        "too_large",
        "messages[1].value",
    ),
    "a base64 value one byte too long": Case(
        "POST",
        PUBLISH,
        message(value_base64=b64(limits.VALUE_BYTES_MAX + 1)),
        "too_large",
        "messages[1].value",
    ),
    "a key one byte too long": Case(
        "POST",
        PUBLISH,
        message(value="x", key="k" * (limits.KEY_BYTES_MAX + 1)),
        "too_large",
        "messages[1].key",
    ),
    "one header too many": Case(
        "POST",
        PUBLISH,
        message(value="x", headers={str(n): "" for n in range(limits.HEADERS_PER_MESSAGE_MAX + 1)}),
        "too_large",
        "messages[1].headers",
    ),
    "a header name one byte too long": Case(
        "POST",
        PUBLISH,
        message(value="x", headers={"é" * (limits.HEADER_NAME_BYTES_MAX // 2) + "x": ""}),
        "invalid_input",
        "messages[1].headers",
    ),
    "a header without name": Case(
        "POST",
        PUBLISH,
        message(value="x", headers={"": ""}),
        "invalid_input",
        "messages[1].headers",
    ),
    "headers one byte too long": Case(
        "POST",
        PUBLISH,
        message(value="x", headers={"n": "x" * limits.HEADERS_BYTES_MAX}),
        "too_large",
        "messages[1].headers",
    ),
    "headers of a megabyte": Case(
        "POST",
        PUBLISH,
        message(value="x", headers=[{"name": "n"}] * 60_000),
        "too_large",
        "messages[1].headers",
    ),
    "a header that is a number": Case(
        "POST",
        PUBLISH,
        message(value="x", headers={"n": 1}),
        "invalid_input",
        "messages[1].headers[...]",
    ),
    "headers that are a text": Case(
        "POST", PUBLISH, message(value="x", headers="n"), "invalid_input", "messages[1].headers"
    ),
    "a header with two values": Case(
        "POST",
        PUBLISH,
        message(value="x", headers=[{"name": "n", "value": "", "value_base64": ""}]),
        "invalid_input",
        "messages[1].headers[0]",
    ),
    "a header with no value": Case(
        "POST",
        PUBLISH,
        message(value="x", headers=[{"name": "n"}]),
        "invalid_input",
        "messages[1].headers[0]",
    ),
    "a header with bad base64": Case(
        "POST",
        PUBLISH,
        message(value="x", headers=[{"name": "n", "value_base64": "?"}]),
        "invalid_input",
        "messages[1].headers[0]",
    ),
    "a header with an unknown field": Case(
        "POST",
        PUBLISH,
        message(value="x", headers=[{"name": "n", "valeu": "?"}]),
        "invalid_input",
        "messages[1].headers[0]",
    ),
    "a partition there is not": Case(
        "POST", PUBLISH, message(value="x", partition=2), "partition_not_found", "partition"
    ),
    "a negative partition": Case(
        "POST", PUBLISH, message(value="x", partition=-1), "partition_not_found", "partition"
    ),
    "an absurd partition": Case(
        "POST", PUBLISH, message(value="x", partition=HUGE), "partition_not_found", "partition"
    ),
    "a partition of five thousand digits": Case(
        "POST",
        PUBLISH,
        b'{"messages": [{"value": "", "partition": ' + DIGITS.encode() + b"}]}",
        "invalid_input",
        "messages[0].partition",
    ),
    "a partition that is a text": Case(
        "POST", PUBLISH, message(value="x", partition="0"), "invalid_input", "messages[1].partition"
    ),
    "together more than a frame holds, in two partitions": Case(
        "POST",
        PUBLISH,
        {
            "messages": [
                {"value": "stored first", "partition": 0},
                *([{"value": "x" * 6_000_000, "partition": 1}] * 3),
            ]
        },
        "too_large",
        "messages",
    ),
    "a topic that may not be named so": Case(
        "POST",
        "/v1/topics/__hidden/messages",
        {"messages": [{"value": "x"}]},
        "invalid_input",
        "topic",
    ),
    "a query": Case(
        "POST", f"{PUBLISH}?acks=all", {"messages": [{"value": "x"}]}, "invalid_input", "acks"
    ),
}

TOPICS = {
    "no name": Case("POST", "/v1/topics", {}, "invalid_input", "body"),
    "an empty name": Case("POST", "/v1/topics", {"name": ""}, "invalid_input", "name"),
    "a name with a slash": Case("POST", "/v1/topics", {"name": "a/b"}, "invalid_input", "name"),
    "a name with a dot first": Case("POST", "/v1/topics", {"name": ".a"}, "invalid_input", "name"),
    "the name of the folder above": Case(
        "POST", "/v1/topics", {"name": ".."}, "invalid_input", "name"
    ),
    "a name with a line's end": Case(
        "POST", "/v1/topics", {"name": "a\n"}, "invalid_input", "name"
    ),
    "a name that is not ASCII": Case("POST", "/v1/topics", {"name": "é"}, "invalid_input", "name"),
    "a name with a zero byte": Case("POST", "/v1/topics", {"name": "a\0"}, "invalid_input", "name"),
    "a name one character too long": Case(
        "POST",
        "/v1/topics",
        {"name": "n" * (limits.NAME_CHARS_MAX + 1)},
        "invalid_input",
        "name",
    ),
    "a long name": Case("POST", "/v1/topics", {"name": "n" * 200_000}, "invalid_input", "name"),
    "a megabyte of name": Case(
        "POST", "/v1/topics", {"name": "n" * 1_000_000}, "too_large", "body"
    ),
    "a hundred and fifty thousand settings": Case(
        "PATCH",
        "/v1/topics/bad",
        {"settings": {f"a{number}": 1 for number in range(150_000)}},
        "too_large",
        "body",
    ),
    "ten thousand settings": Case(
        "PATCH",
        "/v1/topics/bad",
        {"settings": {f"a{number}": 1 for number in range(10_000)}},
        "invalid_input",
        "settings",
    ),
    "a name that is there": Case("POST", "/v1/topics", {"name": "bad"}, "topic_exists", "name"),
    "a bad name by path": Case("PUT", "/v1/topics/.a", b"", "invalid_input", "topic"),
    "no topic": Case("GET", "/v1/topics/nothing", None, "topic_not_found", "topic"),
    "an unknown parameter": Case("GET", "/v1/topics?all=1", None, "invalid_input", "all"),
    "delete with a parameter": Case(
        "DELETE", "/v1/topics/bad?force=1", None, "invalid_input", "force"
    ),
    "fewer partitions": Case(
        "PATCH", "/v1/topics/bad", {"partitions": 1}, "invalid_input", "partitions"
    ),
    "an unknown setting in a change": Case(
        "PATCH", "/v1/topics/bad", {"settings": {"x": 1}}, "invalid_input", "settings.x"
    ),
    "an unknown field": Case("PATCH", "/v1/topics/bad", {"fsync": 1}, "invalid_input", "body"),
}
for count in (0, -1, limits.PARTITIONS_PER_TOPIC_MAX + 1, HUGE, -HUGE):
    TOPICS[f"{count} partitions"] = Case(
        "POST", "/v1/topics", {"name": "n", "partitions": count}, "invalid_input", "partitions"
    )
for count_of_no_kind in (1.5, "1", True, [], {}):
    TOPICS[f"{count_of_no_kind!r} partitions"] = Case(
        "POST",
        "/v1/topics",
        {"name": "n", "partitions": count_of_no_kind},
        "invalid_input",
        "partitions",
    )
for setting, value in [
    ("retention.age", "soon"),
    ("retention.age", "-1s"),
    ("retention.age", 0),
    ("retention.age", True),
    ("retention.age", 1e308),
    ("retention.age", -1e308),
    ("retention.age", HUGE),
    ("retention.age", "9" * 400 + "d"),
    ("retention.age", "9" * 5000),
    ("retention.bytes", "1 bushel"),
    ("retention.bytes", 1),
    ("retention.bytes", HUGE),
    ("retention.bytes", "9" * 5000),
    ("segment.bytes", "none"),
    ("segment.bytes", limits.SEGMENT_BYTES_MIN - 1),
    ("segment.bytes", limits.SEGMENT_BYTES_MAX + 1),
    ("segment.age", None),
    ("segment.age", []),
    ("segment.age", {}),
    ("fsync", "sometimes"),
    ("fsync", ["always"]),
    ("fsync", "x" * 200_000),
    ("delivery.visibility_timeout", "0s"),
    ("delivery.visibility_timeout", "12h1ms"),
    ("nothing.of.the.sort.at.all", 1),
    ("n" * 100_000, 1),
]:
    if value == {}:
        continue
    TOPICS[f"{setting[:40]} {str(value)[:40]}"] = Case(
        "POST",
        "/v1/topics",
        {"name": "n", "settings": {setting: value}},
        "invalid_input",
        f"settings.{setting}"[:200],
    )
deep: Any = 1
for _ in range(400):
    deep = {"a": deep}
TOPICS["settings four hundred deep"] = Case(
    "POST", "/v1/topics", {"name": "n", "settings": deep}, "invalid_input", "settings.a.a.a.a.a"
)

READING = {
    f"read with {query or 'nothing'}": Case(
        "GET", f"{PUBLISH}?{query}", None, "invalid_input", field
    )
    for query, field in [
        ("", "partition"),
        ("partition=x", "partition"),
        ("partition=", "partition"),
        ("partition=-1", "partition"),
        ("partition=%D9%A1", "partition"),
        (f"partition={'9' * 400}", "partition"),
        ("partition=0&partition=0", "partition"),
        ("partition=0&offset=-1", "offset"),
        ("partition=0&offset=1.5", "offset"),
        (f"partition=0&offset={2**63}", "offset"),
        ("partition=0&from_time=2025-01-15&to_time=2025-01-14", "to_time"),
        ("partition=0&background=1", "background"),
        ("partition=0&background=", "background"),
        ("partition=0&limit=0", "limit"),
        ("partition=0&limit=-1", "limit"),
        (f"partition=0&limit={limits.READ_MESSAGES_MAX + 1}", "limit"),
        (f"partition=0&limit={HUGE}", "limit"),
        ("partition=0&bytes=1000", "bytes"),
        ("partition=0&from_time=yesterday", "from_time"),
        ("partition=0&from_time=2025-01-15T10:30:00", "from_time"),
        ("partition=0&from_time=2025-13-15", "from_time"),
        ("partition=0&from_time=", "from_time"),
        (f"partition=0&from_time={'9' * 400}", "from_time"),
        (f"partition=0&from_time=-{'9' * 400}d", "from_time"),
        ("partition=0&to_time=later", "to_time"),
        ("partition=0&wait=ages", "wait"),
        ("partition=0&wait=60001ms", "wait"),
        (f"partition=0&wait={'9' * 400}", "wait"),
        ("partition=0&wait=-1s", "wait"),
        ("partition=0&include_everything=true", "include_everything"),
        ("partition=%ff", None),
        ("partition=%zz", None),
    ]
} | {
    "a partition there is not": Case(
        "GET", f"{PUBLISH}?partition=2", None, "partition_not_found", "partition"
    ),
    "an absurd partition": Case(
        "GET", f"{PUBLISH}?partition={2**63 - 1}", None, "partition_not_found", "partition"
    ),
    "no topic": Case(
        "GET", "/v1/topics/nothing/messages?partition=0", None, "topic_not_found", "topic"
    ),
    "an id of no kind": Case("GET", "/v1/messages/hello", None, "invalid_input", "id"),
    "an id with a negative offset": Case(
        "GET", "/v1/messages/bad:0:-1", None, "invalid_input", "id"
    ),
    "an id with twenty digits": Case(
        "GET", f"/v1/messages/bad:0:{'9' * 20}", None, "invalid_input", "id"
    ),
    "an id with other digits": Case(
        "GET", "/v1/messages/bad:0:%D9%A1", None, "invalid_input", "id"
    ),
    "an id of a hidden topic": Case("GET", "/v1/messages/.x:0:1", None, "invalid_input", "id"),
    "an id without topic": Case("GET", "/v1/messages/:0:1", None, "invalid_input", "id"),
    "a message that is not yet": Case(
        "GET", "/v1/messages/bad:1:7", None, "message_not_found", "id"
    ),
    "a message of a partition there is not": Case(
        "GET", "/v1/messages/bad:7:0", None, "partition_not_found", "partition"
    ),
    "a message of no topic": Case("GET", "/v1/messages/no:0:0", None, "topic_not_found", "topic"),
}

RECEIVING = {
    f"receive with {name}": Case("POST", f"{GROUP}/receive", body, code, field)
    for name, body, code, field in [
        ("max_messages 0", {"max_messages": 0}, "invalid_input", "max_messages"),
        ("max_messages -1", {"max_messages": -1}, "invalid_input", "max_messages"),
        ("max_messages huge", {"max_messages": HUGE}, "invalid_input", "max_messages"),
        (
            "max_messages one over",
            {"max_messages": limits.RECEIVE_MESSAGES_MAX + 1},
            "invalid_input",
            "max_messages",
        ),
        ("max_messages of a text", {"max_messages": "1"}, "invalid_input", "max_messages"),
        ("max_messages of a half", {"max_messages": 0.5}, "invalid_input", "max_messages"),
        ("max_messages null", {"max_messages": None}, "invalid_input", "max_messages"),
        ("max_messages true", {"max_messages": True}, "invalid_input", "max_messages"),
        ("a word for wait", {"wait": "long"}, "invalid_input", "wait"),
        ("too long a wait", {"wait": "60001ms"}, "invalid_input", "wait"),
        ("a negative wait", {"wait": -1}, "invalid_input", "wait"),
        ("an absurd wait", {"wait": 1e308}, "invalid_input", "wait"),
        ("an absurd text for wait", {"wait": "9" * 400 + "d"}, "invalid_input", "wait"),
        ("wait null", {"wait": None}, "invalid_input", "wait"),
        ("visibility 0", {"visibility": 0}, "invalid_input", "visibility"),
        ("visibility 0.1ms", {"visibility": "0.1ms"}, "invalid_input", "visibility"),
        ("too long a visibility", {"visibility": "12h1ms"}, "invalid_input", "visibility"),
        ("an absurd visibility", {"visibility": 1e300}, "invalid_input", "visibility"),
        (
            "too long a consumer",
            {"consumer": "c" * (limits.CONSUMER_NAME_CHARS_MAX + 1)},
            "too_large",
            "consumer",
        ),
        ("a consumer of no kind", {"consumer": 1}, "invalid_input", "consumer"),
        ("an unknown field", {"visibility_timeout": "1s"}, "invalid_input", "body"),
    ]
} | {
    "a group that may not be named so": Case(
        "POST", "/v1/topics/bad/groups/.x/receive", {}, "invalid_input", "group"
    ),
    "too long a group": Case(
        "POST", f"/v1/topics/bad/groups/{'g' * 201}/receive", {}, "invalid_input", "group"
    ),
    "no topic": Case("POST", "/v1/topics/no/groups/g/receive", {}, "topic_not_found", "topic"),
}

SETTLING = {
    f"{verb} with {name}": Case("POST", f"{GROUP}/{verb}", body, code, field)
    for verb in ("ack", "nack", "extend")
    for name, body, code, field in [
        ("nothing", {}, "invalid_input", "body"),
        ("a text", {"receipts": "0:1:0"}, "invalid_input", "receipts"),
        ("numbers", {"receipts": [1]}, "invalid_input", "receipts[0]"),
        ("an empty receipt", {"receipts": [""]}, "invalid_input", "receipts[0]"),
        ("a bad second receipt", {"receipts": ["0:1:0", "x"]}, "invalid_input", "receipts[1]"),
        ("a receipt of nothing", {"receipts": ["0:1:0+0"]}, "invalid_input", "receipts[0]"),
        ("a negative receipt", {"receipts": ["0:1:-1"]}, "invalid_input", "receipts[0]"),
        ("an absurd receipt", {"receipts": [f"0:1:{DIGITS}"]}, "invalid_input", "receipts[0]"),
        ("a receipt of other digits", {"receipts": ["0:1:\u0661"]}, "invalid_input", "receipts[0]"),
        ("a receipt and a line's end", {"receipts": ["0:1:0\n"]}, "invalid_input", "receipts[0]"),
        (
            "one receipt too many",
            {"receipts": ["0:1:0"] * (limits.RECEIPTS_PER_REQUEST_MAX + 1)},
            "too_large",
            "receipts",
        ),
        ("an unknown field", {"receipts": [], "receipt": ""}, "invalid_input", "body"),
    ]
} | {
    "nack with a word for delay": Case(
        "POST", f"{GROUP}/nack", {"receipts": [], "delay": "later"}, "invalid_input", "delay"
    ),
    "nack with too long a delay": Case(
        "POST", f"{GROUP}/nack", {"receipts": [], "delay": "366d"}, "invalid_input", "delay"
    ),
    "nack with an absurd delay": Case(
        "POST", f"{GROUP}/nack", {"receipts": [], "delay": 1e308}, "invalid_input", "delay"
    ),
    "nack with too long a reason": Case(
        "POST",
        f"{GROUP}/nack",
        {"receipts": [], "reason": "r" * (limits.REASON_CHARS_MAX + 1)},
        "too_large",
        "reason",
    ),
    "extend by nothing": Case(
        "POST", f"{GROUP}/extend", {"receipts": [], "visibility": 0}, "invalid_input", "visibility"
    ),
}

GROUPS = {
    f"reset to {str(to)[:40]!r}": Case("POST", f"{GROUP}/reset", {"to": to}, "invalid_input", "to")
    for to in (-1, HUGE, DIGITS, "9" * 25, "never", "", True, 1.5, None, "-" + "9" * 400 + "d")
} | {
    **{
        f"reset with an end of {str(end)[:40]!r}": Case(
            "POST", f"{GROUP}/reset", {"to": 0, "end": end}, "invalid_input", "end"
        )
        for end in (-1, 2**63, "soon", "9" * 30)
    },
    "reset to nowhere": Case("POST", f"{GROUP}/reset", {}, "invalid_input", "body"),
    "reset a partition there is not": Case(
        "POST",
        f"{GROUP}/reset",
        {"to": "earliest", "partition": 9},
        "partition_not_found",
        "partition",
    ),
    "reset a group that may not be named so": Case(
        "POST", "/v1/topics/bad/groups/__x/reset", {"to": 0}, "invalid_input", "group"
    ),
    "reset with a word for dry_run": Case(
        "POST", f"{GROUP}/reset", {"to": 0, "dry_run": "yes"}, "invalid_input", "dry_run"
    ),
    "show no group": Case("GET", "/v1/topics/bad/groups/no", None, "group_not_found", "group"),
    "delete no group": Case("DELETE", "/v1/topics/bad/groups/no", None, "group_not_found", "group"),
    "groups of no topic": Case("GET", "/v1/topics/no/groups", None, "topic_not_found", "topic"),
    "peek into no group": Case(
        "GET", "/v1/topics/bad/groups/no/peek", None, "group_not_found", "group"
    ),
    "peek at no state": Case("GET", f"{GROUP}/peek?state=gone", None, "invalid_input", "state"),
    "peek with limit 0": Case("GET", f"{GROUP}/peek?limit=0", None, "invalid_input", "limit"),
    "peek with too high a limit": Case(
        "GET", f"{GROUP}/peek?limit=10001", None, "invalid_input", "limit"
    ),
    "peek behind nothing": Case("GET", f"{GROUP}/peek?after=x", None, "invalid_input", "after"),
    "peek behind another topic": Case(
        "GET", f"{GROUP}/peek?after=other:0:0", None, "invalid_input", "after"
    ),
    "peek with an unknown parameter": Case(
        "GET", f"{GROUP}/peek?max_messages=1", None, "invalid_input", "max_messages"
    ),
    "peek with a parameter twice": Case(
        "GET", f"{GROUP}/peek?limit=1&limit=2", None, "invalid_input", "limit"
    ),
}

ROUTES = {
    f"{method} {path}": Case(method, path, None, code, field)
    for method, path, code, field in [
        ("GET", "//", "route_not_found", None),
        ("GET", "/v1", "route_not_found", None),
        ("GET", "/v1/topics/", "route_not_found", None),
        ("GET", "/v2/topics", "route_not_found", None),
        ("GET", "/v1/topics/bad/messages/", "route_not_found", None),
        ("GET", "/v1/topics/bad/nothing", "route_not_found", None),
        ("GET", "//v1/topics", "route_not_found", None),
        ("GET", "/v1/../v1/topics", "route_not_found", None),
        ("DELETE", "/v1/topics", "method_not_allowed", "method"),
        ("OPTIONS", "/v1/topics", "method_not_allowed", "method"),
        ("GET", f"{GROUP}/receive", "method_not_allowed", "method"),
        ("POST", "/healthz", "method_not_allowed", "method"),
    ]
}

CASES = {
    f"{table}: {name}": case
    for table, cases in (
        ("body", BODIES),
        ("publish", PUBLISHING),
        ("topics", TOPICS),
        ("read", READING),
        ("receive", RECEIVING),
        ("settle", SETTLING),
        ("groups", GROUPS),
        ("routes", ROUTES),
    )
    for name, case in cases.items()
}
STATUS = {
    "too_large": 413,
    "unsupported_media_type": 415,
    "method_not_allowed": 405,
    "topic_exists": 409,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_bad_request_is_refused_by_name_and_changes_nothing(
    node: RunningNode, case: Case
) -> None:
    before = end_offsets(node)
    answer = node.request(case.method, case.path, case.body, case.headers)
    expected = STATUS.get(case.code, 404 if case.code.endswith("_not_found") else 400)
    assert (answer.status, answer.json["code"]) == (expected, case.code), answer.json
    problem = answer.json
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == answer.status
    assert problem["type"] == f"urn:goq:problem:{case.code}"
    assert problem["title"]
    assert problem["detail"]
    assert problem.get("field", "")[:200] == (case.field or "")
    assert len(answer.body) < 8192
    assert end_offsets(node) == before
    assert "n" not in {t["name"] for t in node.call("GET", "/v1/topics")["topics"]}


def test_a_method_that_is_not_allowed_is_answered_with_those_that_are(node: RunningNode) -> None:
    answer = node.request("DELETE", "/v1/topics")
    assert answer.headers["allow"] == "GET, HEAD, POST"


def test_a_compressed_body_is_answered_with_the_coding_that_is_accepted(
    node: RunningNode, topic: str
) -> None:
    path, body = f"/v1/topics/{topic}/messages", message(value="x")
    answer = node.request("POST", path, body, {"Content-Encoding": "br"})
    assert (answer.status, answer.headers["accept-encoding"]) == (415, "identity")
    assert node.request("POST", path, body, {"Content-Encoding": "identity"}).status == 200
    assert node.request("GET", "/v1/topics", headers={"Content-Encoding": "gzip"}).status == 200


def test_an_unknown_field_is_answered_with_the_known_ones(node: RunningNode) -> None:
    detail = node.request("POST", PUBLISH, message(delya="1s")).json["detail"]
    assert "`delya`" in detail
    assert "value, value_base64, key, key_base64, headers, partition" in detail
    detail = node.request("POST", f"{GROUP}/nack", {"receipt": []}).json["detail"]
    assert "receipts, delay, reason" in detail
    headers = [{"name": "n", "valeu": ""}]
    detail = node.request("POST", PUBLISH, message(value="x", headers=headers)).json["detail"]
    assert "name, value, value_base64" in detail


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


def test_a_body_shorter_than_its_length_publishes_nothing(node: RunningNode) -> None:
    before = end_offsets(node)
    body = json.dumps({"messages": [{"value": "x"}]}).encode()
    with socket.create_connection(node.address, timeout=60) as raw:
        head = (
            f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body) + 1}\r\n\r\n"
        )
        raw.sendall(head.encode() + body)
        raw.shutdown(socket.SHUT_WR)
        answer = raw.makefile("rb").read()
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert end_offsets(node) == before


def test_a_body_over_the_limit_of_the_node_is_refused_before_it_is_read(node: RunningNode) -> None:
    with socket.create_connection(node.address, timeout=60) as raw:
        head = (
            f"POST {PUBLISH} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Length: {limits.BODY_BYTES_MAX + 1}\r\n\r\n"
        )
        raw.sendall(head.encode())
        answer = raw.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"too_large"' in answer
