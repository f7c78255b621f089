"""What docs/format.md tells a client that writes frames, against a node."""

from __future__ import annotations

import re

from goq import limits
from goq.api.codec.publish_request import FRAMES_PER_REQUEST_MAX, RAW_BYTES_PER_REQUEST_MAX
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from tests.support.node.running_node import RunningNode
from tests.support.paths import DOCS

PAGE = (DOCS / "format.md").read_text()
_PREFACE_LENGTH_BYTES, _PARTITION_BYTES = 4, 4


def bytes_of(text: str) -> int:
    number, unit = text.split()
    return int(number) * {"MiB": limits.MIB, "KiB": limits.KIB}[unit]


def test_a_node_puts_the_messages_of_the_page_where_it_says_with_the_columns_that_it_shows(
    node: RunningNode,
) -> None:
    written = re.findall(
        r"^\| (?:no key, )?(key|dedup id) `(.*?)` \| (\w+) `([0-9a-f ]+)` \| (\d) \|$",
        PAGE,
        re.MULTILINE,
    )
    assert [what for what, *_ in written] == ["key", "dedup id"]
    node.call("POST", "/v1/topics", {"name": "placed", "partitions": 6})
    for what, text, column, column_bytes, partition in written:
        message = {"value": "v", what.replace(" ", "_"): text}
        answer = node.call("POST", "/v1/topics/placed/messages", {"messages": [message]})
        assert answer["results"][0]["partition"] == int(partition)
        path = f"/v1/topics/placed/messages?partition={partition}"
        frames = {"Accept": "application/vnd.goq.frames"}
        body = node.request("GET", path, None, frames).body
        preface_bytes = int.from_bytes(body[:_PREFACE_LENGTH_BYTES], "little")
        first = _PREFACE_LENGTH_BYTES + preface_bytes + _PARTITION_BYTES
        found = FrameView.parse(body, first).column(getattr(Attribute, column))
        assert found is not None
        assert bytes(found) == bytes.fromhex(column_bytes)


def test_the_limits_of_the_page_are_those_of_the_node() -> None:
    rows = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", PAGE, re.MULTILINE))
    assert bytes_of(rows["value"]) == limits.VALUE_BYTES_MAX
    assert bytes_of(rows["key"]) == limits.KEY_BYTES_MAX
    assert int(rows["headers"]) == limits.HEADERS_PER_MESSAGE_MAX
    assert rows["a header's name"] == f"1 to {limits.HEADER_NAME_BYTES_MAX} bytes"
    assert bytes_of(rows["names and values of all headers"]) == limits.HEADERS_BYTES_MAX
    assert rows["tenant"] == f"1 to {limits.TENANT_NAME_BYTES_MAX} bytes"
    assert bytes_of(rows["body"]) == limits.BODY_BYTES_MAX
    assert rows["frames"] == f"{FRAMES_PER_REQUEST_MAX:,}"
    uncompressed = rows["all frames, with their payloads uncompressed"]
    assert bytes_of(uncompressed) == RAW_BYTES_PER_REQUEST_MAX
    assert rows["messages in frames with DEDUP_ID"] == f"{limits.DEDUP_IDS_PER_REQUEST_MAX:,}"
