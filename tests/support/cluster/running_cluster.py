"""Three whole nodes of one cluster, each in a thread of the test's process."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode
from tests.support.ports import HOST, free_ports

NAMES = ("n1", "n2", "n3")


class RunningCluster:
    """The nodes by name; one that was stopped is still there, and does not answer."""

    def __init__(self, nodes: dict[str, RunningNode]) -> None:
        self.by_name = nodes
        self.nodes = list(nodes.values())
        self._stopped: set[str] = set()

    def leaders(self, topic: str) -> list[str | None]:
        """Return who leads each partition of a topic, as a node that runs says."""
        node = next(n for name, n in self.by_name.items() if name not in self._stopped)
        shown = node.call("GET", f"/v1/topics/{topic}")
        return [partition["leader"] for partition in shown["partitions"]]

    def create(self, topic: str, partitions: int = 6, **settings: Any) -> None:
        """Create a topic with partitions on all nodes, and wait until all nodes know it."""
        body = {"name": topic, "partitions": partitions, "settings": settings}
        self.nodes[0].call("POST", "/v1/topics", body)
        eventually(lambda: all(_has(node, topic) for node in self.nodes))

    def stop(self, name: str) -> None:
        """Stop a node as SIGTERM would."""
        self._stopped.add(name)
        self.by_name[name].stop()

    def stop_all(self) -> None:
        """Stop those that still run."""
        names = [name for name in self.by_name if name not in self._stopped]
        with ThreadPoolExecutor(len(NAMES)) as threads:
            list(threads.map(self.stop, names))


@contextmanager
def running_cluster() -> Iterator[RunningCluster]:
    """Run three nodes until the block ends; they have found each other when it begins."""
    with tempfile.TemporaryDirectory(prefix="goq-test-") as folder, ExitStack() as stack:
        secret = Path(folder) / "secret"
        secret.write_text(secrets.token_hex(32))
        ports = free_ports(len(NAMES))
        addresses = {n: f"{HOST}:{port}" for n, port in zip(NAMES, ports, strict=True)}
        nodes: dict[str, RunningNode] = {}
        for name, address in addresses.items():
            settings = {
                "broker": {"node_id": name},
                "cluster": {"listen": address, "peers": addresses, "secret_file": secret},
            }
            nodes[name] = RunningNode(Path(folder) / name, settings)
        cluster = RunningCluster(nodes)
        stack.callback(cluster.stop_all)
        for node in cluster.nodes:
            node.start()
        eventually(lambda: all(map(_are_up, cluster.nodes)))
        yield cluster


def _has(node: RunningNode, topic: str) -> bool:
    return node.request("GET", f"/v1/topics/{topic}").status == 200


def _are_up(node: RunningNode) -> bool:
    def up() -> int:
        membership = node.node._membership
        assert membership is not None
        assert membership.member is not None
        return sum(known.is_up for known in membership.member.state.nodes.values())

    return node.on_loop(up) == len(NAMES)
