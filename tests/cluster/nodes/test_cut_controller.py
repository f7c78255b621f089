"""A controller that is cut off from the calls of the others, or stands still, hands over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from goq.cluster.cluster_node import ClusterNode
from goq.cluster.rpc.client import RpcClient
from goq.cluster.rpc.peer_streams import PeerStreams
from goq.errors import Unavailable
from goq.http.client.response_reader import WholeResponse
from tests.support.cluster.running_cluster import NAMES, RunningCluster, running_cluster
from tests.support.eventually import WAIT_S_MAX, eventually


@contextmanager
def http_cut(cluster: RunningCluster, cut: str) -> Iterator[None]:
    """Cut calls and streams between one node and all others; Raft and clients stay."""
    original = RpcClient._send
    url = cluster.by_name[cut].url

    async def send(self: RpcClient, to: str, path: str, *rest: Any) -> tuple[Any, WholeResponse]:
        if (self._name == cut) != (to == url):
            raise Unavailable(f"the node at {to} does not answer: cut")
        return await original(self, to, path, *rest)

    def is_dialer_allowed(self: PeerStreams, peer: str) -> bool:
        return cut not in (self._name, peer) and is_allowed(self, peer)

    def end_streams(node: ClusterNode) -> None:
        under_way = node.streams._handshaking  # those may have been allowed before the cut
        for link in [*node.streams._streams.values(), *under_way]:
            link.abort("cut")

    is_allowed = PeerStreams.is_dialer_allowed
    patch = pytest.MonkeyPatch()
    patch.setattr(RpcClient, "_send", send)
    patch.setattr(PeerStreams, "is_dialer_allowed", is_dialer_allowed)
    cluster.on_loop(cut, end_streams)
    try:
        yield
    finally:
        patch.undo()


def controller(cluster: RunningCluster) -> str | None:
    node = cluster.nodes[0]
    found: str | None = node.call("GET", "/v1/cluster")["controller"]
    return found


def publish(cluster: RunningCluster, through: str) -> int:
    """Publish one message to each partition; return how many were stored."""
    messages = [{"value": f"{through} {n}", "partition": n} for n in range(6)]
    body = {"messages": messages}
    answer = cluster.by_name[through].request("POST", "/v1/topics/orders/messages", body)
    return 6 if answer.status == 200 else 0


def up(cluster: RunningCluster, by: str) -> set[str]:
    return {name for name, status in cluster.statuses(by).items() if status == "up"}


def test_a_cut_off_controller_is_the_one_that_is_fenced() -> None:
    with running_cluster() as cluster:
        cluster.create("orders", 6)
        eventually(lambda: publish(cluster, "n1") == 6)
        deaf = controller(cluster)
        assert deaf is not None
        others = [name for name in NAMES if name != deaf]
        with http_cut(cluster, deaf):
            eventually(lambda: up(cluster, others[0]) == set(others), pause_s=0.05)
            assert controller(cluster) in others
            for name in others:
                eventually(lambda name=name: publish(cluster, name) == 6, pause_s=0.05)
        eventually(lambda: up(cluster, others[0]) == set(NAMES))


def test_a_controller_whose_event_loop_stands_hands_over() -> None:
    with running_cluster() as cluster:
        eventually(lambda: controller(cluster) is not None)
        standing = controller(cluster)
        assert standing is not None
        node = cluster.by_name[standing]
        loop = node.on_loop(asyncio.get_running_loop)
        other = next(n for name, n in cluster.by_name.items() if name != standing)

        def leader() -> str | None:
            assert other.node.cluster is not None
            return other.node.cluster.raft.status.leader

        assert leader() == standing
        goes_on = threading.Event()
        loop.call_soon_threadsafe(goes_on.wait, 2 * WAIT_S_MAX)
        try:
            eventually(lambda: leader() not in (None, standing), "before it goes on")
        finally:
            goes_on.set()
        eventually(lambda: up(cluster, standing) == set(NAMES))
