"""Going on from one node when the others are lost for good."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from goq.cluster.metadata.commands import CreateTopic
from goq.cluster.raft.log.journal import FILE_NAME
from goq.cluster.unsafe_recovery import RecoveryPlan, UnsafeRecovery
from goq.errors import Conflict, CorruptData, DataDirLocked, UsageError
from goq.storage.disk import RealDisk
from tests.support.cli.command import GOQ
from tests.support.cluster.replicated_partition import SENT, ReplicatedPartition
from tests.support.cluster.running_cluster import NAMES, RunningCluster


def recover(folder: Path) -> RecoveryPlan:
    recovering = UnsafeRecovery(RealDisk(), folder)
    recovering.execute()
    recovering.close()
    return recovering.plan


def test_the_node_that_is_left_goes_on_with_what_it_has_and_others_join_it(
    cluster: RunningCluster, partition: ReplicatedPartition, tmp_path: Path
) -> None:
    leader = partition.fill()
    survivor, other = (name for name in NAMES if name != leader)
    command = CreateTopic("lost", 3, {}, 1)
    cluster.on_loop(leader, lambda node: node.metadata.propose(command))
    cluster.until(lambda: "lost" in cluster.state(survivor).topics)
    cluster.stop_at_once()
    for name in (leader, other):
        shutil.move(tmp_path / name, tmp_path / f"old-{name}")
    plan = recover(tmp_path / survivor)
    assert plan.given_up == tuple(sorted((leader, other)))
    assert plan.survival.in_sync[-1] == "t:0"
    assert len(plan.survival.lost) == 2

    cluster.start_peer(survivor)
    partition.publish(survivor, b"after")
    assert partition.values(survivor) == [*SENT, b"after"]
    assert list(cluster.state(survivor).nodes) == [survivor]
    lost = cluster.state(survivor).topics["lost"].partitions
    assert {partition.leader for partition in lost} == {survivor}
    for name in (leader, other):
        cluster.start(name, via=survivor)
        cluster.until(lambda name=name: name in cluster.state(survivor).nodes)
    partition.move_to(survivor, leader, other)
    cluster.stop(survivor)
    partition.publish_somewhere(b"again")
    assert partition.led_by(leader) == [*SENT, b"after", b"again"]


def test_who_was_given_up_and_comes_back_all_the_same_is_not_heard(
    cluster: RunningCluster,
    partition: ReplicatedPartition,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    partition.fill()
    cluster.stop_at_once()
    recover(tmp_path / "n3")
    cluster.start_peer("n1")
    cluster.start_peer("n3")
    partition.publish("n3", b"after")
    cluster.until(lambda: "n1 is not a member" in caplog.text)
    assert list(cluster.state("n3").nodes) == ["n3"]
    assert partition.values("n3") == [*SENT, b"after"]
    assert cluster.state("n1").nodes.keys() == set(NAMES)


def test_a_recovery_that_was_cut_short_is_done_again(
    cluster: RunningCluster, partition: ReplicatedPartition, tmp_path: Path
) -> None:
    partition.fill()
    cluster.stop_at_once()
    journal = tmp_path / "n2" / "cluster" / FILE_NAME
    before = journal.stat().st_size
    recover(tmp_path / "n2")
    whole = journal.read_bytes()
    (journal.parent / "journal.synced").unlink()  # older than the end, after a power cut
    for end in range(before, len(whole), 23):
        journal.write_bytes(whole[:end])
        (journal.parent / "journal.synced").unlink(missing_ok=True)
        recover(tmp_path / "n2")
    cluster.start_peer("n2")
    partition.publish("n2", b"after")
    assert partition.values("n2") == [*SENT, b"after"]


def test_only_the_stopped_node_of_a_cluster_of_several_is_recovered(
    cluster: RunningCluster, partition: ReplicatedPartition, tmp_path: Path
) -> None:
    partition.fill()
    with pytest.raises(DataDirLocked):
        UnsafeRecovery(RealDisk(), tmp_path / "n1")
    cluster.stop_at_once()
    (tmp_path / "alone").mkdir()
    with pytest.raises(UsageError, match="not the folder of a node of a cluster"):
        UnsafeRecovery(RealDisk(), tmp_path / "alone")
    shutil.rmtree(tmp_path / "n3" / "cluster")
    shutil.copytree(tmp_path / "n2" / "cluster", tmp_path / "n3" / "cluster")
    with pytest.raises(CorruptData):
        UnsafeRecovery(RealDisk(), tmp_path / "n3")
    recover(tmp_path / "n1")
    cluster.start_peer("n1")
    cluster.until(lambda: list(cluster.state("n1").nodes) == ["n1"])
    cluster.stop_at_once()
    with pytest.raises(Conflict, match="the only node"):
        UnsafeRecovery(RealDisk(), tmp_path / "n1")


def test_the_command_says_what_is_lost_and_does_nothing_before_it_is_told_to(
    cluster: RunningCluster,
    partition: ReplicatedPartition,
    tmp_path: Path,
) -> None:
    recover = ["cluster", "recover", "--data-dir", str(tmp_path / "n1")]

    def said(*flags: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(
            subprocess.check_output([*GOQ, "--json", *recover, *flags])
        )
        return found

    def printed(*flags: str) -> str:
        return subprocess.check_output([*GOQ, *recover, *flags], text=True).splitlines()[0]

    partition.fill()
    cluster.stop_at_once()
    journal = tmp_path / "n1" / "cluster" / FILE_NAME
    before = journal.read_bytes()
    survival = {"in_sync": ["t:0"], "behind": [], "lost": []}
    plan = {"node": "n1", "given_up": ["n2", "n3"], "survival": survival}
    assert said() == {"done": False, **plan}
    assert printed().startswith("A LOOK ONLY: n1 would go on alone, and give up for good: n2, n3")
    assert journal.read_bytes() == before
    assert printed("--yes-lose-what-others-had").startswith("DONE: n1 goes on alone; given up")
    assert said("--yes-lose-what-others-had") == {"done": True, **plan}
    assert journal.read_bytes().startswith(before)
