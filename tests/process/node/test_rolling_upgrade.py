"""A cluster is upgraded node by node, from an earlier version to this one."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from goq.client import Client
from goq.cluster.metadata.features import OWN_LEVEL
from goq.errors import GoqError
from goq.storage.journal.journal import JOURNAL_DIR
from tests.support.cluster.process_cluster import NAMES, ProcessCluster, process_nodes
from tests.support.eventually import eventually
from tests.support.node.earlier_version import check_out
from tests.support.node.node_process import NodeProcess

BEFORE_FEATURE_LEVELS = "bd6c25115bdf"
"""The last commit whose nodes know no feature level."""
BEFORE_JOURNAL = "9d17e75ea0ca"
"""The last commit whose nodes write each batch to its own log: data format 1."""
BEFORE_PUSHES = "9b50e0967ed2"
"""The last commit whose followers only fetch."""
TOPICS = ("zebra", "apple", "mango", "berry", "quince", "cherry")
PARTITIONS = 3
_PUBLISHED_AFTER_EACH = 40


class Publisher(threading.Thread):
    """Publishes to all topics until it is told to stop; keeps what was acknowledged."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__()
        self.acknowledged: set[str] = set()
        self.failures: list[str] = []
        self._urls = urls
        self._stopping = threading.Event()

    def run(self) -> None:
        number = 0
        with Client(self._urls, retries="60s") as client:
            while not self._stopping.wait(0.02):
                number += 1
                value = f"value {number}"
                try:
                    client.publish(TOPICS[number % len(TOPICS)], value)
                except GoqError as error:
                    self.failures.append(f"{value}: {error!r}")
                else:
                    self.acknowledged.add(value)

    def wait_for_more(self, count: int) -> None:
        """Return once so many more messages were acknowledged."""
        wanted = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= wanted, f"{count} more messages are stored")

    def stop(self) -> None:
        self._stopping.set()
        self.join(90)
        assert not self.is_alive()


def shown(url: str) -> dict[str, Any]:
    """Return what a node says of the cluster, without what concerns the node alone."""
    with Client(url, timeout="5s", retries="0s") as client:
        raw: dict[str, Any] = json.loads(json.dumps(client.describe_cluster().raw))
    topics = [{name: topic[name] for name in ("name", "partitions")} for topic in raw["topics"]]
    return {name: raw[name] for name in ("nodes", "settings", "offline")} | {
        "topics": topics,  # without what the old version does not show
        "feature_level": raw.get("feature_level", 0),
        "under_replicated": raw["under_replicated"],
    }


def are_equal_and_whole(cluster: ProcessCluster, *, level: int) -> bool:
    try:
        views = [shown(url) for url in cluster.urls]
    except GoqError:
        return False
    first = views[0]
    return (
        all(view["topics"] == first["topics"] for view in views)
        and all(view["feature_level"] == level for view in views)
        and all(node["status"] == "up" for node in first["nodes"])
        and not first["offline"]
        and not first["under_replicated"]
    )


def has_journal(node: NodeProcess) -> bool:
    return (node.folder / JOURNAL_DIR).is_dir()


def stored_values(client: Client) -> list[str]:
    return [message.value.decode() for topic in TOPICS for message in client.read_log(topic)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("commit", "level"), [(BEFORE_FEATURE_LEVELS, 0), (BEFORE_JOURNAL, 5), (BEFORE_PUSHES, 9)]
)
def test_a_cluster_is_upgraded_node_by_node_and_loses_nothing(
    tmp_path: Path, commit: str, level: int
) -> None:
    old = check_out(commit, tmp_path / "old")
    with process_nodes(tmp_path) as nodes:
        cluster = ProcessCluster(nodes)
        for node in nodes.values():
            node.environment.update(old)
        cluster.start_the_dead()
        for topic in TOPICS:
            cluster.create(topic, PARTITIONS)
        eventually(lambda: are_equal_and_whole(cluster, level=level), "the old one is whole")
        if commit != BEFORE_PUSHES:
            assert not any(has_journal(node) for node in nodes.values()), "not the old version"
        publisher = Publisher(cluster.urls)
        publisher.start()
        try:
            for name in NAMES:
                nodes[name].stop()
                nodes[name].environment.clear()
                nodes[name].start()
                is_last = name == NAMES[-1]
                eventually(
                    lambda last=is_last: are_equal_and_whole(
                        cluster, level=OWN_LEVEL if last else level
                    ),
                    f"the cluster is whole after the upgrade of {name}",
                    seconds=90,
                )
                publisher.wait_for_more(_PUBLISHED_AFTER_EACH)
        finally:
            publisher.stop()
        assert all(has_journal(node) for node in nodes.values())
        assert publisher.failures == []
        assert len(publisher.acknowledged) >= _PUBLISHED_AFTER_EACH * len(NAMES)
        with Client(cluster.urls, retries="60s") as client:
            stored = stored_values(client)
        assert sorted(stored) == sorted(publisher.acknowledged)
