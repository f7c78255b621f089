from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.cluster.running_cluster import RunningCluster, running_cluster

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    """Three nodes for all tests of a file that stop none of them.

    They end with it: other tests count memory, or see who draws random numbers in their process.
    """
    with running_cluster() as running:
        yield running


@pytest.fixture
def topic(cluster: RunningCluster) -> str:
    """A topic of the test's own, with two partitions on each node."""
    name = f"orders-{next(_numbers)}"
    cluster.create(name)
    return name
