from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli.command import environment, goq, topic
from tests.support.cluster.replicated_partition import ReplicatedPartition
from tests.support.cluster.running_cluster import RunningCluster, new_cluster
from tests.support.node.fixtures import node

__all__ = ["environment", "goq", "node", "topic"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """A cluster without nodes, for a test to start; its folders are in ``tmp_path``."""
    with new_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def partition(cluster: RunningCluster) -> ReplicatedPartition:
    """A partition that does not exist until it is filled."""
    return ReplicatedPartition(cluster)
