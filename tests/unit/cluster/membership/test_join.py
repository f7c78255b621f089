"""What a member tells a node that asks to be admitted."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
import pytest

from goq.cluster.membership import join
from goq.cluster.membership.join import MEMBERS, AdmissionServer, fetch_members, join_cluster
from goq.cluster.metadata.commands import RegisterNode
from goq.cluster.metadata.state import MetadataState
from goq.cluster.raft.driver import RaftStatus
from goq.cluster.raft.node import RaftNode
from goq.cluster.rpc.client import RpcClient
from goq.errors import Conflict, Unavailable
from tests.support.cluster.metadata.local_raft import proposing

SPECS = ("n1=h:1", "n2=h:2/new", "n3=h:3")


class Member:
    """A member, and a connection to it; ``is_old`` is one of the version before the index."""

    def __init__(self, *, is_old: bool = False) -> None:
        self.status = RaftStatus(members=SPECS, applied_index=7)
        self.is_old = is_old
        self.added: list[str] = []
        cluster = proposing()
        for name, disk in (("n1", "first"), ("n2", "old")):
            asyncio.run(
                cluster.propose(RegisterNode(name, 1, f"http://{name}", f"{name}:1", None, disk))
            )
        self.server = AdmissionServer(cast(RaftNode, self), lambda: cluster.state)

    async def add_member(self, spec: str) -> None:
        self.added.append(spec)

    async def call(self, _url: str, path: str, body: bytes, _timeout_s: float) -> bytes:
        body = b"" if self.is_old else body
        return b"".join(await self.server.handlers()[path]("n4", body))


def test_the_disks_of_the_first_nodes_are_told_though_the_log_does_not_name_them() -> None:
    known = asyncio.run(fetch_members(cast(RpcClient, Member()), "http://n1"))
    assert known.index == 7
    assert known.by_name() == {"n1": "n1=h:1/first", "n2": "n2=h:2/new", "n3": "n3=h:3"}


def test_members_of_an_earlier_version_tell_no_index_and_are_told_none() -> None:
    known = asyncio.run(fetch_members(cast(RpcClient, Member(is_old=True)), "http://n1"))
    assert (known.index, known.specs) == (0, list(SPECS))
    body = asyncio.run(Member().call("http://n1", MEMBERS, b"", 1.0))
    assert msgspec.json.decode(body) == known.specs


def test_no_node_is_added_while_one_that_never_came_is_away_and_it_is_named() -> None:
    member = Member()
    member.status = RaftStatus(members=SPECS, unconnected=frozenset(("n3",)))
    with pytest.raises(Conflict, match="while n3 is down: bring it back, or, if it is lost: goq"):
        asyncio.run(member.server.add_member("n4=h:4"))
    asyncio.run(member.server.add_member("n3=h:3"))
    assert member.added == ["n3=h:3"]


def test_a_node_that_is_not_admitted_says_why_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(join, "_RETRY_S", 0.0)
    calls: list[str] = []

    class Rpc:
        async def call(self, url: str, *_: object) -> bytes:
            calls.append(url)
            if len(calls) == 20:
                raise InterruptedError
            raise Unavailable("n3 is down")

    with pytest.raises(InterruptedError):
        asyncio.run(
            join_cluster(
                cast(RpcClient, Rpc()),
                "http://n1",
                "n4=h:4/disk",
                cast(RaftNode, None),
                MetadataState,
                is_initial=False,
            )
        )
    (record,) = caplog.records
    assert record.getMessage().endswith("n3 is down")
