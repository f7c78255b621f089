"""HTTPS in a cluster: between nodes and for clients, never mixed with HTTP but for a roll-over."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from goq import Client
from goq.cluster.rpc.client import NodeConnections
from goq.errors import UsageError
from goq.http.client.errors import ConnectError
from goq.http.client.http1 import ClientRequest, RequestTimeouts, encode_head, parse_url
from tests.support.cli.command import Run
from tests.support.cluster.authority import Authority, needs_openssl
from tests.support.cluster.running_cluster import NAMES, RunningCluster, new_cluster
from tests.support.cluster.wire_tap import WireTap, wire_tap
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer
from tests.support.node.ports import HOST, free_port

pytestmark = needs_openssl
MARKER = b"marker-of-a-value"
COUNT = 10_000


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def cluster(authority: Authority, tmp_path: Path) -> Iterator[RunningCluster]:
    """A cluster whose nodes get TLS, without nodes yet."""
    folder = tmp_path / "nodes"
    folder.mkdir()
    cert, key = authority.sign("node", "IP:127.0.0.1")
    key.chmod(0o600)
    with new_cluster(folder) as cluster:
        tls = {"cert_file": cert, "key_file": key, "ca_file": authority.certificate}
        cluster.security = {"tls": tls}
        cluster.client_tls = ssl.create_default_context(cafile=str(authority.certificate))
        yield cluster


def start_tapped(cluster: RunningCluster, stack: ExitStack, scheme: str) -> list[WireTap]:
    """Start three nodes that reach each other over taps."""
    taps = []
    for name in NAMES:
        port = free_port()
        cluster.listen_at(name, f"{HOST}:{port}")
        taps.append(stack.enter_context(wire_tap(port, MARKER)))
        cluster.more[name] = {"advertise": f"{scheme}://{HOST}:{taps[-1].port}"}
    cluster.start_three()
    return taps


def replicate(cluster: RunningCluster) -> None:
    """Publish markers at the first node, and read all of them at the third."""
    cluster.create("orders", partitions=6)
    values = [{"value": f"{MARKER.decode()} {n}", "partition": n % 6} for n in range(COUNT)]
    for first in range(0, COUNT, 1000):
        body = {"messages": values[first : first + 1000]}
        cluster.by_name["n1"].call("POST", "/v1/topics/orders/messages", body)

    def high_watermarks(name: str) -> int:
        shown = cluster.by_name[name].call("GET", "/v1/topics/orders")["partitions"]
        return sum(partition["high_watermark"] for partition in shown)

    eventually(lambda: high_watermarks("n3") >= COUNT)
    for number in range(6):
        path = f"/v1/topics/orders/messages?partition={number}&limit=1"
        assert cluster.by_name["n3"].call("GET", path)["messages"]


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_nothing_is_in_clear_between_nodes_while_messages_replicate(
    cluster: RunningCluster, scheme: str
) -> None:
    if scheme == "http":  # the tap sees what is in clear
        cluster.security = {}
    with ExitStack() as stack:
        taps = start_tapped(cluster, stack, scheme)
        replicate(cluster)
        assert sum(tap.bytes_passed for tap in taps) > COUNT
        markers = sum(tap.markers for tap in taps)
        assert (markers == 0) if scheme == "https" else (markers > 0)
        cluster.stop_at_once()


def test_clients_speak_https_to_all_nodes(
    cluster: RunningCluster, authority: Authority, goq: Run
) -> None:
    cluster.start_three()
    urls = [node.url for node in cluster.nodes]
    assert all(url.startswith("https://") for url in urls)
    with Client(urls[0], ca_file=str(authority.certificate)) as client:
        client.create_topic("orders", 6)
        for n in range(60):
            client.publish("orders", b"v", partition=n % 6)
        found = 0
        while found < 60:
            for message in client.receive("orders", group="g", max_messages=60, wait="20s"):
                message.ack()
                found += 1
    nodes = cluster.by_name["n1"].call("GET", "/v1/cluster")["nodes"]
    assert sorted(node["url"] for node in nodes) == sorted(urls)
    given = ("--server", urls[0], "--ca-file", str(authority.certificate))
    told = goq("cluster", "join", *given).stdout.decode()
    assert "--set security.tls.cert_file=FILE --set security.tls.key_file=FILE \\\n" in told
    assert "security.auth" not in told


def is_up(cluster: RunningCluster, seen_by: str, name: str) -> bool:
    node = cluster.state(seen_by).nodes.get(name)
    return node is not None and node.is_up and node.http_url == cluster.by_name[name].url


def test_a_node_without_tls_takes_no_part_until_it_has_some(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    tls, plain = cluster.security, {"allow_open": True}
    cluster.start_peer("n1")
    cluster.start_peer("n2")
    cluster.until(lambda: is_up(cluster, "n1", "n2"))
    cluster.security = plain
    cluster.start_peer("n3")
    eventually(lambda: "cluster.tls_rollover" in caplog.text)
    assert not is_up(cluster, "n1", "n3")
    cluster.stop("n3")
    cluster.security = tls
    cluster.restart("n3")
    cluster.until(lambda: is_up(cluster, "n1", "n3"))


def test_a_cluster_gets_tls_by_a_roll_over_without_a_lost_message(
    cluster: RunningCluster,
) -> None:
    tls = cluster.security
    cluster.security = {}
    cluster.start_three()
    cluster.create("orders", partitions=6, **{"retention.age": "1d"})
    cluster.security = tls
    published = 0

    def publish(name: str) -> None:
        nonlocal published

        def answer() -> Answer:
            body = {
                "messages": [
                    {"value": "v", "partition": n, "dedup_id": f"{published}-{n}"} for n in range(6)
                ]
            }
            return cluster.by_name[name].request("POST", "/v1/topics/orders/messages", body)

        eventually(lambda: answer().status == 200)
        published += 6

    for step in ("prepare", "switch", "off"):
        for name in NAMES:
            others = [other for other in NAMES if other != name]
            cluster.stop(name)
            publish(others[0])
            cluster.more[name] = {"tls_rollover": step}
            cluster.restart(name)
            for each in others:
                cluster.until(lambda each=each, name=name: is_up(cluster, each, name))
            publish(name)
            publish(others[1])
    assert all(node.url.startswith("https://") for node in cluster.nodes)

    def messages() -> int:
        shown = cluster.by_name["n2"].call("GET", "/v1/topics/orders")["partitions"]
        return sum(partition["high_watermark"] for partition in shown)

    eventually(lambda: messages() == published)


def test_a_cluster_that_was_stopped_starts_with_tls(cluster: RunningCluster) -> None:
    tls = cluster.security
    cluster.security = {}
    cluster.start_three()
    cluster.create("orders")
    cluster.stop_at_once()
    cluster.security = tls
    for name in NAMES:
        cluster.restart(name)
    cluster.until(lambda: all(is_up(cluster, "n1", name) for name in NAMES))


def test_nodes_trust_the_authorities_that_are_in_the_file_now(
    cluster: RunningCluster, authority: Authority, tmp_path: Path
) -> None:
    other, trusted = Authority(tmp_path / "other"), tmp_path / "trusted.pem"
    trusted.write_bytes(authority.certificate.read_bytes())
    cluster.security["tls"]["ca_file"] = trusted
    node = cluster.start("n1")
    bootstrap = node.node._bootstrap
    assert bootstrap is not None
    connections = NodeConnections(1, bootstrap._tls)

    async def call() -> int:
        """Return the status that a node answers on a connection of its own."""
        url = parse_url(node.url)
        head = encode_head("GET", url, b"/livez", [(b"Connection", b"close")])
        request = ClientRequest("GET", url, head, b"", RequestTimeouts())
        return (await connections.transport(node.url).fetch(request)).status

    def reload(text: bytes) -> None:
        trusted.write_bytes(text)
        node.on_loop(lambda: node.node.reload(node.node.config))

    assert node.on_loop(call) == 200
    reload(other.certificate.read_bytes())
    with pytest.raises(ConnectError, match=r"(?i)certificate"):
        node.on_loop(call)
    with pytest.raises(UsageError, match="authorities"):
        reload(b"nothing")
    reload(other.certificate.read_bytes() + authority.certificate.read_bytes())
    assert node.on_loop(call) == 200


def test_settings_that_contradict_each_other_are_refused(cluster: RunningCluster) -> None:
    for more, security in (
        ({"advertise": "http://127.0.0.1:1"}, cluster.security),
        ({"tls_rollover": "switch"}, {}),
    ):
        cluster.more["n1"], cluster.security = more, security
        with pytest.raises((UsageError, ValueError), match="cluster"):
            cluster.start_peer("n1")
