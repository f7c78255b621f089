"""A cluster is backed up through one node, whatever happens to the others meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import goq
from goq.backup import cluster_source
from goq.backup.cluster_source import ClusterSource, RemoteLog
from goq.backup.inspection import verify_place
from goq.backup.node_source import Copying
from goq.backup.place import BackupPlace
from goq.backup.planned_files import PlannedTopic
from goq.backup.restore import RestoreOrder, restore
from goq.client import Client
from goq.errors import Conflict, GoqError, Unavailable
from goq.storage.disk import RealDisk
from tests.support.cluster.running_cluster import RunningCluster
from tests.support.eventually import eventually
from tests.support.node.archive import publish_segments, retire
from tests.support.storage.backup_source import (
    SETTINGS,
    TOPICS,
    dead_letter_count,
    fill,
    view,
    view_of,
)

WAIT_S = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "place"


@pytest.fixture
def three(cluster: RunningCluster, folder: Path) -> RunningCluster:
    cluster.backup = {"to": folder}
    cluster.start_three()
    return cluster


@pytest.fixture
def q(three: RunningCluster) -> Iterator[Client]:
    with Client(three.by_name["n2"].url) as client:
        yield client


def restored(folder: Path, data_dir: Path) -> Path:
    restore(BackupPlace(RealDisk(), folder), data_dir, RestoreOrder(), time.time_ns() // 1000)
    return data_dir


def test_a_backup_of_a_cluster_has_all_that_clients_were_told(
    q: Client, tmp_path: Path, folder: Path
) -> None:
    fill(q)
    before = view(q)
    done = q.create_backup()
    assert (done.topics, done.copied_bytes) == (len(TOPICS), done.bytes)
    again = q.create_backup()
    assert (again.bytes, again.copied_bytes) == (done.bytes, 0)
    q.publish("payments", b"after")
    assert verify_place(BackupPlace(RealDisk(), folder)).problems == []
    assert view_of(restored(folder, tmp_path / "new")) == before


def test_a_topic_is_restored_into_the_cluster_under_another_name_with_all_its_replicas(
    three: RunningCluster, q: Client
) -> None:
    fill(q)
    settings, messages, groups, scheduled = view(q, ["orders"])["orders"]
    q.create_backup()
    q.publish("orders", b"after")
    assert q.restore_topic("orders", "old").messages == 62
    renamed = [(name.replace("orders:", "old:"), value, key) for name, value, key in messages]
    later = [name.replace("orders:", "old:") for name in scheduled]
    assert view(q, ["old"])["old"] == (settings, renamed, groups, later)

    def are_in_sync() -> bool:
        partitions = three.state("n2").topics["old"].partitions
        return all(len(partition.in_sync) == 3 for partition in partitions)

    eventually(are_in_sync, seconds=WAIT_S)
    three.stop("n2")
    with Client(three.by_name["n1"].url, retries="30s") as other:
        assert view(other, ["old"])["old"] == (settings, renamed, groups, later)
        assert other.publish("old", b"more")


def test_the_death_of_a_leader_meanwhile_costs_nothing(
    three: RunningCluster,
    q: Client,
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(q)
    before = view(q)
    led = {name for topic in TOPICS for name in three.leaders(topic)}
    victim = max((led & {"n1", "n3"}) or {"n3"})
    real, died = ClusterSource.copy, list[str]()

    async def copy(source: ClusterSource, copying: Copying) -> object:
        if not died:
            died.append(str(victim))
            await asyncio.to_thread(three.stop, str(victim))
        return await real(source, copying)

    monkeypatch.setattr(ClusterSource, "copy", copy)
    q.create_backup()
    assert died
    assert verify_place(BackupPlace(RealDisk(), folder)).problems == []
    assert view_of(restored(folder, tmp_path / "new")) == before


def test_what_was_acknowledged_before_a_backup_under_load_began_is_in_it(
    three: RunningCluster, q: Client, tmp_path: Path, folder: Path
) -> None:
    q.create_topic("orders", partitions=3, settings={"segment.bytes": "64KiB"})
    published, is_over = list[int](), threading.Event()

    def publish() -> None:
        number = 0
        while not is_over.is_set():
            q.publish("orders", b"%d" % number + bytes(2000), key=f"k{number}")
            published.append(number)
            number += 1

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        eventually(lambda: len(published) > 50, seconds=WAIT_S)
        told = len(published)
        q.create_backup()
    finally:
        is_over.set()
        thread.join()
    seen = view_of(restored(folder, tmp_path / "new"), ["orders"])
    values = {int(value.rstrip(b"\0")) for _, value, _ in seen["orders"][1]}
    assert values >= set(range(told))


def test_a_dead_letter_that_is_copied_between_the_plans_of_both_logs_hides_no_later_one(
    q: Client, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_topic("jobs", partitions=1)
    q.create_topic("jobs.dlq", partitions=1)
    q.publish("jobs", b"1")
    leased = q.receive("jobs", "g", visibility="1h")
    real, rejected = ClusterSource._plan_logs, list[bool]()

    async def plan(
        source: ClusterSource, topics: Sequence[PlannedTopic], which: int, *, is_partial: bool
    ) -> object:
        if which == 0 and not rejected:
            rejected.append(True)
            await asyncio.to_thread(leased[0].reject, "broken")
            await asyncio.to_thread(
                eventually, lambda: dead_letter_count(q, "jobs") == 1, seconds=WAIT_S
            )
        return await real(source, topics, which, is_partial=is_partial)

    monkeypatch.setattr(ClusterSource, "_plan_logs", plan)
    q.create_backup()
    with (
        goq.Node(restored(folder, tmp_path / "new"), settings=SETTINGS) as node,
        node.client() as new,
    ):
        again = new.receive("jobs", "g", wait="10s")  # its rejection is not in the backup
        again[0].reject("broken")
        eventually(lambda: new.describe_group("jobs", "g").lag == 0, seconds=WAIT_S)
        new.publish("jobs", b"2")
        new.receive("jobs", "g", wait="10s")[0].reject("broken")
        eventually(lambda: b"2" in [m.value for m in new.read_log("jobs.dlq")], seconds=WAIT_S)
        assert b"1" in [m.value for m in new.read_log("jobs.dlq")]


@pytest.mark.long
def test_nodes_with_a_schedule_and_one_place_back_the_cluster_up(
    cluster: RunningCluster, folder: Path
) -> None:
    cluster.backup = {"to": folder, "every": "1h"}
    cluster.start_three()
    eventually(lambda: BackupPlace(RealDisk(), folder).names(), seconds=WAIT_S)

    def is_sound() -> bool:
        try:
            return not verify_place(BackupPlace(RealDisk(), folder)).problems
        except Conflict:  # another node looks whether it has to begin
            return False

    eventually(is_sound, seconds=WAIT_S)


def test_archived_segments_of_leaders_are_in_it(
    three: RunningCluster, q: Client, tmp_path: Path, folder: Path
) -> None:
    three.create("t", 1, archive=True)
    eventually(lambda: three.leaders("t")[0] is not None, seconds=WAIT_S)
    leader = three.by_name[str(three.leaders("t")[0])]
    publish_segments(leader, "t", range(6))

    def retired() -> bool:
        retire(leader, "t", archive=True)
        return any((leader.data_dir / "archive").glob("*/0/messages/*.zst"))

    eventually(retired, seconds=WAIT_S)
    done = q.create_backup()
    assert q.create_backup().copied_bytes == 0
    manifest = BackupPlace(RealDisk(), folder).newest()
    assert manifest is not None
    assert any(p.messages.archived for topic in manifest.topics for p in topic.logs)
    assert done.copied_bytes > 0
    assert list(restored(folder, tmp_path / "new").glob("archive/*/0/messages/*.zst"))


def test_without_a_leader_it_fails_and_says_which_partition(
    three: RunningCluster, q: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_topic("orders", partitions=1)
    monkeypatch.setattr(cluster_source, "_TRIES", 2)
    monkeypatch.setattr(cluster_source, "_PAUSE_S", 0.01)

    async def no_plan(*_: object) -> None:
        raise Unavailable("orders:0 has no leader")

    files = three.cluster_node("n2").backup_files
    monkeypatch.setattr(files, "plan_log", no_plan)
    with pytest.raises(GoqError, match="orders:0 has no leader"):
        q.create_backup()
    assert BackupPlace(RealDisk(), folder).names() == []


def test_without_the_leader_of_one_partition_the_others_are_backed_up(
    three: RunningCluster,
    q: Client,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q.create_topic("orders", partitions=2)
    for number in range(2):
        q.publish("orders", b"in %d" % number, partition=number)
    monkeypatch.setattr(cluster_source, "_TRIES", 2)
    monkeypatch.setattr(cluster_source, "_PAUSE_S", 0.01)
    files = three.cluster_node("n2").backup_files
    plan_log = files.plan_log

    async def plan(topic: PlannedTopic, number: int, which: int) -> RemoteLog:
        if number == 1:
            raise Unavailable("orders:1 has no leader")
        return await plan_log(topic, number, which)

    monkeypatch.setattr(files, "plan_log", plan)
    assert q.create_backup().missing == ("orders:1",)
    restored(folder, tmp_path / "new")
    with goq.Node(tmp_path / "new") as node, node.client() as again:
        assert [bytes(m.value or b"") for m in again.read_log("orders")] == [b"in 0"]
