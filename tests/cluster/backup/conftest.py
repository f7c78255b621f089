from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster.running_cluster import RunningCluster, new_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """A cluster without nodes, for a test to start; its folders are in ``tmp_path``."""
    with new_cluster(tmp_path) as cluster:
        yield cluster
