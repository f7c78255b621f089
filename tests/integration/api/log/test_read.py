from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from goq import limits
from goq.frame.validation import check_frame
from tests.support.api import frames as f
from tests.support.api.calls import publish, values
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode

MIB = limits.MIB


def read(node: RunningNode, topic: str, query: str) -> dict[str, Any]:
    answer: dict[str, Any] = node.call("GET", f"/v1/topics/{topic}/messages?partition=0&{query}")
    return answer


def moved(timestamp: str, **by: float) -> str:
    moment = datetime.fromisoformat(timestamp) + timedelta(**by)
    return quote(moment.isoformat(), safe="")


@pytest.fixture
def filled(node: RunningNode, topic: str) -> list[dict[str, Any]]:
    """Ten messages in partition 0, each published by itself and so with its own time."""
    return [publish(node, topic, str(n), partition=0)[0] for n in range(10)]


@pytest.mark.usefixtures("filled")
def test_reading_begins_at_the_offset_and_says_where_to_go_on(
    node: RunningNode, topic: str
) -> None:
    first = read(node, topic, "limit=3")
    assert values(first["messages"]) == ["0", "1", "2"]
    assert first["next"] == 3
    rest = read(node, topic, f"offset={first['next']}")
    assert values(rest["messages"]) == [str(n) for n in range(3, 10)]
    assert rest["next"] == 10
    assert read(node, topic, "offset=10") == {"messages": [], "next": 10, "damaged": []}
    assert read(node, topic, f"offset={2**62}")["next"] == 2**62


def test_the_time_of_a_message_is_inside_as_a_start_and_outside_as_an_end(
    node: RunningNode, topic: str, filled: list[dict[str, Any]]
) -> None:
    third, sixth = filled[3]["timestamp"], filled[6]["timestamp"]
    found = read(node, topic, f"from_time={third}&to_time={sixth}")
    assert values(found["messages"]) == ["3", "4", "5"]
    after = moved(third, microseconds=1)
    until = moved(sixth, microseconds=1)
    found = read(node, topic, f"from_time={after}&to_time={until}")
    assert values(found["messages"]) == ["4", "5", "6"]
    assert (found["next"], found["end"]) == (10, 10)


def test_a_time_before_everything_and_one_after_everything_are_the_ends(
    node: RunningNode, topic: str, filled: list[dict[str, Any]]
) -> None:
    assert len(read(node, topic, "from_time=-1h")["messages"]) == 10
    assert read(node, topic, "from_time=%2B1h")["messages"] == []
    assert read(node, topic, "to_time=2020-01-01")["messages"] == []
    same = moved(filled[9]["timestamp"], hours=0).replace("%2B00%3A00", "%2B00%3A00")
    assert values(read(node, topic, f"from_time={same}")["messages"]) == ["9"]


@pytest.mark.usefixtures("filled")
def test_an_end_before_the_start_is_refused_and_one_at_the_start_is_empty(
    node: RunningNode, topic: str
) -> None:
    path = f"/v1/topics/{topic}/messages?partition=0"
    refused = node.request("GET", f"{path}&from_time=2026-01-02&to_time=2026-01-01")
    assert (refused.status, refused.json["field"]) == (400, "to_time")
    found = read(node, topic, "from_time=2026-01-01&to_time=2026-01-01")
    assert (found["messages"], found["next"]) == ([], 10)


def test_frames_are_cut_where_the_range_cuts_them(node: RunningNode, topic: str) -> None:
    body = f.placed(f.frame(b"0", b"1", b"2", b"3", compress=True), 0)
    body += f.placed(f.frame(b"4", b"5"), 0)
    node.request("POST", f"/v1/topics/{topic}/messages", body, f.FRAMES)
    found: list[tuple[int, list[bytes | None]]] = []
    offset = 2
    while offset < 5:
        query = f"partition=0&offset={offset}&limit={5 - offset}"
        path = f"/v1/topics/{topic}/messages?{query}"
        answer = node.request("GET", path, headers=f.ACCEPT_FRAMES)
        assert answer.headers["content-type"] == "application/vnd.goq.frames"
        preface, frames = f.answered(answer.body)
        assert offset < preface["next"] <= 5
        assert (preface["start"], preface["end"], preface["damaged"]) == (0, 6, [])
        for partition, view in frames:
            assert partition == 0
            check_frame(view)
            messages = view.messages(0, view.header.message_count)
            found.append((view.header.base_offset, [message.value for message in messages]))
        offset = preface["next"]
    assert found == [(2, [b"2", b"3"]), (4, [b"4"])]


def test_a_limit_inside_of_a_frame_cuts_it(node: RunningNode, topic: str) -> None:
    publish(node, topic, *"abcdef", partition=0)
    path = f"/v1/topics/{topic}/messages?partition=0&offset=1&limit=2"
    preface, ((_, view),) = f.answered(node.request("GET", path, headers=f.ACCEPT_FRAMES).body)
    assert (preface["next"], view.header.base_offset, view.header.end_offset) == (3, 1, 3)


def test_an_empty_read_of_frames_is_a_preface(node: RunningNode, topic: str) -> None:
    path = f"/v1/topics/{topic}/messages?partition=1"
    preface, frames = f.answered(node.request("GET", path, headers=f.ACCEPT_FRAMES).body)
    assert (preface["next"], preface["end"], frames) == (0, 0, [])


def test_a_read_waits_for_what_comes(node: RunningNode, topic: str) -> None:
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(read(node, topic, "wait=20s")))
    thread.start()
    readers = node.node.broker.topics[topic].receiver.log_readers.waiters
    eventually(lambda: node.on_loop(lambda: readers.count("0")))
    publish(node, topic, "elsewhere", partition=1)
    publish(node, topic, "here", partition=0)
    thread.join(60)
    assert values(found[0]["messages"]) == ["here"]


def test_a_read_that_waits_in_vain_is_empty(node: RunningNode, topic: str) -> None:
    assert read(node, topic, "wait=20ms") == {"messages": [], "next": 0, "damaged": []}


def test_a_json_answer_is_bounded_in_bytes_however_well_the_messages_compress(
    node: RunningNode, topic: str
) -> None:
    large = f.placed(f.frame(*[bytes(MIB)] * 6, compress=True), 0)
    node.request("POST", f"/v1/topics/{topic}/messages", large * 2, f.FRAMES)
    offset, reads = 0, 0
    while offset < 12:
        path = f"/v1/topics/{topic}/messages?partition=0&limit=10000&offset={offset}"
        answer = node.request("GET", path)
        assert len(answer.body) <= limits.READ_BYTES_MAX + 1000
        assert [m["offset"] for m in answer.json["messages"]] == list(
            range(offset, answer.json["next"])
        )
        assert answer.json["next"] > offset
        offset, reads = answer.json["next"], reads + 1
    assert reads >= 12 * 6 // 8  # a zero byte is written in six


def test_a_message_larger_than_an_answer_is_an_answer_of_its_own(
    node: RunningNode, topic: str
) -> None:
    large = f.frame(b"small", bytes(limits.VALUE_BYTES_MAX), b"small", compress=True)
    node.request("POST", f"/v1/topics/{topic}/messages", f.placed(large, 0), f.FRAMES)
    first = read(node, topic, "")
    assert (values(first["messages"]), first["next"]) == (["small"], 1)
    second = read(node, topic, "offset=1")
    assert [len(v) for v in values(second["messages"])] == [limits.VALUE_BYTES_MAX]
    assert values(read(node, topic, "offset=2")["messages"]) == ["small"]


def test_head_gives_the_length_and_no_body(node: RunningNode, topic: str) -> None:
    publish(node, topic, "x", partition=0)
    path = f"/v1/topics/{topic}/messages?partition=0"
    got, head = node.request("GET", path), node.request("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(got.body))
