"""What was proposed is applied, or refused with an error of goq that says why."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.commands import (
    AlterInSync,
    DecommissionNode,
    FenceNode,
    RegisterNode,
    RemoveNode,
)
from goq.cluster.metadata.state_machine import MetadataStateMachine
from goq.cluster.raft.codec import decode_proposal
from goq.cluster.raft.node import RaftNode
from goq.cluster.raft.state_machine.state_machine import Refused
from goq.errors import (
    Conflict,
    GoqError,
    NodeNotFound,
    TimedOut,
    TooManyRequests,
    TopicNotFound,
    Unavailable,
)
from tests.support.cluster.metadata.local_raft import proposing
from tests.support.cluster.raft.group import PATIENT, member_specs, settings_of


def test_what_is_accepted_is_known_on_return() -> None:
    cluster = proposing()
    accepted = asyncio.run(cluster.propose(RegisterNode("n1", 1, "http://n1", "n1:1")))
    assert accepted.done == "node n1 joined"
    assert list(cluster.state.nodes) == ["n1"]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (DecommissionNode("n9"), NodeNotFound),
        (RemoveNode("n1"), Conflict),
        (AlterInSync("t", 1, 0, 1, "n1", 1, {"n1": 1}), TopicNotFound),
    ],
)
def test_what_is_refused_raises_why(command: Any, error: type[GoqError]) -> None:
    cluster = proposing()
    asyncio.run(cluster.propose(RegisterNode("n1", 1, "http://n1", "n1:1")))
    with pytest.raises(error):
        asyncio.run(cluster.propose(command))
    nodes = cluster.state.nodes
    asyncio.run(cluster.propose_until_decided(command))
    assert cluster.state.nodes == nodes


TOO_OLD = Refused("timed_out", "the request is too old to tell whether it was applied")


def propose_until_decided(path: Path) -> None:
    """Propose a command at a member that was not started."""
    machine = MetadataStateMachine(path)
    [spec] = specs = member_specs(1)
    raft = RaftNode(settings_of(spec, specs, path, PATIENT), machine)
    asyncio.run(MetadataClient(raft, machine).propose_until_decided(FenceNode("n1", 1)))
    machine.close()


@pytest.mark.parametrize("last", ["applied", TOO_OLD])
def test_a_command_that_may_be_applied_later_is_not_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: object
) -> None:
    """It was, if a later try met a full queue or no leader: a leader then counted on the replicas
    of before only. And one that was forgotten was proposed again without an end."""
    outcomes = [TimedOut("sent"), TooManyRequests("full"), Unavailable("no leader"), last]
    ids: list[tuple[int, int]] = []

    async def submit(_raft: RaftNode, _kind: int, body: bytes, _timeout_s: float) -> object:
        proposal = decode_proposal(b"\0" + body)
        ids.append((proposal.proposer, proposal.sequence))
        outcome = outcomes.pop(0)
        if isinstance(outcome, GoqError):
            raise outcome
        return outcome

    monkeypatch.setattr(RaftNode, "_submit", submit)
    propose_until_decided(tmp_path)
    assert outcomes == []
    assert len(set(ids)) == 1


def test_a_command_that_was_never_sent_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def submit(*_: object) -> object:
        raise Unavailable("no leader")

    monkeypatch.setattr(RaftNode, "_submit", submit)
    propose_until_decided(tmp_path)


def test_what_is_refused_is_known_not_to_be_done_by_a_real_group_too(tmp_path: Path) -> None:
    async def life() -> None:
        [spec] = specs = member_specs(1)
        name = spec.partition("=")[0]
        (tmp_path / name).mkdir()
        machine = MetadataStateMachine(tmp_path / name)
        raft = RaftNode(settings_of(spec, specs, tmp_path, PATIENT), machine)
        await raft.start()
        try:
            cluster = MetadataClient(raft, machine)
            await cluster.propose(RegisterNode("n1", 2, "http://h:1", "h:2", None), 60.0)
            with pytest.raises(Conflict):
                await cluster.propose(FenceNode("n1", 1), 60.0)
            await cluster.propose_until_decided(FenceNode("n1", 1))
            assert cluster.state.nodes["n1"].is_up
        finally:
            await raft.stop()
            machine.close()

    asyncio.run(life())
