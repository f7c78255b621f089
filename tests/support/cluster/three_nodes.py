"""Three nodes with real files, on one event loop: their folders are in a test's hands."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from goq import limits
from goq.cluster.admin.cluster_view import ClusterView
from goq.cluster.cluster_node import ClusterNode
from goq.cluster.metadata.state import PartitionMetadata
from goq.config.node import Config
from goq.errors import GoqError
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from goq.node import Node
from tests.support.ports import free_ports

NAMES = ("n1", "n2", "n3")
MESSAGES = 40


class ThreeNodes:
    """Nodes in one process, each with its folder under ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tls: dict[str, dict[str, Path]] = {}  # by node; none is as in most clusters
        self.nodes: dict[str, Node] = {}
        self._ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
        (path / "secret").write_text("s" * 64)

    async def start(self, name: str, join: str | None = None, *, is_peer: bool = False) -> None:
        """Start a node with all as its peers, or, with ``join``, by the node of that name.

        One that is a peer all the same is told both, as pods are.
        """
        peers = {each: f"127.0.0.1:{port}" for each, port in self._ports.items()}
        how: dict[str, Any] = {} if join is None else {"join": self.nodes[join].url}
        if join is None or is_peer:
            how["peers"] = peers
        config = Config.model_validate(
            {
                "broker": {
                    "node_id": name,
                    "data_dir": self.path / name,
                    "listen": "127.0.0.1:0",
                },
                "cluster": {
                    "listen": peers[name],
                    "secret_file": self.path / "secret",
                    "tls": self.tls.get(name),
                    **how,
                },
            }
        )
        self.nodes[name] = Node(config)
        await self.nodes[name].start()

    async def stop_at_once(self) -> None:
        """Stop all that run, of which none sees another go: what was agreed on stays as it is."""
        nodes, self.nodes = dict(sorted(self.nodes.items())), {}
        for node in nodes.values():
            if node.cluster is not None:
                await node.cluster.raft.stop()
        with patch.object(limits, "HANDOFF_TIMEOUT_MS", 0):  # nobody takes anything over
            for node in nodes.values():
                await node.stop()

    async def wipe(self, name: str, what: str = ".") -> None:
        """Stop a node and remove its folder, or one in it."""
        if name in self.nodes:
            await self.nodes.pop(name).stop()
        shutil.rmtree(self.path / name / what)

    def cluster_node(self, name: str) -> ClusterNode:
        cluster_node = self.nodes[name].cluster
        assert cluster_node is not None
        return cluster_node

    def partition(self, seen_by: str = "n1") -> PartitionMetadata | None:
        topic = self.cluster_node(seen_by).state.topics.get("t")
        return None if topic is None else topic.partitions[0]

    def leader(self, seen_by: str = "n1") -> str | None:
        partition = self.partition(seen_by)
        return None if partition is None else partition.leader

    def folder(self, name: str) -> Path:
        return self.path / name / "topics" / "t" / "0" / "messages"

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.05)

    async def filled(self) -> str:
        """Start all and publish into a topic of one partition; return who leads it."""
        await asyncio.gather(*map(self.start, NAMES))
        await self.until(lambda: len(self.cluster_node("n1").state.nodes) == len(NAMES))
        broker = self.nodes["n1"].broker
        assert broker is not None
        await broker.create_topic("t", partitions=1)
        await self.until(lambda: self.partition() and len(self.partition().in_sync) == 3)  # type: ignore[union-attr]
        leader = self.leader()
        assert leader is not None
        for number in range(MESSAGES):
            await self.publish(leader, b"%d" % number)
        return leader

    async def publish(self, name: str, value: bytes) -> None:
        """Publish by a node, which leads the partition or comes to lead it."""
        await self._publish(lambda: name, value)

    async def publish_somewhere(self, value: bytes) -> None:
        """Publish by whichever node leads the partition."""
        await self._publish(self._led_by, value)

    async def _publish(self, by: Callable[[], str | None], value: bytes) -> None:
        async with asyncio.timeout(60):
            while True:
                name = by()
                broker = self.nodes[name].broker if name in self.nodes else None
                try:
                    if broker is not None:
                        partition = broker.topic("t").partitions[0]
                        partition.appender.check_publish(1000)
                        view = FrameView.parse(encode_frame(Columns([value])))
                        await partition.appender.publish(view)
                        return
                except GoqError:
                    pass
                await asyncio.sleep(0.05)

    def _led_by(self) -> str | None:
        found = [name for name in self.nodes if self.leader(name) == name]
        return found[0] if found else None

    async def move_to(self, *replicas: str) -> None:
        """Have the partition on these nodes alone, of which the first is there."""
        asked = replicas[0]
        await self._do(asked, lambda view: view.operations.reassign_partition("t", 0, replicas))
        await self.until(lambda: (p := self.partition(asked)) and p.replicas == replicas)
        await self.until(lambda: (p := self.partition(asked)) and set(p.in_sync) == set(replicas))

    async def led_by(self, name: str) -> list[bytes | None]:
        """Have a node lead the partition; return what it has."""
        await self._do(name, lambda view: view.operations.elect_leader("t", 0, name))
        async with asyncio.timeout(60):
            while True:
                try:
                    return self.values(name)
                except GoqError:
                    await asyncio.sleep(0.05)

    async def _do(self, asked: str, change: Callable[[ClusterView], Awaitable[object]]) -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    await change(self.cluster_node(asked).view)
                    return
                except GoqError:  # something else has changed just then
                    await asyncio.sleep(0.05)

    def values(self, name: str) -> list[bytes | None]:
        broker = self.nodes[name].broker
        assert broker is not None
        reading = broker.topic("t").partitions[0].read(0, messages_max=1000)
        return [v for f in reading.frames for v in f.values(0, f.header.message_count)]


def run_story(path: Path, story: Callable[[ThreeNodes], Awaitable[None]]) -> None:
    """Let something happen to three nodes, which are stopped at the end."""

    async def main() -> None:
        cluster = ThreeNodes(path)
        try:
            await story(cluster)
        finally:
            await cluster.stop_at_once()

    asyncio.run(main())
