"""All nodes of a cluster are restarted, one after the other, under load: everybody goes on."""

from __future__ import annotations

from pathlib import Path

from goq.client import Client
from goq.errors import GoqError
from tests.support.cluster.process_cluster import NAMES, ProcessCluster, process_cluster
from tests.support.eventually import eventually
from tests.support.ledger.load import Load

PARTITIONS = 6


def test_nothing_is_lost_or_done_twice_while_each_node_is_stopped_and_started(
    tmp_path: Path,
) -> None:
    with process_cluster(tmp_path) as cluster:
        load = Load(cluster.urls, 6, PARTITIONS)
        with load.running():
            for name in NAMES:
                load.wait_for_progress(40)
                assert cluster.nodes[name].stop(seconds=60) == 0
                load.wait_for_progress(40)
                cluster.nodes[name].start()
                eventually(lambda: _is_whole(cluster), "all replicas are in sync", seconds=90)
            load.finish_and_check()


def _is_whole(cluster: ProcessCluster) -> bool:
    with Client(cluster.urls, retries="0s", timeout="5s") as client:
        try:
            shown = client.describe_cluster()
        except GoqError:
            return False
    is_up = [node.status for node in shown.nodes] == ["up"] * len(NAMES)
    return is_up and not shown.under_replicated
