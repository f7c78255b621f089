from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from support.running_cluster import RunningCluster, running_cluster

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[RunningCluster]:
    """Three nodes for all tests that stop none of them."""
    with running_cluster() as running:
        yield running


@pytest.fixture
def topic(cluster: RunningCluster) -> str:
    """A topic of the test's own, with two partitions on each node."""
    name = f"orders-{next(_numbers)}"
    cluster.create(name)
    return name
