"""What was answered before a restart holds after it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from goq.config.node import Config
from goq.errors import CorruptData, DataDirLocked, UnsupportedFormat, UsageError
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import parse_header
from goq.node import NodeServer
from tests.support.node.ports import free_port
from tests.support.node.running_node import RunningNode, running_node

GROUP = "/v1/topics/t/groups/g"
FRAMES = {"Content-Type": "application/vnd.goq.frames"}


@contextmanager
def node_with_topic(tmp_path: Path) -> Iterator[RunningNode]:
    with running_node(tmp_path) as node:
        if not node.call("GET", "/v1/topics")["topics"]:
            node.call("POST", "/v1/topics", {"name": "t", "partitions": 2})
        yield node


def publish(node: RunningNode, *values: str) -> None:
    messages = [{"value": value, "partition": 0} for value in values]
    node.call("POST", "/v1/topics/t/messages", {"messages": messages})


def receive(node: RunningNode, **asked: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = node.call(
        "POST", f"{GROUP}/receive", {"max_messages": 9, **asked}
    )["messages"]
    return messages


def settle(node: RunningNode, verb: str, *receipts: str, **fields: Any) -> Any:
    return node.call("POST", f"{GROUP}/{verb}", {"receipts": list(receipts), **fields})


def send(node: RunningNode, sequence: int, epoch: int = 0) -> Any:
    frame = encode_frame(Columns([b"x"]), producer=ProducerMark(5, epoch, sequence))
    return node.request("POST", "/v1/topics/t/messages", bytes(4) + frame, FRAMES).json


def test_topics_messages_and_settings_are_there_again(tmp_path: Path) -> None:
    with node_with_topic(tmp_path) as node:
        publish(node, "a", "b")
        node.call("PATCH", "/v1/topics/t", {"settings": {"fsync": "never"}, "partitions": 3})
        publish(node, "c")
        before = node.call("GET", "/v1/topics")
        log = node.call("GET", "/v1/topics/t/messages?partition=0")
    with node_with_topic(tmp_path) as node:
        assert node.call("GET", "/v1/topics") == before
        assert node.call("GET", "/v1/topics/t/messages?partition=0") == log


def test_a_groups_progress_and_its_leases_are_there_again(tmp_path: Path) -> None:
    with node_with_topic(tmp_path) as node:
        publish(node, *"abcdef")
        held = receive(node, max_messages=4, visibility="1h", consumer="c")
        receipts = [message["receipt"] for message in held]
        settle(node, "ack", receipts[0])
        settle(node, "nack", receipts[1], delay="1h")
        before = node.call("GET", GROUP)
        leased = node.call("GET", f"{GROUP}/peek?state=leased")
        retry = node.call("GET", f"{GROUP}/peek?state=retry")
    with node_with_topic(tmp_path) as node:
        after = node.call("GET", GROUP)
        assert after.pop("oldest_ready_age_ms") >= before.pop("oldest_ready_age_ms")
        assert after == before
        assert node.call("GET", f"{GROUP}/peek?state=leased") == leased
        assert node.call("GET", f"{GROUP}/peek?state=retry") == retry
        assert settle(node, "ack", receipts[0])["settled"] == 1  # again
        assert settle(node, "extend", receipts[2], visibility="2h")["settled"] == 1
        assert settle(node, "ack", receipts[2], receipts[3])["settled"] == 2
        assert [m["value"] for m in receive(node)] == ["e", "f"]


def test_a_lease_that_ran_out_meanwhile_is_over(tmp_path: Path) -> None:
    with node_with_topic(tmp_path) as node:
        publish(node, "a")
        (held,) = receive(node, visibility="1ms")
    with node_with_topic(tmp_path) as node:
        (again,) = receive(node, wait="10s")
        assert again["attempt"] == 2
        assert settle(node, "ack", held["receipt"])["settled"] == 0
        assert settle(node, "ack", again["receipt"])["settled"] == 1


def test_a_retry_that_is_due_comes_with_its_attempt(tmp_path: Path) -> None:
    with node_with_topic(tmp_path) as node:
        publish(node, "a")
        settle(node, "nack", receive(node)[0]["receipt"])
    with node_with_topic(tmp_path) as node:
        assert receive(node)[0]["attempt"] == 2


def test_receipts_of_before_and_after_differ(tmp_path: Path) -> None:
    receipts: set[str] = set()
    for _ in range(3):
        with node_with_topic(tmp_path) as node:
            publish(node, "a")
            receipts |= {m["receipt"].split(":")[1] for m in receive(node, visibility="1h")}
    assert len(receipts) == 3


def test_a_producers_batch_is_still_known(tmp_path: Path) -> None:
    with node_with_topic(tmp_path) as node:
        assert send(node, 0, epoch=1)["results"][0]["offset"] == 0
        assert send(node, 1, epoch=1)["results"][0]["offset"] == 1
    for _ in range(2):
        with node_with_topic(tmp_path) as node:
            again = send(node, 1, epoch=1)["results"][0]
            assert (again["offset"], again["duplicate"]) == (1, True)
            assert send(node, 3, epoch=1)["code"] == "out_of_order_sequence"
            assert send(node, 2, epoch=0)["code"] == "producer_fenced"
    with node_with_topic(tmp_path) as node:
        assert send(node, 2, epoch=1)["results"][0]["offset"] == 2


def test_a_deleted_topic_and_a_deleted_group_stay_deleted(tmp_path: Path) -> None:
    with node_with_topic(tmp_path) as node:
        publish(node, "a")
        receive(node)
        node.call("DELETE", GROUP)
        node.call("POST", "/v1/topics", {"name": "other", "partitions": 1})
        node.call("DELETE", "/v1/topics/other")
    with node_with_topic(tmp_path) as node:
        assert [topic["name"] for topic in node.call("GET", "/v1/topics")["topics"]] == ["t"]
        assert node.call("GET", "/v1/topics/t/groups") == {"groups": []}
        assert receive(node)[0]["attempt"] == 1


def test_a_group_that_only_waited_is_still_a_group(tmp_path: Path) -> None:
    with node_with_topic(tmp_path) as node:
        assert receive(node) == []
    with node_with_topic(tmp_path) as node:
        assert node.call("GET", GROUP)["lag"] == 0


def test_a_folder_that_is_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    with node_with_topic(tmp_path) as node:
        with pytest.raises(DataDirLocked, match=r"in use by process \d+"), running_node(tmp_path):
            pass
        publish(node, "still works")


def test_a_start_that_fails_leaves_no_port_open(tmp_path: Path) -> None:
    port = free_port()
    both = {"listen": f"127.0.0.1:{port}"}
    with (
        pytest.raises(UsageError, match="address already in use"),
        running_node(tmp_path, broker=both, sqs=both),
    ):
        pass
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_a_folder_of_a_later_goq_is_refused_in_one_sentence_and_left_alone(tmp_path: Path) -> None:
    with node_with_topic(tmp_path) as node:
        publish(node, "kept")
    assert (tmp_path / "FORMAT").read_text() == "2\n"
    (tmp_path / "FORMAT").write_text("3\n")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "LOCK"}
    with pytest.raises(UnsupportedFormat, match=r"format '3', and this goq knows 2"):
        running_node(tmp_path).__enter__()
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != "LOCK"}
    assert after == before
    for damage in ("", "x", "2x", "9" * 40):
        (tmp_path / "FORMAT").write_text(damage)
        with pytest.raises(CorruptData, match="FORMAT is damaged"):
            running_node(tmp_path).__enter__()
    (tmp_path / "FORMAT").unlink()  # as of a version before the file
    with node_with_topic(tmp_path):
        assert (tmp_path / "FORMAT").read_text() == "2\n"
    (tmp_path / "FORMAT").write_text("1\n")  # before there was a journal
    with running_node(tmp_path):
        assert (tmp_path / "FORMAT").read_text() == "2\n"


def test_a_frame_of_a_later_goq_is_no_damage_and_nothing_is_appended_behind_it(
    tmp_path: Path,
) -> None:
    with node_with_topic(tmp_path) as node:
        publish(node, "kept")
    [segment] = (
        path for path in tmp_path.glob("topics/*/0/messages/*.log") if b"kept" in path.read_bytes()
    )
    frame = segment.read_bytes()
    size_bytes = parse_header(frame).frame_bytes
    later = b"goq\x02" + frame[4:8] + (1).to_bytes(8, "little") + frame[16:60]
    later += crc32c(later).to_bytes(4, "little")
    segment.write_bytes(frame[:size_bytes] + later + frame[64:size_bytes])
    written = segment.read_bytes()
    with running_node(tmp_path) as node:
        answer = node.request("GET", "/healthz")
        assert answer.status == 503
        [problem] = answer.json["problems"]
        assert "format 2, and this goq knows 1" in problem["reason"]
    assert segment.read_bytes() == written


def test_a_port_that_is_taken_is_named_and_the_folder_let_go_of(tmp_path: Path) -> None:
    with running_node(tmp_path / "one") as node:
        listen = "{}:{}".format(*node.address)
        with (
            pytest.raises(UsageError, match=f"cannot listen on {listen}"),
            running_node(tmp_path / "two", broker={"listen": listen}),
        ):
            pass
        with node_with_topic(tmp_path / "two") as second:
            publish(second, "the folder is free")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(UsageError, match=r"cannot use .*file/data"),
        running_node(tmp_path / "file" / "data"),
    ):
        pass


def test_stopping_what_never_started_or_has_stopped_is_nothing(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        node.on_loop(node.node.stop)
        node.on_loop(node.node.stop)
        node.on_loop(NodeServer(Config()).stop)


def test_a_group_that_ends_somewhere_ends_there_after_a_restart(tmp_path: Path) -> None:
    with node_with_topic(tmp_path) as node:
        publish(node, *"abcdef")
        node.call("POST", f"{GROUP}/reset", {"to": 1, "end": 4, "partition": 0})
        (first,) = receive(node, max_messages=1)
        settle(node, "ack", first["receipt"])
    with node_with_topic(tmp_path) as node:
        publish(node, "g")
        assert [p.get("end") for p in node.call("GET", GROUP)["partitions"]] == [4, None]
        assert [m["value"] for m in receive(node)] == ["c", "d"]
        node.call("POST", f"{GROUP}/reset", {"to": 4})
    with node_with_topic(tmp_path) as node:
        assert [m["value"] for m in receive(node)] == ["e", "f", "g"]
