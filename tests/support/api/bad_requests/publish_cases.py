"""Bad bodies of requests, and bad messages."""

from __future__ import annotations

import gzip

from goq import limits
from tests.support.api.bad_requests.case import DIGITS, GROUP, HUGE, PUBLISH, Case, b64, message

OWN_PAGE = {"Host": "localhost", "Origin": "http://localhost"}

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
