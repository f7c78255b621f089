"""A clock and a disk for members that a test drives by hand."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.support.cluster.raft.node import ManualTime, manual_time
from tests.support.storage.disk import SimulatedDisk


@pytest.fixture
def time() -> Iterator[ManualTime]:
    with manual_time() as time:
        yield time


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(Random(1))
