"""The leaders as a node knows them, and how long it waits for one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from goq import limits
from goq.cluster.forwarding.partition_leaders import PartitionLeaders


@pytest.mark.parametrize(
    ("silent_s", "is_patient"),
    [
        (0.0, True),
        (limits.METADATA_CUT_OFF_S, True),
        (math.nextafter(limits.METADATA_CUT_OFF_S, math.inf), False),
        (1e9, False),
        (math.inf, True),  # since its start: it may hear the others in a moment
    ],
)
def test_a_node_that_no_longer_hears_the_cluster_waits_for_no_leader(
    silent_s: float, is_patient: bool
) -> None:
    unused: Any = None
    leaders = PartitionLeaders("n1", unused, unused)
    leaders.raft_silent_s = lambda: silent_s
    assert leaders.patience_s() == (limits.FORWARD_LEADER_WAIT_S if is_patient else 0.0)
