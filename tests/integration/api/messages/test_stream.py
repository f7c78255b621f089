"""Streams over HTTP: credit, what gives it back, and what an end of the stream means."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import ExitStack
from itertools import chain
from typing import Any

import pytest

from goq import limits
from tests.support.api import frames as f
from tests.support.api.calls import group_of, publish, receive, settle, values, waiting
from tests.support.api.streams import StreamOfLines, open_streams, streaming
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node


def in_flight(node: RunningNode, topic: str) -> int:
    leased: int = group_of(node, topic)["leased"]
    return leased


def test_a_stream_hands_over_what_is_there_and_what_is_published_later(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "a", partition=0)
    with streaming(node, topic, max_in_flight=10, consumer="c-1") as stream:
        assert stream.response.status == 200
        assert stream.response.headers["Content-Type"] == "application/x-ndjson"
        assert stream.message()["value"] == "a"
        (result,) = publish(node, topic, "x", key="k", headers={"a": "1"}, partition=0)
        message = stream.message()
        assert message == {
            **result,
            "value": "x",
            "key": "k",
            "headers": {"a": "1"},
            "priority": "normal",
            "receipt": message["receipt"],
            "attempt": 1,
            "lease_until": message["lease_until"],
        }
        assert group_of(node, topic)["members"] == [{"consumer": "c-1", "leased": 2}]


def test_accepting_lines_asks_for_a_stream(node: RunningNode, topic: str) -> None:
    publish(node, topic, "a")
    path = f"/v1/topics/{topic}/groups/g/receive"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n\r\n"
    with socket.create_connection(node.address, timeout=60) as raw:
        raw.sendall(head.encode())
        lines = raw.makefile("rb")
        assert lines.readline() == b"HTTP/1.1 200 OK\r\n"
        while b"{" not in (line := lines.readline()):
            assert line
        assert json.loads(line)["value"] == "a"


@pytest.mark.parametrize("credit", [1, 3])
def test_no_more_than_the_credit_is_in_flight_and_no_less(
    node: RunningNode, topic: str, credit: int
) -> None:
    publish(node, topic, *"abcdefgh", partition=0)
    with streaming(node, topic, max_in_flight=credit) as stream:
        held = stream.messages(credit)
        assert in_flight(node, topic) == credit
        for done in range(8 - credit):
            settle(node, topic, "ack", held.pop(0)["receipt"])
            held.append(stream.message())
            group = group_of(node, topic)
            assert (group["leased"], group["lag"]) == (credit, 7 - done)


@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_what_is_settled_makes_room_for_as_much(node: RunningNode, topic: str, verb: str) -> None:
    publish(node, topic, *"abcdefgh", partition=0)
    with streaming(node, topic, max_in_flight=4) as stream:
        first = stream.messages(4)
        fields = {"delay": "1h"} if verb == "nack" else {}
        settle(node, topic, verb, *(m["receipt"] for m in first[1:3]), **fields)
        assert values(stream.messages(2)) == ["e", "f"]
        assert in_flight(node, topic) == 4
        settle(node, topic, "extend", first[0]["receipt"], visibility="1h")
        assert in_flight(node, topic) == 4


def test_a_reset_makes_room(node: RunningNode, topic: str) -> None:
    publish(node, topic, "a", "b", partition=0)
    with streaming(node, topic, max_in_flight=1) as stream:
        assert stream.message()["value"] == "a"
        node.call("POST", f"/v1/topics/{topic}/groups/g/reset", {"to": "earliest"})
        assert stream.message()["value"] == "a"
        assert in_flight(node, topic) == 1


def test_a_stream_ends_where_its_group_does_and_goes_on_after_the_next_reset(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, *"abcd", partition=0)
    with streaming(node, topic, max_in_flight=9) as stream:
        assert values(stream.messages(4)) == list("abcd")
        node.call("POST", f"/v1/topics/{topic}/groups/g/reset", {"to": 1, "end": 3})
        assert values(stream.messages(2)) == ["b", "c"]
        publish(node, topic, "e", partition=0)
        assert in_flight(node, topic) == 2
        node.call("POST", f"/v1/topics/{topic}/groups/g/reset", {"to": 3})
        assert values(stream.messages(2)) == ["d", "e"]


def test_receipts_of_other_leases_make_no_room(node: RunningNode, topic: str) -> None:
    publish(node, topic, *"abcdef", partition=0)
    (other,) = receive(node, topic, max_messages=1)
    with streaming(node, topic, max_in_flight=2) as stream:
        stream.messages(2)
        settle(node, topic, "ack", other["receipt"], other["receipt"])
        settle(node, topic, "ack", "0:1:3", "2:1:0")
        assert in_flight(node, topic) == 2


def test_a_stream_ends_at_its_limit_and_keeps_its_leases(node: RunningNode, topic: str) -> None:
    publish(node, topic, *"abcdefgh", partition=0)
    with streaming(node, topic, max_in_flight=2, limit=3) as stream:
        held = stream.messages(2)
        settle(node, topic, "ack", *(m["receipt"] for m in held))
        assert stream.message()["value"] == "c"
        assert stream.response.read() == b""
    group = group_of(node, topic)
    assert (group["ready"], group["leased"]) == (5, 1)


def test_more_may_be_granted_while_a_stream_runs(node: RunningNode, topic: str) -> None:
    publish(node, topic, *"abcdefgh", partition=0)
    with streaming(node, topic, max_in_flight=2) as stream:
        stream.messages(2)
        path = f"/v1/topics/{topic}/groups/g/streams/{stream.id}"
        granted = node.call("PATCH", path, {"more": 3})
        assert granted == {"stream": stream.id, "max_in_flight": 5, "in_flight": 2}
        assert values(stream.messages(3)) == ["c", "d", "e"]
        assert in_flight(node, topic) == 5
        for body, field in (
            ({"more": 0}, "more"),
            ({}, "more"),
            ({"more": 1, "max_in_flight": 1}, "more"),
            ({"max_in_flight": -1}, "max_in_flight"),
        ):
            assert node.request("PATCH", path, body).json["field"] == field
        for other in (f"/v1/topics/{topic}/groups/h/streams/{stream.id}", f"{path}0"):
            assert node.request("PATCH", other, {"more": 1}).json["code"] == "stream_not_found"


def test_a_stream_may_be_paused(node: RunningNode, topic: str) -> None:
    publish(node, topic, *"abcd", partition=0)
    with streaming(node, topic, max_in_flight=2) as stream:
        held = stream.messages(2)
        path = f"/v1/topics/{topic}/groups/g/streams/{stream.id}"
        granted = node.call("PATCH", path, {"max_in_flight": 0})
        assert granted == {"stream": stream.id, "max_in_flight": 0, "in_flight": 2}
        settle(node, topic, "release", *(m["receipt"] for m in held))
        assert [m["attempt"] for m in receive(node, topic, max_messages=2)] == [1, 1]
        node.call("PATCH", path, {"max_in_flight": 1})
        assert stream.message()["value"] == "c"


@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
def test_what_is_in_flight_is_given_back_when_the_connection_ends(
    node: RunningNode, topic: str, how: str
) -> None:
    publish(node, topic, *"abcdef", partition=0)
    with streaming(node, topic, max_in_flight=4, visibility="1h") as stream:
        held = stream.messages(4)
        settle(node, topic, "ack", held[0]["receipt"])
        stream.message()
        if how == "half-close":
            stream.socket.shutdown(socket.SHUT_WR)
        elif how == "reset":
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.close()
        else:
            stream.close()
        eventually(lambda: not in_flight(node, topic))
    again = receive(node, topic)
    assert [(m["value"], m["attempt"]) for m in again] == [
        *((letter, 2) for letter in "bcde"),
        ("f", 1),
    ]
    answer = settle(node, topic, "ack", held[1]["receipt"])
    assert [failed["code"] for failed in answer["failed"]] == ["lease_lost"]


def test_what_is_given_back_goes_to_the_next_stream_at_once(node: RunningNode, topic: str) -> None:
    publish(node, topic, "a", partition=0)
    with streaming(node, topic) as first:
        assert first.message()["value"] == "a"
        with streaming(node, topic) as second:
            first.close()
            assert second.message()["attempt"] == 2


def test_ending_a_stream_keeps_what_it_handed_over(node: RunningNode, topic: str) -> None:
    publish(node, topic, *"abc", partition=0)
    with streaming(node, topic, max_in_flight=2) as stream:
        held = stream.messages(2)
        path = f"/v1/topics/{topic}/groups/g/streams/{stream.id}"
        assert node.request("DELETE", path).status == 204
        assert stream.response.read() == b""
        assert node.request("DELETE", path).json["code"] == "stream_not_found"
    assert in_flight(node, topic) == 2
    assert settle(node, topic, "ack", *(m["receipt"] for m in held))["settled"] == 2


def test_one_publish_goes_to_one_of_several_streams_in_turn(node: RunningNode, topic: str) -> None:
    with ExitStack() as stack:
        streams: list[StreamOfLines] = []
        for number in range(5):
            streams.append(stack.enter_context(streaming(node, topic, max_in_flight=9)))
            eventually(lambda number=number: waiting(node, topic) == number + 1)
        for number in range(10):
            publish(node, topic, f"{number}")
            eventually(lambda number=number: in_flight(node, topic) == number + 1)
            eventually(lambda: waiting(node, topic) == 5)
        found = [values(stream.messages(2)) for stream in streams]
    assert sorted(chain.from_iterable(found)) == sorted(map(str, range(10)))


def test_a_stream_without_credit_takes_no_turn_from_the_others(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "a", partition=0)
    with streaming(node, topic, max_in_flight=1) as full:
        assert full.message()["value"] == "a"
        with streaming(node, topic, max_in_flight=5) as free:
            eventually(lambda: waiting(node, topic) == 1)
            publish(node, topic, *"bcd", partition=0)
            assert values(free.messages(3)) == ["b", "c", "d"]


def test_a_stream_of_frames_is_a_sequence_of_answers(node: RunningNode, topic: str) -> None:
    publish(node, topic, *"abc", partition=1)
    path = f"/v1/topics/{topic}/groups/g/receive"
    body = json.dumps({"stream": True, "max_in_flight": 9}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/vnd.goq.frames\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(node.address, timeout=60) as raw:
        raw.sendall(head.encode() + body)
        lines = raw.makefile("rb")
        while lines.readline() != b"\r\n":
            pass
        for expected in (None, b"abc", b"d"):
            chunk = lines.read(int(lines.readline(), 16) + 2)[:-2]
            assert int.from_bytes(chunk[:4], "little") == len(chunk) - 4
            if expected is None:
                assert f.answered(chunk[4:])[1] == []  # the first heartbeat
                continue
            preface, ((partition, view),) = f.answered(chunk[4:])
            assert partition == 1
            assert len(preface["deliveries"]) == 1
            found = b"".join(m.value or b"" for m in view.messages(0, view.header.message_count))
            assert found == expected
            publish(node, topic, "d", partition=1)


def test_a_large_delivery_arrives_whole_in_lines(node: RunningNode, topic: str) -> None:
    large = f.placed(f.frame(*[bytes(limits.MIB)] * 3, compress=True), 0)
    node.request("POST", f"/v1/topics/{topic}/messages", large, f.FRAMES)
    with streaming(node, topic, max_in_flight=3) as stream:
        assert [len(m["value"]) for m in stream.messages(3)] == [limits.MIB] * 3


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_messages": 3}, "max_messages"),
        ({"visibility": 0}, "visibility"),
    ],
)
def test_a_stream_that_makes_no_sense_is_refused(
    node: RunningNode, topic: str, asked: dict[str, Any], field: str
) -> None:
    path = f"/v1/topics/{topic}/groups/g/receive"
    answer = node.request("POST", path, {"stream": True, **asked})
    assert (answer.status, answer.json["field"]) == (400, field)
    assert node.request("POST", path, {"limit": 3}).json["field"] == "limit"
    answer = node.request("POST", path, {"max_in_flight": 3})
    assert (answer.status, answer.json["field"]) == (400, "max_in_flight")


def test_a_stream_of_a_deleted_topic_ends(node: RunningNode, topic: str) -> None:
    publish(node, topic, "a", partition=0)
    with streaming(node, topic, max_in_flight=1) as full:
        full.message()
        with streaming(node, topic, max_in_flight=1) as idle:
            eventually(lambda: waiting(node, topic))
            node.call("DELETE", f"/v1/topics/{topic}")
            assert full.response.read() == b""
            assert idle.response.read() == b"\n"
    eventually(lambda: not open_streams(node))


def test_a_node_that_stops_ends_its_streams_and_leaves_their_leases() -> None:
    with running_node() as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
        publish(node, "t", "a")
        with streaming(node, "t") as full:
            held = full.message()
            with streaming(node, "t", max_in_flight=2) as idle:
                eventually(lambda: waiting(node, "t"))
                node.stop()
                assert full.response.read() == b""
                assert idle.response.read() == b"\n"
        data_dir = node.data_dir
        with running_node(data_dir) as again:
            assert in_flight(again, "t") == 1
            assert settle(again, "t", "ack", held["receipt"])["settled"] == 1
