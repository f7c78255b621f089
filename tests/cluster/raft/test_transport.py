"""Connections between members: who is let in, what is believed, and what strangers can do."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import pickle
import struct
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from goq import limits
from goq.cluster.raft import codec
from goq.cluster.raft.member import RaftMember
from goq.cluster.raft.transport import handshake, link
from goq.cluster.raft.transport.link import STRANGERS_LOG_S, Credentials
from goq.cluster.raft.transport.peer_identity import OTHER_DISK, PeerIdentity
from goq.cluster.raft.transport.transport import ConnectionTiming, SecureTransport
from goq.errors import InvalidInput
from tests.support.cluster.replication.loop import run_simulated
from tests.support.eventually import until

SECRET = b"a secret of the cluster"
QUICK = ConnectionTiming(
    check_interval_s=0.02, idle_timeout_s=1.0, redial_s=0.01, redial_max_s=0.05
)
VOTE = {"type": "response_vote", "term": 3}


class End:
    """A member's side: its transport, and what came."""

    def __init__(
        self, id_: str, others: list[RaftMember], secret: bytes, pace: ConnectionTiming
    ) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.connected: list[str] = []
        self.transport = SecureTransport(
            None,
            RaftMember(id_),
            others,
            listen=("127.0.0.1", 0),
            credentials=Credentials(secret),
            on_message=lambda: None,
            random=Random(1),
            pace=pace,
        )
        came, here = self.messages.append, self.connected
        self.transport.setOnMessageReceivedCallback(lambda node, message: came((node.id, message)))
        self.transport.setOnNodeConnectedCallback(lambda node: here.append(node.id))
        self.transport.setOnNodeDisconnectedCallback(lambda node: here.remove(node.id))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.transport.port}"


@asynccontextmanager
async def acceptor(pace: ConnectionTiming = QUICK) -> AsyncIterator[End]:
    """Run a member n2 that n1 dials."""
    end = End("n2", [RaftMember("n1=127.0.0.1:1")], SECRET, pace)
    await end.transport.start()
    try:
        yield end
    finally:
        end.transport.destroy()
        await asyncio.sleep(0)


@asynccontextmanager
async def dialer(
    to: str, secret: bytes = SECRET, pace: ConnectionTiming = QUICK
) -> AsyncIterator[End]:
    end = End("n1", [RaftMember(f"n2={to}")], secret, pace)
    await end.transport.start()
    try:
        yield end
    finally:
        end.transport.destroy()
        await asyncio.sleep(0)


def run(test: Awaitable[None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await test

    asyncio.run(main())


class Stranger:
    """Whoever can reach the port: speaks the protocol as far as it wants to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sealer: handshake.FrameSealer | None = None

    @classmethod
    async def dial(cls, end: End) -> Stranger:
        return cls(*await asyncio.open_connection("127.0.0.1", end.transport.port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self) -> bytes:
        (size,) = struct.unpack("<I", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def hello(self, dialer: str = "n1", acceptor: str = "n2", disk: str = "") -> bytes:
        hello = handshake.pack_hello(os.urandom(32), dialer, acceptor, disk)
        await self.send(handshake.plain_frame(hello))
        return hello

    async def enter(self, secret: bytes = SECRET, disk: str = "", verdict: bytes = b"") -> None:
        """Do all that a member does."""
        hello = await self.hello(disk=disk)
        nonce, _, acceptors = handshake.unpack_challenge(await self.frame())
        self.keys = handshake.SessionKeys(secret, hello, nonce, acceptors)
        await self.send(handshake.plain_frame(self.keys.dialer_proof()))
        self.sealer = handshake.FrameSealer(self.keys.from_dialer())
        await self.send(self.sealed(verdict))

    def sealed(self, message: bytes) -> bytes:
        assert self.sealer is not None
        return b"".join(self.sealer.frame([message]))

    async def is_thrown_out(self) -> None:
        """Return once the other side has ended the connection."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass
        self.writer.close()


def test_two_members_find_each_other_and_talk_both_ways() -> None:
    async def test() -> None:
        async with acceptor() as n2, dialer(n2.address) as n1:
            await until(lambda: n1.connected and n2.connected)
            assert n1.transport.send(RaftMember("n2"), VOTE)
            assert n2.transport.send(RaftMember("n1"), VOTE)
            await until(lambda: n1.messages and n2.messages)
            assert (n1.messages, n2.messages) == ([("n2", VOTE)], [("n1", VOTE)])

    run(test())


def test_a_message_may_be_large_and_come_in_pieces() -> None:
    async def test() -> None:
        async with acceptor() as n2, dialer(n2.address) as n1:
            await until(lambda: n1.connected and n2.connected)
            entries = [(bytes(limits.RAFT_COMMAND_BYTES_MAX), 5 + n, 1) for n in range(3)]
            message = {
                "type": "append_entries", "term": 1, "commit_index": 1, "round": 0,
                "prevLogIdx": 4, "prevLogTerm": 1, "entries": entries,
            }  # fmt: skip
            assert n1.transport.send(RaftMember("n2"), message)
            await until(lambda: n2.messages)
            assert n2.messages == [("n1", message)]

    run(test())


def test_a_member_that_comes_back_is_connected_with_again() -> None:
    async def test() -> None:
        async with acceptor() as n2:
            for _ in range(3):
                async with dialer(n2.address) as n1:
                    await until(lambda: n1.connected and n2.connected)
                await until(lambda: not n2.connected)

    run(test())


def test_a_member_that_is_away_for_long_is_dialed_more_than_once_a_second() -> None:
    async def test() -> None:
        n2 = RaftMember("n2=127.0.0.1:1")
        n1, loop = End("n1", [n2], SECRET, ConnectionTiming()), asyncio.get_running_loop()
        dials_s = []

        async def dial_at(_id: str, _address: str) -> bool:
            dials_s.append(loop.time())
            return False

        n1.transport._dial_at = dial_at  # type: ignore[method-assign]
        dialing = asyncio.ensure_future(n1.transport._dial(n2))
        await asyncio.sleep(60)
        dialing.cancel()
        assert max(later_s - s for s, later_s in pairwise(dials_s)) < 1

    run_simulated(test())


def test_a_member_with_the_larger_id_that_moved_dials_those_that_do_not_find_it() -> None:
    async def test() -> None:
        pace = replace(QUICK, fallback_s=0.05)
        async with dialer("127.0.0.1:1", pace=pace) as n1:  # nothing is there
            n2 = End("n2", [RaftMember(f"n1={n1.address}")], SECRET, pace)
            await n2.transport.start()
            await until(lambda: n1.connected == ["n2"] and n2.connected == ["n1"])
            link = n1.transport._links["n2"]
            await asyncio.sleep(10 * pace.redial_max_s)  # no further attempt replaces it
            assert n1.transport._links["n2"] is link
            n2.transport.destroy()
            await asyncio.sleep(0)

    run(test())


def test_a_member_is_dialed_where_it_registered_and_where_the_log_has_it() -> None:
    async def test() -> None:
        async with acceptor() as n2, dialer("127.0.0.1:1") as n1:
            assert not n1.connected
            n1.transport._addresses_of = lambda _id: ("", "127.0.0.1:2", n2.address)
            await until(lambda: n1.connected == ["n2"])

    run(test())


def test_a_wrong_secret_opens_nothing_and_is_told_once_on_both_sides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with acceptor() as n2, dialer(n2.address, secret=b"another secret of it") as n1:
            now_s = asyncio.get_running_loop().time
            await until(lambda: n1.transport._identity.other_secret(now_s()) == ("n2",))
            await until(lambda: n2.transport._identity.other_secret(now_s()) == ("n1",))
            assert not n1.connected
            assert not n2.connected
            for _ in range(10):
                await asyncio.sleep(QUICK.redial_max_s)  # further attempts log nothing more
        for other in ("n1", "n2"):
            told = f"{other} and this node have different secrets"
            assert [told in record.message for record in caplog.records].count(True) == 1
        assert "connection with" not in "".join(
            record.message for record in caplog.records if record.levelno >= logging.WARNING
        )

    run(test())


def test_a_peer_that_ends_its_handshakes_is_not_said_to_have_another_secret() -> None:
    async def test() -> None:
        async with acceptor() as n2:
            host, _, port = n2.address.rpartition(":")
            for _ in range(3):  # as a dialer that is too slow for its own time limit
                reader, writer = await asyncio.open_connection(host, int(port))
                hello = handshake.pack_hello(bytes(handshake.NONCE_BYTES), "n1", "n2", "")
                writer.write(handshake.plain_frame(hello))
                await reader.readexactly(handshake.NONCE_BYTES + handshake.PROOF_BYTES)
                writer.close()
                await until(lambda: not n2.transport._handshaking)
            assert n2.transport._identity.other_secret(asyncio.get_running_loop().time()) == ()

    run(test())


def test_a_stranger_in_the_name_of_a_connected_member_does_not_make_it_one_of_another_secret() -> (
    None
):
    async def test() -> None:
        async with acceptor() as n2, dialer(n2.address) as n1:
            await until(lambda: n1.connected and n2.connected)
            stranger = await Stranger.dial(n2)
            await stranger.enter(secret=b"another secret of it")
            await stranger.is_thrown_out()
            assert n2.connected == ["n1"]
            assert n2.transport._identity.other_secret(asyncio.get_running_loop().time()) == ()

    run(test())


def test_a_peer_with_another_secret_is_said_to_have_it_for_a_while() -> None:
    identity, seen_s = PeerIdentity(), limits.RAFT_UNKNOWN_PEER_SEEN_S
    identity.on_secret_mismatch("n1", 1.0)
    assert identity.other_secret(1.0) == ("n1",)
    identity.on_accepted("n1")
    assert identity.other_secret(1.0) == ()
    identity.on_secret_mismatch("n1", 2.0)
    assert identity.other_secret(seen_s + 1.9) == ("n1",)
    assert identity.other_secret(seen_s + 2) == ()


def test_a_short_secret_is_refused() -> None:
    async def test() -> None:
        with pytest.raises(InvalidInput, match="too short"):
            End("n1", [], b"x" * (limits.RAFT_SECRET_BYTES_MIN - 1), QUICK)
        End("n1", [], b"x" * limits.RAFT_SECRET_BYTES_MIN, QUICK).transport.destroy()

    run(test())


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 100,
        b"\xff" * 100,
        struct.pack("<I", handshake.HELLO_BYTES_MAX + 1),
        handshake.plain_frame(b"goqraft1" + bytes(40)),
        handshake.plain_frame(handshake.MAGIC + bytes(32)),
        handshake.plain_frame(handshake.MAGIC + bytes(32) + b"\x09\x00n1\x02\x00n2"),
        handshake.plain_frame(handshake.MAGIC + bytes(32) + b"\x02\x00n1\x02\x00n2"),
        handshake.plain_frame(handshake.pack_hello(bytes(32), "n1", "n2", "d1") + b"x"),
        handshake.plain_frame(handshake.pack_hello(bytes(32), "n1", "n2", "d" * 2000)),
        handshake.plain_frame(handshake.MAGIC + bytes(32) + b"\x01\x00\xff\x02\x00n2\x00\x00"),
        handshake.plain_frame(pickle.dumps(print)),
    ],
)
def test_garbage_ends_the_connection(garbage: bytes) -> None:
    async def test() -> None:
        async with acceptor() as n2:
            stranger = await Stranger.dial(n2)
            await stranger.send(garbage)
            await stranger.is_thrown_out()
            assert not n2.connected

    run(test())


@pytest.mark.parametrize(("dialer_id", "acceptor_id"), [("n9", "n2"), ("n1", "n3"), ("n2", "n2")])
def test_who_is_not_expected_gets_no_answer(dialer_id: str, acceptor_id: str) -> None:
    async def test() -> None:
        async with acceptor() as n2:
            stranger = await Stranger.dial(n2)
            await stranger.hello(dialer_id, acceptor_id)
            assert await stranger.reader.read() == b""
            stranger.writer.close()

    run(test())


def test_an_answer_to_another_challenge_is_no_proof() -> None:
    async def test() -> None:
        async with acceptor() as n2:
            first, second = await Stranger.dial(n2), await Stranger.dial(n2)
            await first.enter()
            hello = await second.hello()
            challenge = await second.frame()
            reflected = challenge[32:]  # what the acceptor itself has proven
            await second.send(handshake.plain_frame(reflected))
            await second.is_thrown_out()
            keys = handshake.SessionKeys(
                SECRET, hello, bytes(32), b""
            )  # of a nonce that was not this one
            third = await Stranger.dial(n2)
            await third.hello()
            await third.frame()
            await third.send(handshake.plain_frame(keys.dialer_proof()))
            await third.is_thrown_out()
            assert n2.connected == ["n1"]
            first.writer.close()

    run(test())


def test_a_member_proves_itself_to_who_dials_before_anything_is_sent_to_it() -> None:
    async def test() -> None:
        seen = []

        async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stranger = Stranger(reader, writer)
            await stranger.frame()
            await stranger.send(handshake.plain_frame(os.urandom(64)))
            seen.append(await reader.read())
            writer.close()

        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with dialer(f"127.0.0.1:{port}") as n1:
            await until(lambda: seen)
            assert not n1.connected
        assert seen[0] == handshake.plain_frame(b"")  # an empty proof
        server.close()

    run(test())


def sealed_otherwise(stranger: Stranger, how: str) -> bytes:
    one, two = (stranger.sealed(codec.encode_message(VOTE | {"term": term})) for term in (1, 2))
    size = struct.pack("<I", 5)
    return {
        "repeated": one + one,
        "left out": two,
        "moved": two + one,
        "changed": one[:10] + bytes([one[10] ^ 1]) + one[11:],
        "shortened": struct.pack("<I", len(one) - 37) + one[4:],
        "without a seal": size + b"hello" + bytes(32),
        "sealed by another": size + b"hello" + hmac.digest(b"x", b"hello", hashlib.sha256),
        "too large": struct.pack("<I", limits.RAFT_MESSAGE_BYTES_MAX + 1),
    }[how]


@pytest.mark.parametrize(
    "how",
    ["repeated", "left out", "moved", "changed", "shortened", "without a seal",
     "sealed by another", "too large"],
)  # fmt: skip
def test_a_frame_that_was_tampered_with_ends_the_connection(how: str) -> None:
    async def test() -> None:
        async with acceptor() as n2:
            stranger = await Stranger.dial(n2)
            await stranger.enter()
            await until(lambda: n2.connected)
            await stranger.send(sealed_otherwise(stranger, how))
            await stranger.is_thrown_out()
            await until(lambda: not n2.connected)
            assert len(n2.messages) == (how == "repeated")

    run(test())


class Trap:
    """Unpickling this leaves a trace."""

    sprung = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Trap, "sprung", True)


@pytest.mark.parametrize(
    "message",
    [
        pickle.dumps(Trap()),
        codec.encode_message({"type": "utility", "term": 1}),
        codec.encode_message({"type": "response_vote", "term": -1}),
        codec.encode_message({"type": "response_vote", "term": "1"}),
        codec.encode_message({"type": "response_vote", "term": 2**64 - 1}),
        codec.encode_message({"type": "apply_command", "command": "text"}),
        b"\xc1",
        b"\x91" * 100_000,
    ],
)
def test_a_member_that_sends_what_is_no_message_is_refused_aloud(
    message: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with acceptor() as n2:
            stranger = await Stranger.dial(n2)
            await stranger.enter()
            await stranger.send(stranger.sealed(message))
            await stranger.is_thrown_out()
            assert n2.messages == []

    with caplog.at_level(logging.WARNING):
        run(test())
    assert not Trap.sprung
    assert "not a message of the Raft protocol" in caplog.text


def test_who_says_nothing_is_thrown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RAFT_HANDSHAKE_TIMEOUT_S", 0.1)

    async def test() -> None:
        async with acceptor() as n2:
            silent = await Stranger.dial(n2)
            await silent.is_thrown_out()
            slow = await Stranger.dial(n2)
            await slow.hello()
            await slow.is_thrown_out()

    run(test())


def test_strangers_in_any_number_hold_few_connections_and_keep_no_member_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RAFT_HANDSHAKES_MAX", 5)

    async def test() -> None:
        async with acceptor() as n2:
            strangers = [await Stranger.dial(n2) for _ in range(40)]
            for stranger in strangers[:35]:
                await stranger.is_thrown_out()
            async with dialer(n2.address) as n1:
                await until(lambda: n1.connected and n2.connected)
            for stranger in strangers:
                stranger.writer.close()

    run(test())


def test_strangers_in_any_number_write_one_line_of_the_log_in_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with acceptor() as n2:
            for _ in range(30):
                stranger = await Stranger.dial(n2)
                await stranger.send(b"\xff" * 100)
                await stranger.is_thrown_out()
            before_s = n2.transport._loop.time
            monkeypatch.setattr(n2.transport._loop, "time", lambda: before_s() + STRANGERS_LOG_S)
            stranger = await Stranger.dial(n2)
            await stranger.send(b"\xff" * 100)
            await stranger.is_thrown_out()

    with caplog.at_level(logging.WARNING):
        run(test())
    first, second = [record.message for record in caplog.records if "ended" in record.message]
    assert "is over the limit" in first
    assert second.endswith(" (29 more before)")


def test_a_new_connection_takes_the_place_of_the_one_before() -> None:
    async def test() -> None:
        async with acceptor() as n2:
            first, second = await Stranger.dial(n2), await Stranger.dial(n2)
            await first.enter()
            await until(lambda: n2.connected)
            await second.enter()
            await first.is_thrown_out()
            await second.send(second.sealed(codec.encode_message(VOTE)))
            await until(lambda: n2.messages)
            assert n2.connected == ["n1"]
            second.writer.close()

    run(test())


def test_who_reads_nothing_makes_nobody_keep_more_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RAFT_SEND_BUFFER_BYTES_MAX", 100_000)
    big = {"type": "apply_command", "command": bytes(200_000)}

    async def test() -> None:
        async with acceptor(ConnectionTiming(check_interval_s=60, idle_timeout_s=60)) as n2:
            stranger = await Stranger.dial(n2)
            await stranger.enter()
            await until(lambda: n2.connected)
            sent = 0
            while n2.transport.send(RaftMember("n1"), big):
                sent += 1
                assert sent < 1000
                await asyncio.sleep(0)
            stranger.writer.close()

    run(test())


def test_a_member_that_is_silent_for_too_long_is_given_up() -> None:
    async def test() -> None:
        async with acceptor(ConnectionTiming(check_interval_s=0.02, idle_timeout_s=0.1)) as n2:
            stranger = await Stranger.dial(n2)
            await stranger.enter()
            await until(lambda: n2.connected)
            await stranger.is_thrown_out()
            await until(lambda: not n2.connected)

    run(test())


def test_a_member_that_stood_still_reads_before_it_gives_others_up() -> None:
    async def test() -> None:
        pace = ConnectionTiming(check_interval_s=60, idle_timeout_s=240)
        async with acceptor(pace) as n2, dialer(n2.address, pace=pace) as n1:
            await until(lambda: n1.connected and n2.connected)
            (held,) = n2.transport._links.values()
            held.received_s -= 3600
            for _ in range(3):
                check_links(n2)
            assert n2.connected == ["n1"]
            heard_s = held.received_s
            check_links(n1)  # which sends a keepalive
            await until(lambda: held.received_s > heard_s)
            for _ in range(4):
                check_links(n2)
            assert n2.connected == ["n1"]
            check_links(n2)
            await until(lambda: not n2.connected)

    run(test())


def check_links(end: End) -> None:
    """Have a member check its connections now, a minute after it sent anything."""
    timer = end.transport._check_timer
    assert timer is not None
    timer.cancel()
    for link_ in end.transport._links.values():
        link_.sent_s -= 60
    end.transport._check_links()


def test_members_with_nothing_to_say_stay_connected() -> None:
    async def test() -> None:
        pace = ConnectionTiming(check_interval_s=0.02, idle_timeout_s=2.0)
        async with acceptor(pace) as n2, dialer(n2.address, pace=pace) as n1:
            await until(lambda: n1.connected and n2.connected)
            (held,) = n2.transport._links.values()
            heard_s = held.received_s
            await until(lambda: held.received_s > heard_s + 0.2)
            assert n2.connected == ["n1"]

    run(test())


def test_a_member_that_was_removed_is_parted_with_and_not_let_in_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with acceptor() as n2, dialer(n2.address) as n1:
            await until(lambda: n1.connected and n2.connected)
            n2.transport.dropNode(RaftMember("n1"))
            await until(lambda: not n1.connected and not n2.connected)
            await until(lambda: caplog.text.count("n1 is not a member") >= 3)
            assert not n2.connected
            n2.transport.addNode(RaftMember("n1=127.0.0.1:1"))
            await until(lambda: n1.connected and n2.connected)

    run(test())


def test_a_link_sends_nothing_before_it_is_open() -> None:
    async def test() -> None:
        end = End("n2", [RaftMember("n1")], SECRET, QUICK)
        loop = asyncio.get_running_loop()
        closed = link.Link(end.transport, "n2", "", Credentials(SECRET), loop.time)
        assert not closed.send(b"x")
        assert not end.transport.send(RaftMember("n1"), VOTE)
        end.transport.destroy()

    run(test())


# Disks


def knowing(end: End, **disks: str) -> None:
    """Have a side know with which disks others come, before it has talked with them."""
    end.transport._identity = PeerIdentity("d2", lambda id_: disks.get(id_, ""))


@pytest.mark.parametrize("disk", ["", "other", "d1 ", "D1", "\x00", "d" * 900])
def test_a_member_with_another_disk_is_told_so_and_not_let_in(
    disk: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with acceptor() as n2:
            knowing(n2, n1="d1")
            for _ in range(3):
                stranger = await Stranger.dial(n2)
                await stranger.enter(disk=disk)
                await stranger.send(stranger.sealed(codec.encode_message(VOTE)))
                told = handshake.FrameReader()
                told.use_key(stranger.keys.from_acceptor())
                told.feed(await stranger.reader.read())
                assert told.next() == OTHER_DISK.encode()
                stranger.writer.close()
            assert (n2.connected, n2.messages) == ([], [])
            loop = asyncio.get_running_loop()
            assert n2.transport._identity.mismatched(loop.time()) == ("n1",)
            assert (
                n2.transport._identity.mismatched(loop.time() + limits.RAFT_UNKNOWN_PEER_SEEN_S)
                == ()
            )
            member = await Stranger.dial(n2)
            await member.enter(disk="d1")
            await until(lambda: n2.connected == ["n1"])
            member.writer.close()

    run(test())
    assert caplog.text.count("comes with another disk") == 1  # though it came again and again


def test_a_disk_that_was_changed_on_the_way_is_no_proof() -> None:
    async def test() -> None:
        async with acceptor() as n2:
            knowing(n2, n1="d1")
            stranger = await Stranger.dial(n2)
            hello = await stranger.hello(disk="d1")
            nonce, _, disk = handshake.unpack_challenge(await stranger.frame())
            before = hello.replace(b"d1", b"d9")  # what the member said, before it was changed
            for wrong in (
                handshake.SessionKeys(SECRET, before, nonce, disk),
                handshake.SessionKeys(SECRET, hello, nonce, b"other"),
            ):
                assert (
                    wrong.dialer_proof()
                    != handshake.SessionKeys(SECRET, hello, nonce, disk).dialer_proof()
                )
            changed = handshake.SessionKeys(SECRET, before, nonce, disk).dialer_proof()
            await stranger.send(handshake.plain_frame(changed))
            await stranger.is_thrown_out()
            assert not n2.connected

    run(test())


def test_both_the_dialer_and_the_acceptor_are_checked_and_both_learn_of_it() -> None:
    async def test() -> None:
        async with acceptor() as n2, dialer(n2.address) as n1:
            await until(lambda: n1.connected and n2.connected)
            n1.transport._identity = PeerIdentity("d1", lambda _id: "lost")
            now_s = asyncio.get_running_loop().time
            await until(lambda: n2.transport._identity.rejected_by(now_s()) == ("n1",))
            await until(lambda: not n1.connected and not n2.connected)
            assert n1.transport._identity.mismatched(now_s()) == ("n2",)
            n1.transport._identity = PeerIdentity("d1")
            await until(lambda: n1.connected and n2.connected)
            assert n2.transport._identity.rejected_by(now_s()) == ()

    run(test())


def test_the_disk_in_the_log_counts_before_what_was_known_otherwise() -> None:
    async def test() -> None:
        async with acceptor() as n2:
            knowing(n2, n1="before")
            n2.transport.dropNode(RaftMember("n1"))
            n2.transport.addNode(RaftMember("n1=127.0.0.1:1/now"))
            old, new = await Stranger.dial(n2), await Stranger.dial(n2)
            await old.enter(disk="before")
            await old.is_thrown_out()
            await new.enter(disk="now")
            await until(lambda: n2.connected == ["n1"])
            new.writer.close()

    run(test())


def test_who_becomes_known_by_another_disk_is_parted_with() -> None:
    async def test() -> None:
        disks: dict[str, str] = {}
        async with acceptor() as n2:
            n2.transport._identity = PeerIdentity("d2", lambda id_: disks.get(id_, ""))
            stranger = await Stranger.dial(n2)
            await stranger.enter(disk="d1")
            await until(lambda: n2.connected)
            disks["n1"] = "d9"
            await stranger.is_thrown_out()
            await until(lambda: not n2.connected)

    run(test())


def test_a_refusal_of_any_length_is_taken_and_shortened(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with acceptor() as n2:
            stranger = await Stranger.dial(n2)
            await stranger.enter(verdict=b"\xff" * 100_000)
            await stranger.is_thrown_out()
            assert not n2.connected

    run(test())
    assert all(len(record.getMessage()) < 500 for record in caplog.records)


def test_only_a_node_that_is_new_is_an_outcast_and_not_for_ever() -> None:
    new, old = PeerIdentity("d1", is_new=True), PeerIdentity("d1")
    for each in (new, old):
        each.on_rejected("n2", "no", 100.0)
    assert new.is_quarantined(100.0 + limits.RAFT_UNKNOWN_PEER_SEEN_S - 1)
    assert not new.is_quarantined(100.0 + limits.RAFT_UNKNOWN_PEER_SEEN_S)
    assert not old.is_quarantined(100.0)
    new.on_accepted("n2")
    assert not new.is_quarantined(100.0)
