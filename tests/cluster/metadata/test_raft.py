"""The metadata of real members that agree by Raft on the loopback interface."""

from __future__ import annotations

import asyncio
from pathlib import Path

from goq.cluster.metadata.command_codec import encode_command
from goq.cluster.metadata.results import Accepted, Rejected
from goq.cluster.metadata.state import MetadataState, encode_state
from goq.cluster.metadata.state_machine import MetadataStateMachine, decode_result
from goq.cluster.raft.node import RaftNode
from tests.support.cluster.metadata.random_commands import Commands
from tests.support.cluster.raft.group import PATIENT, member_specs, settings_of
from tests.support.eventually import until

WAIT_S = 60.0


class Running:
    """A member, with the metadata in its folder."""

    def __init__(self, spec: str, specs: list[str], folder: Path) -> None:
        own = folder / spec.partition("=")[0]
        own.mkdir(exist_ok=True)
        self.machine = MetadataStateMachine(own)
        self.node = RaftNode(settings_of(spec, specs, folder, PATIENT), self.machine)

    async def stop(self) -> None:
        await self.node.stop()
        self.machine.close()


def same_state(members: list[Running]) -> bool:
    """Whether all members have applied the same, but for entries that are no commands."""
    return len({shown(member.machine.state) for member in members}) == 1


def shown(state: MetadataState) -> bytes:
    return encode_state(MetadataState(0, state.nodes, state.topics, state.groups, state.settings))


async def propose_some(members: list[Running], commands: Commands, count: int) -> set[type]:
    """Propose by each member in turn, and return what kinds of answers came."""
    kinds: set[type] = set()
    for number in range(count):
        member = members[number % len(members)]
        command = commands.next(member.machine.state)
        answer = await member.node.propose(encode_command(command), WAIT_S)
        kinds.add(type(decode_result(answer)))
    return kinds


def test_members_come_to_the_same_state_also_after_one_was_away(tmp_path: Path) -> None:
    async def life() -> None:
        specs = member_specs(3)
        members = [Running(spec, specs, tmp_path) for spec in specs]
        commands = Commands("raft")
        try:
            await asyncio.gather(*(member.node.start() for member in members))
            kinds = await propose_some(members, commands, 60)
            assert kinds == {Accepted, Rejected}
            await until(lambda: same_state(members))
            away = members.pop()
            await away.stop()
            await propose_some(members, commands, 40)
            assert shown(away.machine.state) != shown(members[0].machine.state)
            members.append(Running(specs[2], specs, tmp_path))
            assert members[2].machine.state == away.machine.state
            await members[2].node.start()
            await until(lambda: same_state(members))
        finally:
            for member in members:
                await member.stop()

    asyncio.run(life())
