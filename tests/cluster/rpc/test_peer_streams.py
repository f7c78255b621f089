"""Streams between nodes: who may open one, what goes over it, and what goes on without."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from goq import limits
from goq.cluster import cluster_node
from goq.cluster.cluster_node import ClusterNode
from goq.cluster.liveness.heartbeat import HEARTBEAT
from goq.cluster.metadata.features import PUSH_STREAMS_LEVEL
from goq.cluster.raft.transport import handshake
from goq.cluster.raft.transport.link import Link
from goq.cluster.raft.transport.peer_identity import PeerIdentity
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import PartitionKey, PartitionUpdate
from goq.cluster.replication.push.protocol import (
    PushHead,
    encode_begin,
    encode_push,
    encode_stored,
)
from goq.cluster.replication.push.sender import PushSender
from goq.cluster.rpc.peer_links import PROBE
from goq.cluster.rpc.peer_streams import PROTOCOL, STREAM_PATH, PeerStreams
from goq.cluster.rpc.replica_client import FETCH
from goq.cluster.rpc.server import RpcServer
from tests.support.cluster.running_cluster import NAMES, RunningCluster, running_cluster
from tests.support.eventually import eventually

UPGRADE = (
    f"GET {STREAM_PATH} HTTP/1.1\r\nHost: localhost\r\n"
    f"Connection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n"
).encode()


@pytest.fixture
def stored() -> Iterator[Counter[str]]:
    """Count what followers report of pushes, by follower."""
    counts: Counter[str] = Counter()
    original = PushSender.on_stored

    def on_stored(self: PushSender, *numbers: Any) -> None:
        original(self, *numbers)
        counts[self._session.node] += 1

    with patch.object(PushSender, "on_stored", on_stored):
        yield counts


def streams_of(cluster: RunningCluster) -> dict[str, frozenset[str]]:
    return {name: cluster.cluster_node(name).streams.nodes for name in cluster.running}


def are_all_connected(cluster: RunningCluster) -> bool:
    running = frozenset(cluster.running)
    return all(nodes == running - {name} for name, nodes in streams_of(cluster).items())


def publish(cluster: RunningCluster, count: int, **options: Any) -> None:
    for number in range(count):
        body = {"messages": [{"value": f"value {number}", **options}]}
        name = sorted(cluster.running)[number % len(cluster.running)]
        cluster.by_name[name].call("POST", "/v1/topics/orders/messages", body)


@contextlib.contextmanager
def calls_over_http() -> Iterator[Counter[str]]:
    """Count the calls of nodes that come over HTTP, by what they are."""
    counts: Counter[str] = Counter()
    names = {HEARTBEAT: "heartbeats", FETCH: "fetches", PROBE: "probes"}
    original = RpcServer.handle

    async def handle(self: RpcServer, path: str, *rest: Any) -> Any:
        counts[names.get(path, path)] += 1
        return await original(self, path, *rest)

    with patch.object(RpcServer, "handle", handle):
        yield counts


def abort_all(node: ClusterNode) -> None:
    for link in list(node.streams._streams.values()):
        link.abort("the test cuts it")


def test_leaders_push_over_one_stream_between_each_two_nodes(stored: Counter[str]) -> None:
    with running_cluster() as cluster:
        cluster.create("orders", partitions=3)
        eventually(lambda: are_all_connected(cluster))
        eventually(lambda: publish(cluster, 6) or stored.keys() == set(NAMES))
        assert len({id(each) for each in cluster.cluster_node("n1").streams._streams.values()}) == 2
        with calls_over_http() as over_http:
            before_s = time.monotonic()
            eventually(lambda: over_http["probes"] >= 12)  # for at least two seconds
        held_s = limits.FETCH_WAIT_RENEWED_MS / 1000
        fetches = 6 * (1 + (time.monotonic() - before_s) / held_s)
        assert not over_http["heartbeats"]
        assert over_http["fetches"] <= 2 * fetches
        assert all(
            len(partition.in_sync) == 3
            for topic in cluster.state("n1").topics.values()
            for partition in topic.partitions
        )


def test_a_stream_that_ends_is_opened_again_and_pushes_go_on(stored: Counter[str]) -> None:
    with running_cluster() as cluster:
        cluster.create("orders", partitions=3)
        for _ in range(3):
            eventually(lambda: are_all_connected(cluster))
            before = stored.total()
            eventually(lambda before=before: publish(cluster, 3) or stored.total() > before)
            cluster.on_loop("n2", abort_all)
            publish(cluster, 10)
        eventually(lambda: are_all_connected(cluster))
        cluster.stop("n3")
        eventually(lambda: are_all_connected(cluster))
        cluster.restart("n3")
        eventually(lambda: are_all_connected(cluster))


def test_a_node_that_is_away_for_long_is_dialed_about_once_a_second() -> None:
    async def dial(_url: str, _create_link: object) -> None:
        raise OSError("nothing listens")

    async def test() -> None:
        unused: Any = None
        identity = PeerIdentity("disk")
        found = PeerStreams("n1", "disk", bytes(32), identity, unused, unused, unused, dial)
        for _ in range(20):
            await found._connect("n2", "http://n2")
        assert found._next_dial_s["n2"] - asyncio.get_running_loop().time() <= 1

    asyncio.run(test())


def test_a_node_that_stood_still_ends_no_stream_before_it_has_read() -> None:
    def stand_still(node: ClusterNode) -> None:
        for link in node.streams._streams.values():
            link.received_s -= 60
        node.streams._check()

    with running_cluster() as cluster:
        eventually(lambda: are_all_connected(cluster))
        before = streams(cluster)
        cluster.on_loop("n1", stand_still)
        eventually(lambda: all(link.received_s > link.sent_s - 5 for link in before))
        assert streams(cluster) == before


def test_below_its_feature_level_there_are_no_streams_and_followers_fetch(
    stored: Counter[str],
) -> None:
    with (
        patch.object(cluster_node, "OWN_LEVEL", PUSH_STREAMS_LEVEL - 1),
        running_cluster() as cluster,
    ):
        cluster.create("orders", partitions=3)
        eventually(lambda: cluster.state("n1").features.level == PUSH_STREAMS_LEVEL - 1)
        publish(cluster, 20)
        time.sleep(3 * limits.PUSH_STREAM_CHECK_S)  # in which they would be dialed
        publish(cluster, 20)
        assert set(streams_of(cluster).values()) == {frozenset()}
        assert not stored


def streams(cluster: RunningCluster) -> list[Link]:
    """Return the streams of ``n1``."""
    return list(cluster.cluster_node("n1").streams._streams.values())


def write_raw(data: bytes) -> Callable[[ClusterNode], None]:
    """Return what writes bytes into the streams of a node, beside their frames, and ends them."""

    def write(node: ClusterNode) -> None:
        for link in list(node.streams._streams.values()):
            assert link._transport is not None
            link._transport.write(data)
            link._transport.close()

    return write


def write_sealed(data: bytes) -> Callable[[ClusterNode], None]:
    """Return what sends bytes as a message over the streams of a node."""

    def write(node: ClusterNode) -> None:
        for link in list(node.streams._streams.values()):
            assert link.send(data)

    return write


def test_what_is_no_message_ends_a_stream_and_nothing_that_is_stored_changes(
    stored: Counter[str],
) -> None:
    update = PartitionUpdate(PartitionKey("orders", 1, 0), 9, LogOffsets(0, 0), None, None)
    head = PushHead(2**40, 1, 0, [update])
    with running_cluster() as cluster:
        cluster.create("orders", partitions=3)
        published = 0
        for hostile, ends in (
            (write_raw(bytes.fromhex("00000400") + b"the begin of a frame"), True),
            (write_raw(b"\xff" * 4096), True),
            (write_sealed(b"garbage"), True),
            (write_sealed(b"\x03" + b"\xff" * 40), True),
            (write_sealed(b"".join(encode_push(head, []))), False),
            (write_sealed(encode_stored(2**40, 1)), False),
            (write_sealed(encode_begin(2**40)), False),
        ):
            eventually(lambda: are_all_connected(cluster))
            before = streams(cluster)
            counted = stored.total()
            cluster.on_loop("n2", hostile)
            publish(cluster, 3)
            published += 3
            if ends:
                eventually(lambda before=before: streams(cluster) != before)
            eventually(lambda: are_all_connected(cluster))
            eventually(lambda counted=counted: stored.total() > counted)
        shown = cluster.by_name["n1"].call("GET", "/v1/topics/orders")["partitions"]
        assert sum(partition["end_offset"] for partition in shown) == published


def test_the_node_with_the_larger_id_dials_where_only_it_can(stored: Counter[str]) -> None:
    original = PeerStreams._connect

    async def connect(self: PeerStreams, node: str, url: str) -> None:
        await original(self, node, url if node < self._name else "http://127.0.0.1:1")

    with (
        patch.object(PeerStreams, "_connect", connect),
        patch.object(limits, "PUSH_STREAM_PATIENCE_S", 0.1),
        running_cluster() as cluster,
    ):
        cluster.create("orders", partitions=3)
        eventually(lambda: are_all_connected(cluster))
        eventually(lambda: publish(cluster, 6) or stored.keys() == set(NAMES))


def upgraded(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address, 10)
    connection.sendall(UPGRADE)
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += connection.recv(1)
    assert answer.startswith(b"HTTP/1.1 101 Switching Protocols\r\n"), answer
    return connection


def is_closed(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True


def test_a_stranger_gets_no_stream_and_disturbs_none(stored: Counter[str]) -> None:
    with running_cluster() as cluster:
        cluster.create("orders", partitions=3)
        eventually(lambda: are_all_connected(cluster))
        node = cluster.by_name["n2"]
        host, _, port = node.url.removeprefix("http://").rpartition(":")
        address = host, int(port)
        before = dict(cluster.cluster_node("n2").streams._streams)
        hello = handshake.pack_hello(os.urandom(32), "n1", "n2", "a disk")
        unknown = handshake.pack_hello(os.urandom(32), "n9", "n2", "a disk")
        for opening in (
            os.urandom(64),
            b"\xff" * 64,
            handshake.plain_frame(unknown),
            handshake.plain_frame(hello) + handshake.plain_frame(os.urandom(32)),
            handshake.plain_frame(hello) + handshake.plain_frame(b""),
        ):
            with upgraded(address) as connection:
                connection.sendall(opening)
                assert is_closed(connection), opening
        with upgraded(address) as silent:
            assert is_closed(silent)  # after limits.RAFT_HANDSHAKE_TIMEOUT_S
        assert cluster.cluster_node("n2").streams._streams == before
        eventually(lambda: publish(cluster, 3) or stored)


def test_only_the_protocol_of_streams_may_be_upgraded_to() -> None:
    with running_cluster() as cluster:
        host, _, port = cluster.by_name["n1"].url.removeprefix("http://").rpartition(":")
        for request in (
            UPGRADE.replace(PROTOCOL.encode(), b"websocket"),
            UPGRADE.replace(b"GET", b"POST"),
            UPGRADE.replace(b"Upgrade: goq", b"Content-Length: 3\r\nUpgrade: goq") + b"abc",
        ):
            with socket.create_connection((host, int(port)), 10) as connection:
                connection.sendall(request)
                assert connection.recv(4096).startswith(b"HTTP/1.1 400 "), request
