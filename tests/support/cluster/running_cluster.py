"""Nodes of one cluster, each in a thread of the test's process and with a folder of its own."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode
from tests.support.ports import HOST, free_port, free_ports

NAMES = ("n1", "n2", "n3")


class RunningCluster:
    """Starts nodes, each again with the same flags as before.

    A node that was stopped stays in ``by_name``, and does not answer.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.by_name: dict[str, RunningNode] = {}
        self._flags: dict[str, dict[str, Any]] = {}
        self._stopped: set[str] = set()
        self._secret = folder / "secret"
        self._secret.write_text(secrets.token_hex(32))

    @property
    def nodes(self) -> list[RunningNode]:
        return list(self.by_name.values())

    def start_three(self) -> None:
        """Start three nodes that are told of each other; return when they have met."""
        ports = free_ports(len(NAMES))
        peers = {name: f"{HOST}:{port}" for name, port in zip(NAMES, ports, strict=True)}
        for name, address in peers.items():
            self._start(name, {"listen": address, "peers": peers})
        eventually(lambda: all(map(_are_up, self.nodes)))

    def start(self, name: str, via: str | None = None) -> RunningNode:
        """Start a node: again, as a cluster by itself, or to join by the node ``via``."""
        address = f"{HOST}:{free_port()}"
        if via is not None:
            return self._start(name, {"listen": address, "join": self.by_name[via].url})
        return self._start(name, {"listen": address, "peers": {name: address}})

    def _start(self, name: str, flags: dict[str, Any]) -> RunningNode:
        broker = {"node_id": name, "listen": f"{HOST}:{free_port()}"}
        settings = {"broker": broker, "cluster": {"secret_file": self._secret, **flags}}
        node = RunningNode(self.folder / name, self._flags.setdefault(name, settings))
        node.start()
        self.by_name[name] = node
        self._stopped.discard(name)
        return node

    def restart(self, name: str) -> RunningNode:
        """Start a node again that was stopped."""
        return self._start(name, {})

    def stop(self, name: str) -> None:
        """Stop a node as SIGTERM would."""
        self._stopped.add(name)
        self.by_name[name].stop()

    def stop_all(self) -> None:
        """Stop the nodes that still run."""
        names = [name for name in self.by_name if name not in self._stopped]
        if names:
            with ThreadPoolExecutor(len(names)) as threads:
                list(threads.map(self.stop, names))

    def statuses(self, by: str) -> dict[str, str]:
        """Return how the nodes are, as one of them knows."""
        return {n["id"]: n["status"] for n in self.by_name[by].call("GET", "/v1/cluster")["nodes"]}

    def leaders(self, topic: str) -> list[str | None]:
        """Return the leader of each partition of a topic, as a node that runs knows it."""
        node = next(n for name, n in self.by_name.items() if name not in self._stopped)
        shown = node.call("GET", f"/v1/topics/{topic}")
        return [partition["leader"] for partition in shown["partitions"]]

    def create(self, topic: str, partitions: int = 6, **settings: Any) -> None:
        """Create a topic with partitions on all nodes, and wait until all nodes know it."""
        body = {"name": topic, "partitions": partitions, "settings": settings}
        self.nodes[0].call("POST", "/v1/topics", body)
        eventually(lambda: all(_has(node, topic) for node in self.nodes))


@contextmanager
def new_cluster(folder: Path) -> Iterator[RunningCluster]:
    """Yield a cluster without nodes, and stop those it has when the block ends."""
    cluster = RunningCluster(folder)
    try:
        yield cluster
    finally:
        cluster.stop_all()


@contextmanager
def running_cluster() -> Iterator[RunningCluster]:
    """Run three nodes until the block ends; they have found each other when it begins."""
    with (
        tempfile.TemporaryDirectory(prefix="goq-test-") as folder,
        new_cluster(Path(folder)) as cluster,
    ):
        cluster.start_three()
        yield cluster


def _has(node: RunningNode, topic: str) -> bool:
    return node.request("GET", f"/v1/topics/{topic}").status == 200


def _are_up(node: RunningNode) -> bool:
    def up() -> int:
        assert node.node.cluster is not None
        return sum(known.is_up for known in node.node.cluster.state.nodes.values())

    return node.on_loop(up) == len(NAMES)
