"""A cluster of processes with links that can be cut, and a disk that can be filled."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from goq.cluster.metadata.state import MetadataState
from goq.cluster.metadata.tables import load_state
from tests.support.cluster.links import Links
from tests.support.cluster.process_cluster import NAMES, ProcessCluster, linked_nodes
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess
from tests.support.node.small_disk import SmallDisk, small_disk
from tests.support.paths import topic_dir

ON_SMALL_DISK = "n3"
SETTLE_S_MAX = 120.0
_DISK_MIB = 512
_TABLES = ("nodes", "topics", "partitions", "groups", "cluster", "features")


class ChaosCluster(ProcessCluster):
    """Nodes by name, and the links among them; use :func:`chaos_cluster`.

    ``disk`` is that of the node ``ON_SMALL_DISK``, None where it has none of its own.
    """

    def __init__(self, nodes: dict[str, NodeProcess], links: Links, disk: SmallDisk | None) -> None:
        super().__init__(nodes)
        self.links = links
        self.disk = disk

    def ask_each(self, path: str) -> list[Any]:
        """Return what each node that answers says for itself."""
        answers = [
            node.request("GET", path, headers={"Goq-Local": "true"}, timeout_s=20.0)
            for node in self.nodes.values()
        ]
        return [answer.json for answer in answers if answer.status == 200]

    def create_with_group(self, topic: str, group: str, settings: Mapping[str, str]) -> None:
        """Create a topic of 6 partitions, and a group of it."""
        self.create(topic, 6, **settings)
        path, body = f"/v1/topics/{topic}/groups/{group}", {"settings": {}}
        eventually(
            lambda: self.nodes["n1"].request("PUT", path, body).status < 300,
            f"{group} is created",
            seconds=SETTLE_S_MAX,
        )

    def wait_until_whole(self) -> None:
        """Return when all nodes are members and all replicas of all topics are in sync."""

        def is_whole() -> bool:
            state = self._agreed_at(next(iter(self.nodes.values())))
            return len(state.nodes) == len(NAMES) and all(map(self.is_whole, state.topics))

        eventually(is_whole, "all in sync", seconds=SETTLE_S_MAX, pause_s=0.1)

    def wipe(self, name: str) -> None:
        """Empty the folder of a node that does not run."""
        for entry in self.nodes[name].folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def take_out(self, name: str) -> None:
        """Have a lost node leave the cluster, by any other."""
        others = [node for other, node in self.nodes.items() if other != name]

        def has_left() -> bool:
            for node in others:
                try:
                    node.request("DELETE", f"/v1/cluster/nodes/{name}", timeout_s=5.0)
                except OSError:
                    continue
                if node.is_running and name not in self._agreed_at(node).nodes:
                    return True
            return False

        eventually(has_left, f"{name} has left", seconds=SETTLE_S_MAX, pause_s=0.2)

    def is_whole(self, topic: str) -> bool:
        """Whether all replicas of a topic are in sync, as the node knows that knows the most."""
        states = [self._agreed_at(node) for node in self.nodes.values()]
        known = [state.topics[topic] for state in states if topic in state.topics]
        partitions = [of_topic.partitions for of_topic in known]
        newest = max(partitions, key=lambda of_topic: sum(p.version for p in of_topic))
        return all(len(p.in_sync) == len(NAMES) for p in newest)

    @staticmethod
    def _agreed_at(node: NodeProcess) -> MetadataState:
        path = node.folder / "cluster" / "metadata.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return load_state(db, 0)

    def agree(self) -> bool:
        """Whether all nodes have the same rows of metadata, as of the same entry of Raft's log."""
        return len({_metadata_rows(node) for node in self.nodes.values()}) == 1

    def differing_logs(self, topic: str) -> list[str]:
        """Return the segments of a topic's logs that are not the same bytes on all nodes."""
        contents: list[dict[str, bytes]] = []
        for node in self.nodes.values():
            root = topic_dir(node.folder, topic)
            paths = (path for path in root.rglob("*.log"))
            contents.append({str(path.relative_to(root)): path.read_bytes() for path in paths})
        names = {name for content in contents for name in content}
        assert names, "there is no log at all"
        return sorted(n for n in names if len({content.get(n) for content in contents}) > 1)


def _metadata_rows(node: NodeProcess) -> tuple[Any, ...]:
    path = node.folder / "cluster" / "metadata.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        db.execute("BEGIN")
        (applied,) = db.execute("SELECT applied_index FROM raft_state").fetchone()
        tables = (sorted(map(repr, db.execute(f"SELECT * FROM {name}"))) for name in _TABLES)
        return (applied, *map(tuple, tables))


@contextmanager
def chaos_cluster(folder: Path, settings: tuple[str, ...] = ()) -> Iterator[ChaosCluster]:
    """Run three nodes until the block ends; they have found each other when it begins."""
    with ExitStack() as resources:
        disk = resources.enter_context(small_disk(folder / ON_SMALL_DISK, _DISK_MIB))
        nodes, links = resources.enter_context(linked_nodes(folder, settings, may_rejoin=True))
        cluster = ChaosCluster(nodes, links, disk)
        try:
            cluster.start_the_dead()
            yield cluster
        except BaseException as error:
            for name, node in nodes.items():
                error.add_note(f"{name} said:\n{node.log_text(3000)}")
            raise
