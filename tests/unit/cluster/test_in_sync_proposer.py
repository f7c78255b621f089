"""Changes of in-sync sets wait for the one under way, and then go together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from goq import limits
from goq.cluster.metadata.commands import AlterInSync, ChangePartitions, CreateTopic
from goq.cluster.metadata.state import Features, MetadataState
from goq.cluster.reconciler import InSyncProposer, assignments_of
from tests.support.cluster.metadata.states import after, nodes
from tests.support.eventually import until

PARTITIONS = 450


class _Metadata:
    """Metadata that decide when told."""

    def __init__(self, state: MetadataState) -> None:
        self.state = state
        self.proposed: list[Any] = []
        self.may_decide = asyncio.Event()

    async def propose_until_decided(self, command: Any) -> None:
        self.proposed.append(command)
        await self.may_decide.wait()
        self.state = after(self.state, command)


@pytest.mark.parametrize("level", [3, 4])
def test_changes_that_wait_go_together_once_all_nodes_know_how(level: int) -> None:
    async def run() -> None:
        state = after(nodes(1), CreateTopic("t", PARTITIONS, {}, 1))
        metadata = _Metadata(replace(state, features=Features(level)))
        proposer = InSyncProposer("n1", metadata)  # type: ignore[arg-type]
        alone = frozenset({"n1"})
        asking = [
            asyncio.ensure_future(proposer.propose(key, assignment, alone))
            for key, assignment in assignments_of(state, "n1").items()
        ]
        await until(lambda: bool(metadata.proposed))
        metadata.may_decide.set()
        decided = await asyncio.gather(*asking)
        assert [each.version for each in decided] == [1] * PARTITIONS  # nothing differs
        kinds = {type(command) for command in metadata.proposed}
        assert kinds == {AlterInSync if level < 4 else ChangePartitions}
        sizes = [len(getattr(command, "changes", "1")) for command in metadata.proposed]
        assert sum(sizes) == PARTITIONS
        assert max(sizes) == (1 if level < 4 else limits.PARTITION_CHANGES_MAX)

    asyncio.run(run())
