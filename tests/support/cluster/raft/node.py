"""A Raft node alone: its clock, its disk and what it sends are in a test's hands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pysyncobj.syncobj
from pysyncobj import SyncObj, SyncObjConf, SyncObjConsumer, replicated
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from goq.cluster.raft.pysyncobj.hardened_sync_obj import HardenedSyncObj
from goq.cluster.raft.state_machine.state_machine import Proposal
from goq.storage.disk import Disk
from tests.support.storage.disk import SimulatedDisk

FOLDER = Path("/raft")


def raft_conf(**settings: Any) -> SyncObjConf:
    return SyncObjConf(
        autoTick=False,
        appendEntriesUseBatch=False,
        appendEntriesPeriod=0.05,
        raftMinTimeout=0.3,
        raftMaxTimeout=0.6,
        connectionTimeout=2.0,
        leaderFallbackTimeout=0.9,
        commandsWaitLeader=False,
        useFork=False,
        dynamicMembershipChange=True,
        **settings,
    )


class Told(Transport):
    """Keeps what the node sends, and hands it messages."""

    def __init__(self, sync_obj: object, self_node: Node, other_nodes: set[Node]) -> None:
        super().__init__(sync_obj, self_node, other_nodes)
        self.peers = {node.id: node for node in other_nodes}
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self.sent.append((node.id, message))
        return True

    def addNode(self, node: Node) -> None:
        self.peers[node.id] = node

    def dropNode(self, node: Node) -> None:
        self.peers.pop(node.id, None)

    def tell(self, peer: str, message: dict[str, Any]) -> None:
        self._onMessageReceived(self.peers[peer], message)

    def connect(self) -> None:
        for node in self.peers.values():
            self._onNodeConnected(node)

    def last(self, kind: str) -> dict[str, Any]:
        return [message for _, message in self.sent if message["type"] == kind][-1]


def transport_of(node: SyncObj) -> Told:
    return node._SyncObj__transport


class Words:
    """A machine that remembers all commands, and keeps them when it is told to."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.words: list[Any] = []
        self.index = 0
        if "words" in disk.names(FOLDER):
            self.restore(FOLDER / "words")

    @property
    def applied_index(self) -> int:
        return self.index

    def apply(self, request: Proposal, index: int) -> int:
        if request.command == "poison":
            raise ValueError("no machine can apply this")
        self.index = index
        self.words.append(request.command)
        return len(self.words)

    def flush(self, index: int) -> None:
        self.index = max(self.index, index)
        self.snapshot(FOLDER / "words")

    def snapshot(self, path: Path) -> None:
        self._disk.replace(path, json.dumps([self.index, self.words]).encode())

    feature_level = 1

    @property
    def digest(self) -> bytes | None:
        return blake2b(json.dumps(self.words).encode(), digest_size=16).digest()

    def restore(self, path: Path, *, is_diverged: bool = False) -> None:
        data = self._disk.read(path, 0, self._disk.size(path))
        self.index, self.words = json.loads(bytes(data))


def hardened(self_id: str, others: list[str], disk: Disk, **settings: Any) -> HardenedSyncObj:
    machine = settings.pop("machine", None) or Words(disk)
    node = HardenedSyncObj(
        self_id,
        others,
        raft_conf(**settings),
        disk=disk,
        folder=FOLDER,
        machine=machine,
        transport_class=Told,
        request_ids=Random(settings.get("seed", 1)),
    )
    transport_of(node).connect()
    return node


class StockWords(SyncObjConsumer):
    """The same machine as the library takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[Any] = []

    @replicated
    def apply(self, command: Any) -> int:
        if command == "poison":
            raise ValueError("no machine can apply this")
        self.words.append(command)
        return len(self.words)


def stock(self_id: str, others: list[str], **settings: Any) -> tuple[SyncObj, StockWords]:
    words = StockWords()
    node = SyncObj(
        Node(self_id),
        [Node(other) for other in others],
        conf=raft_conf(**settings),
        consumers=[words],
        nodeClass=Node,
        transportClass=Told,
    )
    transport_of(node).connect()
    return node, words


def without_power(disk: SimulatedDisk) -> SimulatedDisk:
    """Return a disk with only what is durable on this one."""
    other = disk.copy()
    for path, inode in disk._inodes.items():
        other.put(Path(path), bytes(inode.stable))
    return other


class ManualTime:
    """The library's clock, which stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def tick(self, node: SyncObj, count: int = 1, step_s: float = 0.06) -> None:
        for _ in range(count):
            self.now_s += step_s
            node.doTick()


@contextmanager
def manual_time() -> Iterator[ManualTime]:
    time = ManualTime()
    with patch.object(pysyncobj.syncobj, "monotonicTime", lambda: time.now_s):
        yield time


def elect(node: SyncObj, time: ManualTime) -> None:
    """Let the node stand for election, and have the vote of everyone."""
    time.tick(node, 15)
    for kind, later in (("response_pre_vote", 1), ("response_vote", 0)):
        term = node.raftCurrentTerm + later
        for peer in transport_of(node).peers:
            transport_of(node).tell(peer, {"type": kind, "term": term})
    assert node._isLeader()


def entries(first: int, last: int, term: int) -> list[tuple[bytes, int, int]]:
    """Return entries that do nothing."""
    return [(b"\x01", index, term) for index in range(first, last + 1)]


def append_entries(
    previous: tuple[int, int], new: list[tuple[bytes, int, int]], *, term: int, commit: int
) -> dict[str, Any]:
    return {
        "type": "append_entries",
        "term": term,
        "commit_index": commit,
        "round": 0,
        "prevLogIdx": previous[0],
        "prevLogTerm": previous[1],
        "entries": new,
    }


def next_index(index: int, *, term: int, success: bool = True) -> dict[str, Any]:
    return {
        "type": "next_node_idx",
        "term": term,
        "round": 0,
        "next_node_idx": index,
        "success": success,
    }


def deliver(nodes: dict[str, SyncObj]) -> int:
    """Hand every message that was sent to whom it is for, if it is there; return how many."""
    count = 0
    for self_id, node in nodes.items():
        told = transport_of(node)
        sent, told.sent = told.sent, []
        for peer, message in sent:
            if peer in nodes:
                transport_of(nodes[peer]).tell(self_id, dict(message))
                count += 1
    return count


def live(nodes: dict[str, SyncObj], time: ManualTime, rounds: int, step_s: float = 0.01) -> None:
    """Let nodes tick and talk for a while."""
    for _ in range(rounds):
        time.now_s += step_s
        for node in nodes.values():
            node.doTick()
        deliver(nodes)
