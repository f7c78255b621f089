"""A node that misses something asks for the newest metadata before it says that it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from pysyncobj import SyncObjConf

from goq.cluster.raft.driver import RaftTiming
from tests.support.cluster.running_cluster import RunningCluster, new_cluster
from tests.support.eventually import eventually


def test_misses_are_told_after_the_log_of_questions_was_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trimmed log raised the version of the metadata, and each miss waited for it in vain."""
    conf, trimmed = RaftTiming.conf, 15

    def short_log(self: RaftTiming) -> SyncObjConf:
        short = conf(self)
        short.logCompactionMinEntries = trimmed
        return short

    monkeypatch.setattr(RaftTiming, "conf", short_log)
    with new_cluster(tmp_path) as cluster:
        cluster.start("n1")
        eventually(lambda: cluster.statuses("n1") == {"n1": "up"})
        answers = [status_of_miss(cluster) for _ in range(2 * trimmed)]
        raft = cluster.cluster_node("n1").raft
        assert raft.status.applied_index > 2 * trimmed
    assert set(answers) == {404}


def status_of_miss(cluster: RunningCluster) -> int:
    return cluster.by_name["n1"].request("GET", "/v1/topics/missing").status
