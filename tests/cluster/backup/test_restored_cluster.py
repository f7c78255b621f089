"""A cluster begins with the folder of a backup: its first node brings it, the others join."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import goq
from goq.backup.backup import back_up_folder
from goq.backup.place import BackupPlace
from goq.backup.restore import RestoreOrder, restore
from goq.client import Client
from goq.cluster.metadata.broker_store import ReplicatedMetadataStore
from goq.errors import Unavailable, UsageError
from goq.storage.catalog.rows import TopicRow
from goq.storage.data_dir_lock import RESTORED_NAME
from goq.storage.disk import RealDisk
from tests.support.cluster.running_cluster import NAMES, RunningCluster
from tests.support.eventually import eventually
from tests.support.storage.backup_source import SETTINGS, TOPICS, fill, view

WAIT_S = 60


@pytest.fixture
def place(tmp_path: Path) -> BackupPlace:
    """Back up a node with something of everything, that was started three times."""
    data, folder = tmp_path / "lost", tmp_path / "place"
    for _ in range(2):
        with goq.Node(data):
            pass
    with goq.Node(data, settings=SETTINGS) as node, node.client() as q:
        fill(q)
        q.create_schedule("daily", "orders", "good morning", every="1d")
        (tmp_path / "seen").write_text(repr(view(q)))
    back_up_folder(RealDisk(), data, folder, time.time_ns() // 1000)
    return BackupPlace(RealDisk(), folder)


def restored(place: BackupPlace, data_dir: Path) -> None:
    restore(place, data_dir, RestoreOrder(), time.time_ns() // 1000)


def test_a_cluster_begins_with_a_restored_folder_and_the_nodes_that_join_copy_all(
    place: BackupPlace, cluster: RunningCluster, tmp_path: Path
) -> None:
    restored(place, tmp_path / "n1")
    cluster.more = {name: {"min_insync": 1} for name in NAMES}
    cluster.start("n1")
    before = (tmp_path / "seen").read_text()

    def is_there() -> bool:
        with Client(cluster.by_name["n1"].url) as q:
            return {topic.name for topic in q.list_topics()} >= set(TOPICS)

    eventually(is_there, seconds=WAIT_S)
    eventually(lambda: not (tmp_path / "n1" / RESTORED_NAME).exists(), seconds=WAIT_S)
    cluster.start("n2", via="n1")
    cluster.start("n3", via="n1")

    def is_copied() -> bool:
        state = cluster.state("n1")
        partitions = [p for name in TOPICS for p in state.topics[name].partitions]
        return all(len(p.in_sync) == 3 for p in partitions)

    eventually(is_copied, seconds=WAIT_S)
    cluster.stop("n1")
    with Client(cluster.by_name["n2"].url, retries="30s") as q:
        eventually(lambda: None not in [n for t in TOPICS for n in cluster.leaders(t)], seconds=30)
        assert repr(view(q)) == before
        assert [each.name for each in q.list_schedules()] == ["daily"]
        q.publish("payments", b"more")
        values = []
        while messages := q.receive("payments", "books", max_messages=5, wait="2s"):
            for message in messages:
                values.append(message.value)
                message.ack()
        assert values == [b"c", b"more"], "the group goes on where the backup was"


def test_a_first_node_that_dies_before_the_cluster_has_all_goes_on_at_its_next_start(
    place: BackupPlace, cluster: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored(place, tmp_path / "n1")
    cluster.more = {"n1": {"min_insync": 1}}
    real, adopted = ReplicatedMetadataStore.adopt_topic, list[str]()

    async def adopt(self: ReplicatedMetadataStore, topic: TopicRow, *more: Any) -> None:
        if adopted:
            raise Unavailable("it dies here")
        await real(self, topic, *more)
        adopted.append(topic.name)

    with monkeypatch.context() as patch:
        patch.setattr(ReplicatedMetadataStore, "adopt_topic", adopt)
        node = cluster.start("n1")
        eventually(lambda: adopted, seconds=WAIT_S)
        taken = min(set(TOPICS) - set(adopted))
        with Client(node.url, retries=0) as q, pytest.raises(Unavailable):
            q.create_topic(taken)
        cluster.stop("n1")
    assert (tmp_path / "n1" / RESTORED_NAME).exists()
    node = cluster.restart("n1")
    eventually(lambda: not (tmp_path / "n1" / RESTORED_NAME).exists(), seconds=WAIT_S)
    with Client(node.url) as q:
        eventually(lambda: repr(view(q)) == (tmp_path / "seen").read_text(), seconds=WAIT_S)
        assert [each.name for each in q.list_schedules()] == ["daily"]


def test_a_restored_folder_is_no_member_of_a_cluster_of_others(
    place: BackupPlace, cluster: RunningCluster, tmp_path: Path
) -> None:
    restored(place, tmp_path / "n1")
    with pytest.raises(UsageError, match="start this node alone"):
        cluster.start_peer("n1")
    (tmp_path / "n1" / RESTORED_NAME).unlink()
    with pytest.raises(UsageError, match="belong to a node without a cluster"):
        cluster.start("n1")
    shutil.rmtree(tmp_path / "n1")
