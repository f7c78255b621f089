"""Three nodes with real files: one loses bits, another all it had."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from goq.cluster.member import Member
from goq.cluster.metadata.state import Partition
from goq.config import Config
from goq.errors import GoqError
from goq.frame.encode import Columns, encode_frame
from goq.frame.view import FrameView
from goq.node import Node

NAMES = ("n1", "n2", "n3")
_MESSAGES = 40


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class _Cluster:
    """Nodes in one process, each with its folder under ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nodes: dict[str, Node] = {}
        self._ports = dict(zip(NAMES, _free_ports(len(NAMES)), strict=True))
        (path / "secret").write_text("s" * 64)

    async def start(self, name: str) -> None:
        peers = {each: f"127.0.0.1:{port}" for each, port in self._ports.items()}
        config = Config.model_validate(
            {
                "broker": {
                    "node_id": name,
                    "data_dir": self.path / name,
                    "listen": "127.0.0.1:0",
                },
                "cluster": {
                    "listen": peers[name],
                    "peers": peers,
                    "secret_file": self.path / "secret",
                },
            }
        )
        self.nodes[name] = Node(config)
        await self.nodes[name].start()

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()

    def member(self, name: str) -> Member:
        membership = self.nodes[name]._membership
        assert membership is not None
        assert membership.member is not None
        return membership.member

    async def hand_raft_on(self, *names: str) -> None:
        """Let the other of two nodes lead the Raft group."""
        for name, other in (names, names[::-1]):
            membership = self.nodes[name]._membership
            assert membership is not None
            assert membership._raft is not None
            if membership._raft.is_leader:
                await membership._raft.transfer_leadership(other)
                return
        raise AssertionError("neither leads")

    def partition(self, seen_by: str = "n1") -> Partition | None:
        topic = self.member(seen_by).state.topics.get("t")
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
        await self.until(lambda: len(self.member("n1").state.nodes) == len(NAMES))
        broker = self.nodes["n1"].broker
        assert broker is not None
        await broker.create_topic("t", partitions=1)
        await self.until(lambda: self.partition() and len(self.partition().in_sync) == 3)  # type: ignore[union-attr]
        leader = self.leader()
        assert leader is not None
        for number in range(_MESSAGES):
            await self.publish(leader, b"%d" % number)
        return leader

    async def publish(self, name: str, value: bytes) -> None:
        broker = self.nodes[name].broker
        assert broker is not None
        async with asyncio.timeout(60):
            while True:
                try:
                    partition = broker.topic("t").partition(0)
                    partition.check_publish(1000)
                    view = FrameView.parse(encode_frame(Columns([value])))
                    await partition.publish(view)
                    return
                except GoqError:
                    await asyncio.sleep(0.05)

    def values(self, name: str) -> list[bytes | None]:
        broker = self.nodes[name].broker
        assert broker is not None
        reading = broker.topic("t").partition(0).read(0, messages_max=1000)
        return [v for f in reading.frames for v in f.values(0, f.header.message_count)]


def _run(path: Path, work: Callable[[_Cluster], object]) -> None:
    async def main() -> None:
        cluster = _Cluster(path)
        try:
            await work(cluster)  # type: ignore[misc]
        finally:
            await cluster.stop()

    asyncio.run(main())


def test_a_leader_that_has_lost_bits_hands_over_and_gets_them_back(tmp_path: Path) -> None:
    async def story(cluster: _Cluster) -> None:
        leader = await cluster.filled()
        log = next(cluster.folder(leader).glob("*.log"))
        data = bytearray(log.read_bytes())
        sound = bytes(data)
        data[len(data) // 2] ^= 0xFF
        log.write_bytes(data)
        with pytest.raises(GoqError, match="damaged on this node"):
            cluster.values(leader)
        await cluster.until(lambda: cluster.member(leader).repairs.repaired_frames)
        await cluster.until(lambda: (p := cluster.partition()) and p.leader and not p.damaged)
        files = sorted(cluster.folder(leader).glob("*.log"))
        assert b"".join(each.read_bytes() for each in files) == sound
        now = cluster.leader()
        assert now is not None
        await cluster.publish(now, b"after")
        assert cluster.values(now) == [*(b"%d" % n for n in range(_MESSAGES)), b"after"]

    _run(tmp_path, story)


def test_a_node_whose_folder_was_wiped_takes_no_part(tmp_path: Path) -> None:
    async def story(cluster: _Cluster) -> None:
        leader = await cluster.filled()
        others = [name for name in NAMES if name != leader]
        victim, watcher = others
        await cluster.nodes[victim].stop()
        await cluster.until(lambda: not cluster.member(watcher).state.nodes[victim].is_up)
        shutil.rmtree(cluster.path / victim)
        await cluster.start(victim)
        await cluster.hand_raft_on(leader, watcher)  # who leads anew finds out what it lacks
        await cluster.until(lambda: cluster.member(victim)._is_wiped())
        await cluster.publish(leader, b"after")
        partition = cluster.partition(leader)
        assert partition is not None
        assert victim not in partition.in_sync
        assert not cluster.member(leader).state.nodes[victim].is_up

    _run(tmp_path, story)
