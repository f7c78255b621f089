"""TLS between members: who has no certificate of the authority, or not its own, stays out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
import uvloop

from goq import limits
from goq.cluster.raft.member import RaftMember
from goq.cluster.raft.transport.link import Credentials, Link
from goq.cluster.raft.transport.tls import tls_credentials
from goq.cluster.raft.transport.transport import ConnectionTiming, SecureTransport
from goq.errors import UsageError
from tests.support.cluster.authority import SECRET, Authority, needs_openssl
from tests.support.eventually import until


def meet(dialer: Credentials, acceptor: Credentials) -> bool:
    """Let n1 dial n2 a few times; return whether they are connected."""

    async def test() -> bool:
        n2 = side("n2", RaftMember("n1=127.0.0.1:1"), acceptor)
        await n2.start()
        n1 = side("n1", RaftMember(f"n2=127.0.0.1:{n2.port}"), dialer)
        await n1.start()
        try:
            await until(lambda: (n1._links and n2._links) or n1.dialed >= 5, seconds=30)
            return bool(n1._links and n2._links)
        finally:
            n1.destroy()
            n2.destroy()
            await asyncio.sleep(0.05)  # TLS connections take a moment to be gone

    return asyncio.run(test())


class Counted(SecureTransport):
    """Counts the connections that it makes or takes."""

    dialed = 0

    def _new_link(self, peer: str) -> Link:
        self.dialed += 1
        return super()._new_link(peer)


def side(id_: str, other: RaftMember, credentials: Credentials) -> Counted:
    return Counted(
        None,
        RaftMember(id_),
        [other],
        listen=("127.0.0.1", 0),
        credentials=credentials,
        on_message=lambda: None,
        random=Random(1),
        pace=ConnectionTiming(redial_s=0.01, redial_max_s=0.05),
    )


@needs_openssl
def test_members_with_certificates_of_their_own_meet(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    n1, n2 = authority.credentials("n1"), authority.credentials("n2")
    assert meet(n1, n2)


@needs_openssl
def test_a_member_with_the_certificate_of_another_stays_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "ca")
    n2, n3 = authority.credentials("n2"), authority.credentials("n3")
    assert not meet(n3, n2)
    assert "n1 has a certificate for n3" in caplog.text


@needs_openssl
def test_a_member_that_is_dialed_must_have_its_own_certificate_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "ca")
    n1, n3 = authority.credentials("n1"), authority.credentials("n3")
    caplog.set_level("DEBUG")
    assert not meet(n1, n3)
    assert "Hostname mismatch" in caplog.text


@needs_openssl
def test_certificates_of_another_authority_and_none_at_all_open_nothing(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    n2 = authority.credentials("n2")
    forged = other.credentials("n1", trusts=authority)
    assert not meet(forged, n2)
    assert not meet(Credentials(SECRET), n2)
    assert not meet(authority.credentials("n1"), Credentials(SECRET))


def new_acceptor(folder: Path) -> Counted:
    """Return a member n2 with TLS, not started. Created in a running event loop."""
    credentials = Authority(folder / "ca").credentials("n2")
    return side("n2", RaftMember("n1=127.0.0.1:1"), credentials)


class SilentClient(asyncio.Protocol):
    """A connection that sends nothing."""

    is_closed = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True


async def silent_client(port: int) -> SilentClient:
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(SilentClient, "127.0.0.1", port)
    return client


@needs_openssl
def test_silent_clients_in_any_number_hold_few_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RAFT_HANDSHAKES_MAX", 5)
    monkeypatch.setattr(limits, "RAFT_HANDSHAKE_TIMEOUT_S", 60)

    async def test() -> None:
        acceptor = new_acceptor(tmp_path)
        await acceptor.start()
        clients = [await silent_client(acceptor.port) for _ in range(40)]
        await until(lambda: sum(client.is_closed for client in clients) == 35)
        assert len(acceptor._handshaking) == 5
        acceptor.destroy()
        await until(lambda: all(client.is_closed for client in clients))

    uvloop.run(test())


@needs_openssl
def test_a_member_that_stops_closes_connections_in_their_handshake(tmp_path: Path) -> None:
    async def test() -> None:
        acceptor = new_acceptor(tmp_path)
        await acceptor.start()
        client = await silent_client(acceptor.port)
        await until(lambda: acceptor._handshaking)
        acceptor.destroy()
        await until(lambda: client.is_closed)

    uvloop.run(test())


def test_certificates_that_are_none_are_told(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("no certificate")
    with pytest.raises(UsageError, match=r"x\.pem"):
        tls_credentials(SECRET, *[tmp_path / "x.pem"] * 3)
