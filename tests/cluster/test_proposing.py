"""What a node is told of a change that the cluster's metadata refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.raft_group import PATIENT, member_specs, settings_of

from goq.cluster.metadata.commands import FenceNode, RegisterNode
from goq.cluster.metadata.store import MetadataMachine
from goq.cluster.proposing import Proposing
from goq.cluster.raft.node import RaftNode
from goq.errors import Conflict


def test_a_change_that_is_refused_is_a_conflict_and_known_not_to_be_done(tmp_path: Path) -> None:
    async def life() -> None:
        [spec] = specs = member_specs(1)
        name = spec.partition("=")[0]
        (tmp_path / name).mkdir()
        machine = MetadataMachine(tmp_path / name)
        raft = RaftNode(settings_of(spec, specs, tmp_path, PATIENT), machine)
        await raft.start()
        try:
            proposing = Proposing(raft, machine)
            await proposing.propose(RegisterNode("n1", 2, "http://h:1", "h:2", None), 60.0)
            with pytest.raises(Conflict):
                await proposing.propose(FenceNode("n1", 1), 60.0)
            assert await proposing.propose_surely(FenceNode("n1", 1)) is None
            assert proposing.state.nodes["n1"].is_up
        finally:
            await raft.stop()
            machine.close()

    asyncio.run(life())
