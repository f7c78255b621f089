"""A stranger at the ports of a cluster with HTTPS and tokens: refused, and in nobody's way."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from goq import Client
from goq.errors import GoqError
from tests.support.cluster.authority import Authority, needs_openssl
from tests.support.cluster.running_cluster import NAMES, RunningCluster, new_cluster
from tests.support.eventually import eventually
from tests.support.node.ports import HOST

pytestmark = needs_openssl
SLOW_CONNECTIONS, TIMEOUT_S = 40, 20
PATIENCE_S = 120  # three nodes and their clients share a process
REQUEST = b"GET /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n"


class Site:
    """Three nodes, the authority that they trust and one that they do not."""

    def __init__(self, cluster: RunningCluster, own: Authority, foreign: Authority) -> None:
        self.cluster = cluster
        self.own = own
        self.foreign = foreign
        self.admin = (cluster.folder / "n1" / "admin.token").read_text().strip()
        self.publisher = ""

    @property
    def https_ports(self) -> list[int]:
        return [int(node.url.rpartition(":")[2]) for node in self.cluster.nodes]

    @property
    def raft_ports(self) -> list[int]:
        return [
            int(node.cluster_address.rpartition(":")[2])
            for node in self.cluster.state("n1").nodes.values()
        ]

    def client(self, **options: Any) -> Client:
        options = {"ca_file": str(self.own.certificate), **options}
        return Client(self.cluster.by_name["n1"].url, retries=0, connect_retries=0, **options)

    def open_tls(self, port: int, cert: tuple[Path, Path] | None = None) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(self.own.certificate))
        if cert is not None:
            context.load_cert_chain(*cert)
        plain = socket.create_connection((HOST, port), TIMEOUT_S)
        return context.wrap_socket(plain, server_hostname=HOST)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("attacked")
    own, foreign = Authority(folder / "own"), Authority(folder / "foreign")
    cert, key = own.sign("node", "IP:127.0.0.1")
    key.chmod(0o600)
    nodes = folder / "nodes"
    nodes.mkdir()
    with new_cluster(nodes) as cluster:
        tls = {"cert_file": cert, "key_file": key}
        tls |= {"ca_file": own.certificate, "client_ca_file": own.certificate}
        cluster.security = {"auth": "tokens", "tls": tls}
        cluster.client_tls = ssl.create_default_context(cafile=str(own.certificate))
        cluster.start_three()
        site = Site(cluster, own, foreign)
        with site.client(token=site.admin) as client:
            client.create_topic("orders", 6)
            client.create_token("shop", ["publish:orders"], cert="shop")
            site.publisher = client.create_token("load", ["publish:orders", "read:orders"]).token
        yield site


@contextmanager
def publishing(site: Site) -> Iterator[list[int]]:
    """Publish all the time; each publish has to succeed."""
    done, sent, failures = threading.Event(), list[int](), list[BaseException]()

    def publish() -> None:
        files = {"ca_file": str(site.own.certificate)}
        try:
            urls = [node.url for node in site.cluster.nodes]
            with Client(urls, token=site.publisher, retries=PATIENCE_S, **files) as client:
                while not done.is_set():
                    client.publish("orders", b"v", partition=len(sent) % 6)
                    sent.append(1)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        eventually(lambda: sent or failures)
        yield sent
        before = len(sent)
        eventually(
            lambda: len(sent) > before + 5 or failures, "publishes go on", seconds=PATIENCE_S
        )
    finally:
        done.set()
        thread.join(PATIENCE_S)
    assert failures == []


def answer_to(connection: socket.socket, data: bytes) -> bytes:
    """Send bytes and return all that comes back until the end of the connection."""
    found = b""
    connection.settimeout(TIMEOUT_S)
    with suppress(OSError):
        connection.sendall(data)
        while piece := connection.recv(65536):
            found += piece
    return found


@pytest.mark.parametrize(
    "data",
    [
        REQUEST + b"\r\n",
        b"\x16\x03\x01\xff\xff" + bytes(200),
        bytes(range(256)) * 40,
        b"\x00\x00\x00\x7f" + b"\xff" * 1000,
    ],
    ids=["http", "broken hello", "all bytes", "frame"],
)
def test_what_is_no_tls_gets_no_word_from_any_port(site: Site, data: bytes) -> None:
    with publishing(site):
        for port in site.https_ports:
            with socket.create_connection((HOST, port), TIMEOUT_S) as connection:
                found = answer_to(connection, data)
            assert not found.startswith(b"HTTP")
            assert b"goq" not in found
        for port in site.raft_ports:
            with socket.create_connection((HOST, port), TIMEOUT_S) as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                found = answer_to(connection, b"")
            assert len(found) < 200, "no more than a greeting"


def test_a_client_does_not_talk_to_nodes_of_another_authority(site: Site) -> None:
    with (
        site.client(ca_file=str(site.foreign.certificate), token=site.admin) as client,
        pytest.raises(GoqError, match=r"(?i)certificate"),
    ):
        client.list_topics()


@pytest.mark.parametrize("kind", ["foreign", "expired", "of no token"])
def test_a_certificate_that_does_not_count_opens_nothing(site: Site, kind: str) -> None:
    signer = site.foreign if kind == "foreign" else site.own
    name = "stranger" if kind == "of no token" else "shop"
    cert, key = signer.sign(name, days=0 if kind == "expired" else 2)
    if kind == "expired":
        eventually(lambda: not site.own.verifies(cert), "the certificate has expired")
    files = {"cert_file": str(cert), "key_file": str(key)}
    with publishing(site), site.client(**files) as client, pytest.raises(GoqError):
        client.publish("orders", b"stolen")
    good = dict(zip(("cert_file", "key_file"), map(str, site.own.sign("shop")), strict=True))
    with site.client(**good) as client:
        client.publish("orders", b"allowed")


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_node_is_no_proof_of_being_one(site: Site, name: str) -> None:
    forged = {
        "goq-internal-node": name,
        "goq-internal-boot": "0" * 32,
        "goq-internal-session": "0" * 32,
        "goq-internal-number": "1",
        "goq-internal-proof": "0" * 64,
        "goq-internal-principal": f"admin@{name}",
        "goq-local": "true",
    }
    lines = "".join(f"{key}: {value}\r\n" for key, value in forged.items()).encode()
    for port in site.https_ports:
        for path in (b"/v1/topics/orders", b"/internal/quotas", b"/internal/heartbeat"):
            method = b"DELETE " if path.startswith(b"/v1") else b"POST "
            head = method + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            with site.open_tls(port, site.own.sign(name)) as connection:
                found = answer_to(connection, head + lines + b"Content-Length: 0\r\n\r\n")
            assert found.split(b" ")[1] in (b"401", b"403", b"421"), found[:300]
    with site.client(token=site.admin) as client:
        assert client.describe_topic("orders").name == "orders"


def test_large_heads_and_slow_ones_and_unfinished_handshakes_hold_up_nobody(site: Site) -> None:
    with ExitStack() as stack, publishing(site) as sent:
        for port in site.https_ports:
            for number in range(SLOW_CONNECTIONS):
                if number % 2:
                    plain = socket.create_connection((HOST, port), TIMEOUT_S)
                    stack.enter_context(plain).sendall(b"\x16\x03\x01\x02")
                else:
                    slow = stack.enter_context(site.open_tls(port))
                    slow.sendall(REQUEST[: 1 + number % len(REQUEST)])
            with site.open_tls(port) as connection:
                head = REQUEST + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 900) for n in range(2000))
                found = answer_to(connection, head + b"\r\n")
            assert found == b"" or found.split(b" ")[1] in (b"400", b"431"), found[:300]
        before = len(sent)
        eventually(lambda: len(sent) > before + 20, "publishes go on", seconds=PATIENCE_S)
    eventually(lambda: all(site.cluster.state("n1").nodes[name].is_up for name in NAMES))
