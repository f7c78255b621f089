"""Archives and manifests of whole nodes: whoever leads next has what another leader deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.broker.partition_context import PartitionId
from goq.client import Client
from goq.storage.disk import RealDisk
from goq.storage.verification import verify_data_dir
from tests.support.cluster.running_cluster import RunningCluster, running_cluster
from tests.support.eventually import eventually
from tests.support.node.archive import publish_segments, retire, value_of
from tests.support.node.running_node import RunningNode
from tests.support.storage.s3_server import BUCKET, PROGRAM, s3_server

MESSAGES = 6


def archived_to(node: RunningNode) -> int:
    """Return up to which message a node has everything in its archive."""

    def read() -> int:
        broker = node.node.broker
        assert broker is not None
        identity, end = PartitionId("t", 0, broker.topics["t"].id), 0
        for row in broker.archive.segments.rows(identity, "messages"):
            end = row.end_offset if row.base_offset == end else end
        return end

    return node.on_loop(read)


def led_by(cluster: RunningCluster, *, other_than: str = "") -> str:
    """Return who leads the partition, once somebody else does."""
    found: list[str | None] = []

    def leads() -> bool:
        found[:] = [name for name in cluster.leaders("t") if name not in (None, other_than)]
        return bool(found)

    eventually(leads)
    assert found[0] is not None
    return found[0]


@pytest.mark.skipif(not PROGRAM.exists(), reason="there is no S3 server here")
def test_the_next_leader_reads_what_nodes_have_moved_to_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with running_cluster(archive={"to": f"s3://{BUCKET}/a"}) as cluster:
            cluster.create("t", 1, archive=True)
            first = led_by(cluster)
            publish_segments(cluster.by_name[first], "t", range(MESSAGES))

            def retired() -> int:
                retire(cluster.by_name[first], "t", archive=True)
                return archived_to(cluster.by_name[first])

            eventually(lambda: retired() > 1)
            least = archived_to(cluster.by_name[first])
            eventually(lambda: all(archived_to(node) == least for node in cluster.nodes))
            eventually(lambda: not any(archived_files(node) for node in cluster.nodes), seconds=60)
            owners = {key.split("/")[1] for key in server.keys("a/")}
            assert owners == {node.node.config.broker.node_id for node in cluster.nodes}
            cluster.stop(first)
            second = led_by(cluster, other_than=first)
            with Client(cluster.by_name[second].url) as client:
                found = client.read("t", partition=0, offset=0, include_deleted=True).messages
                assert [m.value for m in found] == [value_of(number) for number in range(MESSAGES)]
                assert not client.get_trace("t:0:0").incomplete


def archived_files(node: RunningNode) -> list[Path]:
    return list((node.data_dir / "archive").rglob("*.zst"))


def test_the_next_leader_reads_what_another_has_archived_and_every_folder_is_sound() -> None:
    with running_cluster() as cluster:
        cluster.create("t", 1, archive=True)
        first = led_by(cluster)
        publish_segments(cluster.by_name[first], "t", range(MESSAGES))

        def retired() -> int:
            retire(cluster.by_name[first], "t", archive=True)
            return archived_to(cluster.by_name[first])

        eventually(lambda: retired() > 1)  # not before all replicas have the messages
        least = archived_to(cluster.by_name[first])
        eventually(lambda: all(archived_to(node) == least for node in cluster.nodes))
        for node in cluster.nodes:
            report = verify_data_dir(RealDisk(), node.data_dir)
            assert report.is_sound, (node.data_dir, report)
            assert sum(log.report.messages for log in report.logs if log.log == "messages") < least
        cluster.stop(first)
        second = led_by(cluster, other_than=first)
        with Client(cluster.by_name[second].url) as client:
            found = client.read("t", partition=0, offset=0, include_deleted=True).messages
            assert [m.value for m in found] == [value_of(number) for number in range(MESSAGES)]
            trace = client.get_trace("t:0:0")
            assert trace.events
            assert not trace.incomplete
