"""Machines of the cluster's metadata, and requests for them."""

from __future__ import annotations

from goq.cluster.metadata.apply import apply
from goq.cluster.metadata.command_codec import encode_command
from goq.cluster.metadata.commands import AnyCommand
from goq.cluster.metadata.state import MetadataState
from goq.cluster.raft.codec import COMMAND_VERSION
from goq.cluster.raft.state_machine.state_machine import Proposal
from tests.support.cluster.metadata.random_commands import Commands


def request(command: AnyCommand, sequence: int, proposer: int = 1) -> Proposal:
    """Return the request of a proposer for a command."""
    return Proposal(COMMAND_VERSION, proposer, sequence, encode_command(command))


def history(seed: object, count: int) -> tuple[list[AnyCommand], list[MetadataState]]:
    """Return random commands, and the state before the first and after each."""
    commands, states, made = Commands(seed), [MetadataState()], []
    for index in range(1, count + 1):
        made.append(commands.next(states[-1]))
        states.append(apply(states[-1], made[-1], index).state)
    return made, states
