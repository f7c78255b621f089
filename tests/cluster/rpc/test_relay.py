"""A node relays for nodes of its cluster alone, and never over another relay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from goq.cluster.forwarding.relay import RELAY
from goq.cluster.rpc.client import NodeConnections, RpcClient
from tests.support.cluster.running_cluster import RunningCluster, running_cluster

TOPIC = "orders"
PATH = f"/v1/topics/{TOPIC}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    """Run three nodes with a topic."""
    with running_cluster() as cluster:
        cluster.create(TOPIC, 3)
        yield cluster


def signed(
    cluster: RunningCluster, relay: str, what: str, secret: bytes | None = None
) -> dict[str, str]:
    """Return the headers of a node that has called the relay before."""
    known = cluster.cluster_node("n1").disk_id
    own = (cluster.folder / "secret").read_bytes().strip()
    client = RpcClient("n1", secret or own, NodeConnections(1), known)
    url = cluster.by_name[relay].url
    client._boots[url] = cluster.cluster_node(relay).rpc_server.boot
    return client.signed_headers(url, what, b"")


def ask(cluster: RunningCluster, headers: dict[str, str], path: str = PATH) -> tuple[int, str]:
    answer = cluster.by_name["n2"].request("GET", path, headers=headers)
    return answer.status, "" if answer.status == 200 else answer.json["code"]


def test_a_signed_request_is_relayed_once(cluster: RunningCluster) -> None:
    headers = {RELAY: "n3", **signed(cluster, "n2", f"relay n3 GET  {PATH}")}
    assert ask(cluster, headers) == (200, "")
    assert ask(cluster, headers) == (403, "not_allowed")


def test_what_no_node_signed_is_not_relayed(cluster: RunningCluster) -> None:
    assert ask(cluster, {RELAY: "n3"}) == (400, "invalid_input")
    text = f"relay n3 GET  {PATH}"
    stranger = signed(cluster, "n2", text, b"another secret of enough bytes")
    assert ask(cluster, {RELAY: "n3", **stranger}) == (403, "not_allowed")
    for other in (f"relay n1 GET  {PATH}", f"relay n3 DELETE  {PATH}", f"relay n3 GET x {PATH}"):
        headers = {RELAY: "n3", **signed(cluster, "n2", other)}
        assert ask(cluster, headers) == (403, "not_allowed")


def test_a_sender_that_missed_the_restart_of_the_relay_sends_again(cluster: RunningCluster) -> None:
    headers = {RELAY: "n3", **signed(cluster, "n3", f"relay n3 GET  {PATH}")}
    assert ask(cluster, headers) == (421, "not_leader")


def test_a_relay_to_an_unknown_node_is_refused(cluster: RunningCluster) -> None:
    headers = {RELAY: "n9", **signed(cluster, "n2", f"relay n9 GET  {PATH}")}
    assert ask(cluster, headers) == (421, "not_leader")
