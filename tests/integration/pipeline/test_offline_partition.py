"""A partition without a leader is waited for, and never taken for an empty one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from goq.client import Client, TopicDescription
from goq.errors import PartitionOffline
from goq.pipeline.arrow.node_source import LogBounds, NodeSource
from goq.pipeline.arrow.tables import MESSAGES_TABLE
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.export import Export
from goq.pipeline.export.groups_table import groups_batch
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import topic_dir


def publish(client: Client, topic: str, count: int) -> None:
    for number in range(count):
        for partition in range(2):
            client.publish(topic, b"%d" % number, partition=partition)


def exported(root: Path) -> list[tuple[int, int]]:
    table = pq.read_table(root / "messages", columns=["partition", "offset"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_an_export_without_a_partition_ends_and_the_next_one_has_all(tmp_path: Path) -> None:
    data, target = tmp_path / "data", LocalDestination(tmp_path / "lake")

    def export(client: Client) -> None:
        Export(NodeSource(client), target, MESSAGES_TABLE, "t").run()

    with running_node(data) as node, Client(node.url) as client:
        client.create_topic("t", 2)
        publish(client, "t", 3)
        export(client)
        publish(client, "t", 2)
    blocker = topic_dir(data, "t") / "1" / "messages" / f"{1:020d}.log"
    blocker.write_bytes(b"x")  # a segment that begins inside another one
    with running_node(data) as node, Client(node.url, retries="1ms") as client:
        with pytest.raises(PartitionOffline):
            export(client)
        fresh = LocalDestination(tmp_path / "fresh")
        with pytest.raises(PartitionOffline):
            Export(NodeSource(client), fresh, MESSAGES_TABLE, "t").run()
        assert not fresh.root.exists()
    blocker.unlink()
    with running_node(data) as node, Client(node.url) as client:
        export(client)
    assert exported(target.root) == [(p, offset) for p in range(2) for offset in range(5)]


@pytest.fixture
def late_leader(node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a topic ``TOPIC.two``, described when partition 1 had no leader yet."""
    with Client(node.url) as client:
        client.create_topic(f"{topic}.two", 2)
        publish(client, f"{topic}.two", 3)
        described = client.describe_topic

        def without_leader(name: str) -> TopicDescription:
            found = described(name)
            gone = replace(found.partitions[1], leader=None, end_offset=0, high_watermark=0)
            return replace(found, partitions=(found.partitions[0], gone))

        monkeypatch.setattr(client, "describe_topic", without_leader)
        yield client


@pytest.mark.parametrize("include_deleted", [False, True])
def test_a_partition_that_got_a_leader_meanwhile_has_the_bounds_of_that_one(
    late_leader: Client, topic: str, include_deleted: bool
) -> None:
    source = NodeSource(late_leader, include_deleted=include_deleted)
    assert source.bounds(f"{topic}.two") == {0: LogBounds(0, 3), 1: LogBounds(0, 3)}


def test_the_rows_of_groups_have_the_bounds_of_the_leader_that_came(
    late_leader: Client, topic: str
) -> None:
    late_leader.receive_batch(f"{topic}.two", "g", max_messages=6, wait="5s").ack()
    rows = groups_batch(late_leader, f"{topic}.two", 1_000_000).to_pylist()
    assert {row["partition"]: row["end_offset"] for row in rows} == {0: 3, 1: 3}
