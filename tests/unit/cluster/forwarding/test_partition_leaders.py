"""The leaders as a node knows them, and how long it waits for one."""

from __future__ import annotations

from typing import Any

import pytest

from goq import limits
from goq.cluster.forwarding.partition_leaders import PartitionLeaders


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_a_node_that_no_longer_hears_the_cluster_waits_for_no_leader(is_cut_off: bool) -> None:
    unused: Any = None
    leaders = PartitionLeaders("n1", unused, unused)
    leaders.is_cut_off = lambda: is_cut_off
    assert leaders.patience_s() == (0.0 if is_cut_off else limits.FORWARD_LEADER_WAIT_S)
