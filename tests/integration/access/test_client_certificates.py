"""Client certificates, handshakes that do not end, and certificates that end soon."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from goq import Client, limits
from goq.errors import GoqError, InvalidInput, NotAllowed, UsageError
from goq.http.context import HttpLimits
from goq.http.tls.certificate_expiry import expiry_s
from tests.support.cli.command import Run
from tests.support.cluster.authority import Authority, needs_openssl
from tests.support.eventually import eventually
from tests.support.node.ports import HOST
from tests.support.node.running_node import RunningNode, running_node

pytestmark = needs_openssl
NAME = "shop.example.com"


class Site:
    """A node that takes client certificates, its authority, and the file of its administrator."""

    def __init__(self, node: RunningNode, authority: Authority) -> None:
        self.node = node
        self.authority = authority
        self.ca_file = str(authority.certificate)
        self.admin = (node.data_dir / "admin.token").read_text().strip()

    def client(self, cert: tuple[Path, Path] | None = None, token: str | None = None) -> Client:
        files = {} if cert is None else {"cert_file": str(cert[0]), "key_file": str(cert[1])}
        return Client(
            self.node.url, token=token, ca_file=self.ca_file, retries=0, connect_retries=0, **files
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    authority = Authority(tmp_path_factory.mktemp("tls") / "ca")
    cert, key = authority.sign("node", "IP:127.0.0.1")
    key.chmod(0o600)
    tls = {"cert_file": cert, "key_file": key, "client_ca_file": authority.certificate}
    with running_node(security={"auth": "tokens", "tls": tls}) as node:
        yield Site(node, authority)


def test_a_certificate_has_the_rules_of_its_token_until_that_is_revoked(
    site: Site, goq: Run
) -> None:
    flags = ("--server", site.node.url, "--ca-file", site.ca_file)
    create = ("token", "create", "shop", "--allow", "publish:orders", "--cert", NAME)
    token_id = goq(*flags, "--token", site.admin, *create).stdout.decode().strip()
    cert, key = site.authority.sign(NAME)
    with_cert = (*flags, "--cert-file", str(cert), "--key-file", str(key))
    goq(*with_cert, "produce", "orders", stdin=b"one\n")
    with site.client((cert, key)) as client:
        assert client.whoami().id == token_id
        client.publish("orders", b"two")
        with pytest.raises(NotAllowed):
            client.delete_topic("orders")
    with site.client((cert, key), token=site.admin) as client:
        assert client.whoami().name == "admin.token"
        (shown,) = [token for token in client.list_tokens() if token.id == token_id]
        assert shown.cert == NAME
        with pytest.raises(GoqError, match="no secret"):
            client.rotate_token(token_id)
        client.revoke_token(token_id)
    with site.client((cert, key)) as client, pytest.raises(NotAllowed, match=NAME):
        client.whoami()


def test_a_uri_in_the_certificate_is_a_name_of_it(site: Site) -> None:
    uri = "spiffe://example.com/billing"
    files = site.authority.sign("billing", f"URI:{uri}")
    with site.client(token=site.admin) as client:
        created = client.create_token("billing", ["read:*"], cert=uri)
        assert created.token == ""
    with site.client(files) as client:
        assert client.whoami().id == created.id


def test_certificates_of_others_and_none_are_no_tokens(site: Site, tmp_path: Path) -> None:
    with site.client(token=site.admin) as client:
        client.create_token("shop", ["admin:*"], cert="trusted.example.com")
    other = Authority(tmp_path / "other").sign("trusted.example.com")
    with site.client(other) as client, pytest.raises(GoqError):
        client.whoami()
    with site.client() as client, pytest.raises(NotAllowed, match="token"):
        client.whoami()
    unknown = site.authority.sign("unknown.example.com")
    with site.client(unknown) as client, pytest.raises(NotAllowed, match="unknown"):
        client.whoami()
    forged = site.client(token="goq_abcdefgh_cert:trusted.example.com")
    with forged as client, pytest.raises(NotAllowed):
        client.whoami()


def test_the_authorities_of_clients_follow_their_file(tmp_path: Path) -> None:
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    cert, key = first.sign("node", "IP:127.0.0.1")
    key.chmod(0o600)
    of_first, of_second = first.sign(NAME), second.sign(NAME)
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(first.certificate.read_bytes())
    tls = {"cert_file": cert, "key_file": key, "client_ca_file": trusted}
    with running_node(security={"auth": "tokens", "tls": tls}) as node:
        site = Site(node, first)
        with site.client(token=site.admin) as admin:
            admin.create_token("shop", ["publish:orders*"], cert=NAME)

        def is_known(files: tuple[Path, Path]) -> bool:
            with site.client(files) as client:
                try:
                    return client.whoami().name == "shop"
                except GoqError:
                    return False

        def reload() -> None:
            node.on_loop(lambda: node.node.reload(node.node.config))

        assert is_known(of_first)
        assert not is_known(of_second)
        trusted.write_bytes(second.certificate.read_bytes())
        reload()
        assert not is_known(of_first)  # an authority that is gone counts no more
        assert is_known(of_second)
        trusted.write_text("nothing")
        with pytest.raises(UsageError, match=r"clients\.pem"):
            reload()
        assert is_known(of_second)
        server = node.node._listeners.certificate
        assert server is not None
        trusted.write_bytes(first.certificate.read_bytes())
        node.on_loop(server.reload_if_changed)  # as it does each minute
        assert is_known(of_first)


def test_files_that_cannot_be_used_are_told(site: Site, tmp_path: Path) -> None:
    for files in ((tmp_path / "none", tmp_path / "none"), (site.authority.certificate, None)):
        with pytest.raises(InvalidInput, match="certificate"):
            site.client(files)


def test_handshakes_that_do_not_end_count_as_connections_and_time_out(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = site.node.node._listeners._server
    assert server is not None
    monkeypatch.setattr(limits, "TLS_HANDSHAKE_TIMEOUT_S", 2.0)
    monkeypatch.setattr(server._shared, "limits", HttpLimits(connections_max=20))
    with ExitStack() as stack:
        eventually(lambda: server.connection_count == 0)
        began_s = time.monotonic()
        silent = []
        for _ in range(20):
            silent.append(socket.create_connection(site.node.address, timeout=30))
            stack.callback(silent[-1].close)
        eventually(lambda: server.connection_count == 20)
        with site.client(token=site.admin) as client, pytest.raises(GoqError):
            client.whoami()
        hello = iter(client_hello())

        def has_ended_all() -> bool:  # a byte now and then gains nothing
            byte = bytes([next(hello)])
            for each in silent[:10]:
                with suppress(ConnectionError):
                    each.sendall(byte)
            return server.connection_count == 0

        eventually(has_ended_all, pause_s=0.05)
        assert time.monotonic() - began_s >= 1.9
        assert all(_has_ended(each) for each in silent)
    with site.client(token=site.admin) as client:
        assert client.whoami().auth == "tokens"


def client_hello() -> bytes:
    """Return how a client begins a handshake: over 200 bytes."""
    sent = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=HOST).do_handshake()
    return sent.read()


def _has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_refusal_reaches_the_client_while_its_body_is_still_coming(site: Site) -> None:
    context = ssl.create_default_context(cafile=site.ca_file)
    with (
        socket.create_connection(site.node.address, timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as secure,
    ):
        size = limits.BODY_BYTES_MAX + 1
        head = (
            f"POST /v1/topics/a/messages HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {size}\r\n\r\n"
        )
        secure.sendall(head.encode())
        assert secure.recv(100).startswith(b"HTTP/1.1 413 ")


def test_the_end_of_a_certificate_is_told(
    site: Site, goq: Run, caplog: pytest.LogCaptureFixture
) -> None:
    cert = site.node.node.config.security.tls
    assert cert is not None
    ends_s = expiry_s(cert.cert_file)
    assert ends_s is not None
    assert 86_400 < ends_s - time.time() <= 2 * 86_400
    flags = ("--server", site.node.url, "--ca-file", site.ca_file, "--token", site.admin)
    assert "the certificate ends" in goq(*flags, "doctor").stdout.decode()
    headers = {"Authorization": f"Bearer {site.admin}"}
    site.node.tls = ssl.create_default_context(cafile=site.ca_file)
    metrics = site.node.request("GET", "/metrics", headers=headers).body.decode()
    expiry = "goq_tls_certificate_expiry_seconds "
    (line,) = [x for x in metrics.splitlines() if x.startswith(expiry)]
    assert 86_400 < float(line.split()[-1]) <= 2 * 86_400


def test_an_expiry_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (
        b"",
        b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        b"\xff",
    ):
        path.write_bytes(content)
        assert expiry_s(path) is None
