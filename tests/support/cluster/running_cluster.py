"""A cluster of nodes in this process, each in a thread and with a folder of its own."""

from __future__ import annotations

import secrets
import shutil
import ssl
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from goq import limits
from goq.cluster.cluster_node import ClusterNode
from goq.cluster.metadata.state import MetadataState
from tests.support.eventually import eventually
from tests.support.node.ports import HOST, free_port, free_ports
from tests.support.node.running_node import RunningNode
from tests.support.paths import fast_folder

T = TypeVar("T")

NAMES = ("n1", "n2", "n3")


class RunningCluster:
    """The nodes by name. A stopped node stays in ``by_name`` and does not answer.

    ``tls`` holds certificate settings by node; without an entry the node has none. ``security``,
    ``sqs`` and ``backup`` are the settings of these sections for all nodes, and ``more`` those of
    the cluster by node.
    ``client_tls`` verifies nodes that speak HTTPS.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.by_name: dict[str, RunningNode] = {}
        self.running: set[str] = set()
        self.tls: dict[str, dict[str, Path]] = {}
        self.security: dict[str, Any] = {}
        self.sqs: dict[str, Any] = {}
        self.archive: dict[str, Any] = {}
        self.backup: dict[str, Any] = {}
        self.more: dict[str, dict[str, Any]] = {}
        self.client_tls: ssl.SSLContext | None = None
        self._ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
        self._brokers: dict[str, dict[str, Any]] = {}
        self._flags: dict[str, dict[str, Any]] = {}
        self.secret = folder / "secret"
        self.secret.touch(0o600)
        self.secret.write_text(secrets.token_hex(32))

    @property
    def nodes(self) -> list[RunningNode]:
        return list(self.by_name.values())

    def start_three(self) -> None:
        """Start three nodes with each other as peers; return when all of them are up."""
        for name in NAMES:
            self.start_peer(name)
        eventually(lambda: all(map(_are_up, self.nodes)))

    def start(self, name: str, via: str | None = None) -> RunningNode:
        """Start a node as a cluster of its own, or let it join via another node."""
        if via is not None:
            return self._start(name, {"join": self.by_name[via].url})
        return self._start(name, {"peers": {name: self._address(name)}})

    def start_peer(self, name: str, via: str | None = None) -> RunningNode:
        """Start a node with all three as peers; with ``via`` it may also join, as pods do."""
        flags: dict[str, Any] = {"peers": {each: self._address(each) for each in NAMES}}
        return self._start(name, flags if via is None else {"join": self.by_name[via].url, **flags})

    def restart(self, name: str) -> RunningNode:
        """Start a stopped node again with the same flags."""
        return self._start(name, self._flags[name])

    def listen_at(self, name: str, address: str) -> None:
        """Have a node that was not started yet listen on an address for HTTP."""
        self._brokers[name] = {"node_id": name, "listen": address}

    def forget_addresses(self, *names: str) -> None:
        """Have stopped nodes listen on other ports from their next start on."""
        for name in names:
            del self._ports[name], self._brokers[name]

    def _start(self, name: str, flags: dict[str, Any]) -> RunningNode:
        self._flags[name] = flags
        at_home = {"node_id": name, "listen": f"{HOST}:{free_port()}"}
        cluster = {
            "listen": self._address(name),
            "secret_file": self.secret,
            "tls": self.tls.get(name),
            **flags,
            **self.more.get(name, {}),
        }
        settings = {
            "broker": self._brokers.setdefault(name, at_home),
            "cluster": cluster,
            "security": self.security,
            "sqs": self.sqs,
            "archive": self.archive,
            "backup": self.backup,
        }
        node = RunningNode(self.folder / name, settings)
        node.start()
        node.tls = self.client_tls if node.url.startswith("https") else None
        self.by_name[name] = node
        self.running.add(name)
        return node

    def _address(self, name: str) -> str:
        if name not in self._ports:
            self._ports[name] = free_port()
        return f"{HOST}:{self._ports[name]}"

    def stop(self, *names: str) -> None:
        """Stop nodes at the same time, as SIGTERM would."""
        self.running -= set(names)
        if names:
            with ThreadPoolExecutor(len(names)) as threads:
                list(threads.map(lambda name: self.by_name[name].stop(), names))

    def stop_at_once(self) -> None:
        """Stop all running nodes before any sees another go: the metadata stay as they are."""
        names = sorted(self.running)
        for name in names:
            self.on_loop(name, lambda cluster_node: cluster_node.raft.stop())
        with patch.object(limits, "HANDOFF_TIMEOUT_MS", 0):  # no node takes anything over
            self.stop(*names)

    def wipe(self, name: str, what: str = ".") -> None:
        """Stop a node and remove its data folder, or one folder in it."""
        if name in self.running:
            self.stop(name)
        shutil.rmtree(self.folder / name / what)

    def cluster_node(self, name: str) -> ClusterNode:
        """Return the cluster's part of a node; only its immutable state is for this thread."""
        cluster_node = self.by_name[name].node.cluster
        assert cluster_node is not None
        return cluster_node

    def on_loop(self, name: str, work: Callable[[ClusterNode], Awaitable[T] | T]) -> T:
        """Run ``work`` in a node's event loop and return what it returns."""
        return self.by_name[name].on_loop(lambda: work(self.cluster_node(name)))

    def state(self, seen_by: str) -> MetadataState:
        """Return the cluster metadata as a node has them."""
        return self.cluster_node(seen_by).state

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition that takes elections, repairs or copies."""
        eventually(condition, seconds=60, pause_s=0.02)

    def statuses(self, by: str) -> dict[str, str]:
        """Return how the nodes are, as one of them knows."""
        return {n["id"]: n["status"] for n in self.by_name[by].call("GET", "/v1/cluster")["nodes"]}

    def leaders(self, topic: str) -> list[str | None]:
        """Return the leader of each partition of a topic, as a node that runs knows it."""
        node = self.by_name[min(self.running)]
        shown = node.call("GET", f"/v1/topics/{topic}")
        return [partition["leader"] for partition in shown["partitions"]]

    def create(self, topic: str, partitions: int = 6, **settings: Any) -> None:
        """Create a topic with partitions on all nodes, and wait until all nodes know it."""
        body = {"name": topic, "partitions": partitions, "settings": settings}
        self.nodes[0].call("POST", "/v1/topics", body)
        eventually(lambda: all(_has(node, topic) for node in self.nodes))


@contextmanager
def new_cluster(folder: Path) -> Iterator[RunningCluster]:
    """Yield a cluster without nodes; stop its nodes when the block ends."""
    cluster = RunningCluster(folder)
    try:
        yield cluster
    finally:
        cluster.stop_at_once()


@contextmanager
def running_cluster(
    security: dict[str, Any] | None = None,
    sqs: dict[str, Any] | None = None,
    archive: dict[str, Any] | None = None,
) -> Iterator[RunningCluster]:
    """Run three nodes in memory until the block ends; when it begins they know each other.

    ``security``, ``sqs`` and ``archive`` are the settings of these sections.
    """
    with (
        fast_folder("goq-test-") as folder,
        new_cluster(folder) as cluster,
    ):
        cluster.security = security or {}
        cluster.sqs = sqs or {}
        cluster.archive = archive or {}
        cluster.start_three()
        yield cluster


def _has(node: RunningNode, topic: str) -> bool:
    return node.request("GET", f"/v1/topics/{topic}").status == 200


def _are_up(node: RunningNode) -> bool:
    def up() -> int:
        assert node.node.cluster is not None
        return sum(known.is_up for known in node.node.cluster.state.nodes.values())

    return node.on_loop(up) == len(NAMES)
