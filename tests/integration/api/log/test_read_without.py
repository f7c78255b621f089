"""Reading frames without values and headers: the rest is the same, and the log is unchanged."""

from __future__ import annotations

import pytest

from goq import limits
from goq.client import Client
from goq.client.messages import LogMessage
from goq.frame.encoder import Columns, encode_frame
from tests.support.api import frames as f
from tests.support.node.running_node import RunningNode

FRAMES, EACH = 6, 50
COUNT = FRAMES * EACH


@pytest.fixture
def filled(node: RunningNode, topic: str) -> str:
    """Frames of wide values with keys, headers and tenants; each second one is compressed."""
    for number in range(FRAMES):
        columns = Columns(
            values=[None if n == 3 else b"%d.%d " % (number, n) * 200 for n in range(EACH)],
            keys=[b"%d" % n for n in range(EACH)],
            headers=[[("source", b"shop")]] * EACH,
            tenants=["acme"] * EACH,
        )
        body = f.placed(encode_frame(columns, compress=number % 2 == 1), 0)
        node.request("POST", f"/v1/topics/{topic}/messages", body, f.FRAMES)
    return topic


def _cut(message: LogMessage, *without: str) -> tuple[object, ...]:
    value = message.value if "value" not in without else None if message.value is None else b""
    headers = () if "headers" in without else message.headers
    at = message.offset, message.timestamp, message.key, message.tenant
    return (*at, value, headers)


@pytest.mark.parametrize("without", [("value",), ("headers",), ("value", "headers")])
@pytest.mark.parametrize("background", [False, True])
def test_all_messages_come_without_what_was_left_out(
    node: RunningNode, filled: str, without: tuple[str, ...], background: bool
) -> None:
    with Client(node.url) as client:
        found: list[tuple[object, ...]] = []
        offset = 7
        while offset < COUNT:  # some frames a piece
            piece = client.read(
                filled,
                partition=0,
                offset=offset,
                bytes_max=7_000,
                background=background,
                without=without,
            )
            assert offset < piece.next <= COUNT
            found += [_cut(message) for message in piece.messages]
            offset = piece.next
        whole = client.read(filled, partition=0, offset=7).messages
    assert found == [_cut(message, *without) for message in whole]
    assert whole[0].value is not None
    assert len(whole[0].value) == 800


def test_wide_values_that_are_left_out_are_not_sent(node: RunningNode, filled: str) -> None:
    path = f"/v1/topics/{filled}/messages?partition=0"
    whole = node.request("GET", f"{path}&limit={COUNT}", headers=f.ACCEPT_FRAMES).body
    narrow = node.request(
        "GET", f"{path}&limit={COUNT}&without=headers,value", headers=f.ACCEPT_FRAMES
    ).body
    assert len(narrow) < len(whole) / 5
    assert f.answered(narrow)[0]["next"] == f.answered(whole)[0]["next"] == COUNT


def test_what_an_answer_decompresses_is_bounded(node: RunningNode, topic: str) -> None:
    columns = Columns([bytes(limits.VALUE_BYTES_MAX - 1000)] * 2)
    body = f.placed(encode_frame(columns, compress=True), 0)
    for _ in range(3):
        node.request("POST", f"/v1/topics/{topic}/messages", body, f.FRAMES)
    with Client(node.url) as client:
        ends, offset = [], 0
        while offset < 6:
            read = client.read(
                topic,
                partition=0,
                offset=offset,
                bytes_max=limits.READ_BYTES_MAX,
                without=["value"],
            )
            offset = read.next
            ends.append(offset)
    assert ends == [4, 6]  # the third frame exceeds the bound of 32 MiB


@pytest.mark.parametrize("name", ["key", "value,", "", "Value", "value;headers"])
def test_only_values_and_headers_can_be_left_out(node: RunningNode, filled: str, name: str) -> None:
    path = f"/v1/topics/{filled}/messages?partition=0&without={name}"
    answer = node.request("GET", path, headers=f.ACCEPT_FRAMES)
    assert (answer.status, answer.json["field"]) == (400, "without")


def test_json_has_whole_messages_or_is_refused(node: RunningNode, filled: str) -> None:
    answer = node.request("GET", f"/v1/topics/{filled}/messages?partition=0&without=value")
    assert (answer.status, answer.json["field"]) == (400, "without")
    assert "accept application/vnd.goq.frames" in answer.json["detail"]
