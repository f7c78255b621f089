"""Files that are gone when a node starts are told, and nothing begins anew in their place."""

from __future__ import annotations

import secrets
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from goq.client import Client
from goq.storage.catalog.rows import SegmentRow
from goq.storage.disk import RealDisk
from goq.storage.node_db import NodeDb
from goq.storage.verification import verify_data_dir
from tests.support.api.calls import publish, receive
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import topic_dir

MESSAGES = 6


def fill(path: Path) -> None:
    """Leave a topic whose segments have two messages each, half of them acknowledged."""
    with running_node(path) as node:
        settings = {"segment.bytes": "64KiB"}
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1, "settings": settings})
        for _ in range(MESSAGES):
            publish(node, "t", secrets.token_hex(20_000))
        receipts = [each["receipt"] for each in receive(node, "t", max_messages=3)]
        node.call("POST", "/v1/topics/t/groups/g/ack", {"receipts": receipts})


def health(node: RunningNode) -> dict[str, object]:
    found: dict[str, object] = node.request("GET", "/healthz").json
    return found


@pytest.mark.parametrize("gone", ["0/messages", "0/events", "0", "."])
def test_a_log_that_is_gone_takes_its_partition_offline_until_it_is_back(
    tmp_path: Path, gone: str
) -> None:
    fill(tmp_path)
    lost = topic_dir(tmp_path, "t") / gone
    copytree(lost, tmp_path / "backup")
    rmtree(lost)
    with running_node(tmp_path) as node:
        assert health(node)["offline"] == ["t:0"]
        refused = node.request("POST", "/v1/topics/t/messages", {"messages": [{"value": "x"}]})
        assert refused.json["code"] == "partition_offline"
        assert "is gone" in refused.json["detail"]
        copytree(tmp_path / "backup", lost, dirs_exist_ok=True)
        with Client(node.url) as client:
            client.reopen_partition("t", 0)
        assert health(node) == {"status": "ok"}
        assert [each["id"] for each in receive(node, "t")] == ["t:0:3", "t:0:4", "t:0:5"]
        assert publish(node, "t", "x")[0]["offset"] == MESSAGES


@pytest.mark.parametrize("place", [0, 1])
def test_a_sealed_segment_that_is_gone_is_damage_from_the_start_on(
    tmp_path: Path, place: int
) -> None:
    fill(tmp_path)
    segments = sorted((topic_dir(tmp_path, "t") / "0" / "messages").glob("*.log"))
    assert len(segments) > 2
    segments[place].unlink()
    bounds = [int(segment.stem) for segment in segments]
    with running_node(tmp_path) as node:
        assert health(node) == {"status": "degraded", "damaged": ["t:0"]}
        (partition,) = node.call("GET", "/v1/topics/t")["partitions"]
        (damage,) = partition["damaged"]
        assert [damage["start_offset"], damage["end_offset"]] == bounds[place : place + 2]
        assert publish(node, "t", "x")[0]["offset"] == MESSAGES


def test_a_sealed_segment_that_is_emptied_is_not_deleted_for_its_age(tmp_path: Path) -> None:
    fill(tmp_path)
    segments = sorted((topic_dir(tmp_path, "t") / "0" / "messages").glob("*.log"))
    segments[0].write_bytes(b"")
    for _ in range(2):
        with running_node(tmp_path) as node:
            broker = node.node.broker
            assert broker is not None
            node.on_loop(broker.retention_manager.apply)
            (partition,) = node.call("GET", "/v1/topics/t")["partitions"]
            assert partition["start_offset"] == 0
            path = "/v1/topics/t/messages?partition=0&offset=0"
            assert len(node.call("GET", path)["messages"]) == MESSAGES - int(segments[1].stem)
            assert health(node) == {"status": "degraded", "damaged": ["t:0"]}


def test_a_deleted_topic_leaves_nothing_that_a_new_one_of_its_name_would_miss(
    tmp_path: Path,
) -> None:
    fill(tmp_path)
    with running_node(tmp_path) as node:
        node.call("DELETE", "/v1/topics/t")
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 2})
        node.call("PATCH", "/v1/topics/t", {"partitions": 3})
    with running_node(tmp_path) as node:
        assert health(node) == {"status": "ok"}


ROUNDS = 40


def fill_compacted(path: Path) -> int:
    """Write the same key again and again; return the offset of the message that is left."""
    with running_node(path) as node:
        settings = {"segment.bytes": "64KiB", "cleanup": "compact"}
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1, "settings": settings})
        for _ in range(ROUNDS):
            (stored,) = publish(node, "t", secrets.token_hex(20_000), key="k")
        eventually(lambda: len(segments_of(path)) < ROUNDS // 4)
        return int(stored["offset"])


def segments_of(path: Path) -> list[Path]:
    return sorted((topic_dir(path, "t") / "0" / "messages").glob("*.log"))


def listed(path: Path) -> list[SegmentRow]:
    return [row for row in NodeDb(path).segments() if row.log == "messages"]


def test_segments_that_were_merged_are_not_missed(tmp_path: Path) -> None:
    last = fill_compacted(tmp_path)
    rows = listed(tmp_path)
    assert len(rows) < ROUNDS // 4
    first = next(row for row in rows if row.base_offset == 0)
    assert first.end_offset > 8
    # As a crash leaves the manifest, before it forgets what was merged.
    NodeDb(tmp_path).add_segments([first._replace(base_offset=2, end_offset=4)])
    with running_node(tmp_path) as node:
        assert health(node) == {"status": "ok"}
        messages = node.call("GET", "/v1/topics/t/messages?partition=0")["messages"]
        assert messages[-1]["offset"] == last
    assert verify_data_dir(RealDisk(), tmp_path).is_sound


def test_a_segment_that_was_merged_of_others_and_is_gone_is_missed(tmp_path: Path) -> None:
    fill_compacted(tmp_path)
    first = next(row for row in listed(tmp_path) if row.base_offset == 0)
    segments_of(tmp_path)[0].unlink()
    with running_node(tmp_path) as node:
        assert health(node) == {"status": "degraded", "damaged": ["t:0"]}
        (partition,) = node.call("GET", "/v1/topics/t")["partitions"]
        (damage,) = partition["damaged"]
        assert [damage["start_offset"], damage["end_offset"]] == [0, first.end_offset]
