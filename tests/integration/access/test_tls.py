"""HTTPS: what is spoken and verified, certificates replaced under load, and refusals."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from shutil import copyfile

import pytest

from goq import AsyncClient, Client, limits
from goq.errors import GoqError, UsageError
from tests.support.cli.command import Run
from tests.support.cluster.authority import Authority, needs_openssl
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node

pytestmark = needs_openssl


class Site:
    """A node with a certificate, and the files of its authority."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.node: RunningNode
        self.install("first")

    def install(self, name: str) -> None:
        """Put another certificate for this machine in place."""
        folder = self.authority.folder
        self.authority.sign(name)
        (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
        arguments = ["x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"]
        arguments += ["-CAcreateserial", "-days", "2", "-extfile", "san", "-out", f"{name}.pem"]
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
        copyfile(folder / f"{name}.key", self.key)
        self.key.chmod(0o600)
        copyfile(folder / f"{name}.pem", self.cert)

    @property
    def ca_file(self) -> str:
        return str(self.authority.certificate)

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.node.url.removeprefix("https://").rpartition(":")
        return host, int(port)

    def reload(self) -> None:
        config = self.node.node.config
        self.node.on_loop(lambda: self.node.node.reload(config))

    def served(self) -> str:
        """Return the subject of the certificate that a handshake gets."""
        context = ssl.create_default_context(cafile=self.ca_file)
        with (
            socket.create_connection(self.address, timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            found = secure.getpeercert()
            assert found is not None
            return str(dict(pair[0] for pair in found["subject"])["commonName"])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    tls = {"cert_file": site.cert, "key_file": site.key}
    with running_node(security={"tls": tls}) as node:
        site.node = node
        yield site


def test_the_client_for_asyncio_and_the_command_line_speak_https(site: Site, goq: Run) -> None:
    async def consume() -> bytes | None:
        async with AsyncClient(site.node.url, ca_file=site.ca_file) as client:
            await client.publish("orders", b"one")
            async for message in client.consume("orders", group="g"):
                await message.ack()
                return message.value
        return None

    assert site.node.url.startswith("https://")
    assert asyncio.run(consume()) == b"one"
    flags = ("--server", site.node.url, "--ca-file", site.ca_file)
    goq(*flags, "produce", "orders", stdin=b"two\n")
    assert goq(*flags, "consume", "orders", "--group", "g", "--max", "1").stdout == b"two\n"


def test_the_blocking_client_speaks_https(site: Site) -> None:
    with Client(site.node.url, ca_file=site.ca_file) as client:
        client.publish("orders", b"one")
        (message, *_) = client.receive("orders", group="g", wait="20s")
        message.ack()


def test_a_server_that_the_authority_did_not_sign_is_not_trusted(
    site: Site, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    for ca_file in (None, str(other.certificate)):
        with (
            Client(site.node.url, ca_file=ca_file, retries=0, connect_retries=0) as client,
            pytest.raises(GoqError, match=r"certificate.*; --ca-file names its authority"),
        ):
            client.get_version()
    by_name = f"https://localhost:{site.address[1]}"  # which the certificate does not have
    with (
        Client(by_name, ca_file=site.ca_file, retries=0, connect_retries=0) as client,
        pytest.raises(GoqError, match=r"(?i)certificate|hostname"),
    ):
        client.get_version()


def test_a_server_that_speaks_no_https_is_told_with_its_url_for_http() -> None:
    async def ask(url: str) -> None:
        async with AsyncClient(url, retries=0, connect_retries=0) as client:
            await client.get_version()

    with running_node() as node:
        encrypted = node.url.replace("http://", "https://")
        expected = f"if it speaks HTTP, it is {node.url}"
        with (
            Client(encrypted, retries=0, connect_retries=0) as client,
            pytest.raises(GoqError, match=expected),
        ):
            client.get_version()
        with pytest.raises(GoqError, match=expected):
            asyncio.run(ask(encrypted))


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")  # asks for TLS 1.1
def test_neither_plain_http_nor_old_tls_is_spoken(site: Site) -> None:
    with socket.create_connection(site.address, timeout=30) as plain:
        plain.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP")
    plain_url = site.node.url.replace("https", "http")
    with (
        Client(plain_url) as client,
        pytest.raises(GoqError, match=f"if it speaks HTTPS, it is {site.node.url}"),
    ):
        client.list_topics()
    versions = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2
    for version in versions:
        context = ssl.create_default_context(cafile=site.ca_file)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, version
        with socket.create_connection(site.address, timeout=30) as plain:
            try:
                context.wrap_socket(plain, server_hostname="127.0.0.1").close()
            except (ssl.SSLError, ConnectionError):
                assert version is versions[0]
            else:
                assert version is versions[1]


def test_a_certificate_is_replaced_under_load_without_a_failed_request(site: Site) -> None:
    is_over = threading.Event()
    done: list[int] = []
    failures: list[BaseException] = []
    context = ssl.create_default_context(cafile=site.ca_file)

    def ask(*, is_kept: bool) -> None:
        connection = HTTPSConnection(*site.address, timeout=30, context=context)
        try:
            while not is_over.is_set():
                connection.request("GET", "/livez")
                response = connection.getresponse()
                response.read()
                done.append(response.status)
                if not is_kept:
                    connection.close()
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=ask, kwargs={"is_kept": n % 2 == 0}) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        for name in ("second", "third"):
            site.install(name)
            site.reload()
            before = len(done)
            eventually(lambda seen=before: len(done) > seen + 50)
            assert site.served() == name
    finally:
        is_over.set()
        for thread in threads:
            thread.join(30)
    assert failures == []
    assert set(done) == {200}


def test_a_pair_that_does_not_match_keeps_the_one_before(site: Site) -> None:
    site.authority.sign("stranger")
    copyfile(site.authority.folder / "stranger.key", site.key)
    with pytest.raises(UsageError, match="certificate"):
        site.reload()
    assert site.served() == "first"
    site.install("second")
    copyfile(site.authority.folder / "stranger.pem", site.cert)
    with pytest.raises(UsageError, match="certificate"):
        site.reload()
    assert site.served() == "first"
    site.key.write_text("no key")
    with pytest.raises(UsageError, match="certificate"):
        site.reload()
    assert site.served() == "first"
    site.install("third")
    site.reload()
    assert site.served() == "third"


def test_a_change_of_the_files_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CERTIFICATE_CHECK_S", 0.05)
    site = Site(tmp_path)
    tls = {"cert_file": site.cert, "key_file": site.key}
    with running_node(security={"tls": tls}) as site.node:
        site.install("second")
        eventually(lambda: site.served() == "second")


def test_a_refusal_reaches_a_client_that_still_sends(site: Site) -> None:
    context = ssl.create_default_context(cafile=site.ca_file)
    with (
        socket.create_connection(site.address, timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        size = limits.BODY_BYTES_MAX + 1
        lines = ("POST /v1/topics/t/messages HTTP/1.1", "Host: [::1]", f"Content-Length: {size}")
        head = "".join(f"{line}\r\n" for line in (*lines, ""))
        secure.sendall(head.encode())
        for _ in range(16):
            secure.sendall(bytes(65_536))
        assert secure.recv(100).startswith(b"HTTP/1.1 413")


def test_a_client_that_begins_no_handshake_holds_up_nobody(site: Site) -> None:
    waiting = [socket.create_connection(site.address, timeout=30) for _ in range(20)]
    try:
        assert site.served() == "first"
        for each in waiting:
            assert each.recv(1) == b""  # the node gives up, after its bound of 5 s
    finally:
        for each in waiting:
            each.close()


def test_a_start_without_a_usable_pair_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.cert.write_text("nothing")
    tls = {"cert_file": site.cert, "key_file": site.key}
    with pytest.raises(UsageError, match="certificate"), running_node(security={"tls": tls}):
        pass
    site.key.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"), running_node(security={"tls": tls}):
        pass
