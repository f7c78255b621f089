"""Client of the replicated metadata, for the node's event loop."""

from __future__ import annotations

from contextlib import suppress

from goq.cluster.metadata.command_codec import encode_command
from goq.cluster.metadata.commands import AnyCommand
from goq.cluster.metadata.features import level_of
from goq.cluster.metadata.results import Accepted, Rejected
from goq.cluster.metadata.state import MetadataState
from goq.cluster.metadata.state_machine import MetadataStateMachine, decode_result
from goq.cluster.raft.node import RaftNode
from goq.errors import BY_CODE, Conflict, GoqError, Unavailable

_ERRORS = {**BY_CODE, "not_enough_nodes": Unavailable}  # more nodes may be up soon


class MetadataClient:
    """Reads the metadata as this node has it, and proposes commands that change it."""

    def __init__(self, raft: RaftNode, machine: MetadataStateMachine) -> None:
        self._raft = raft
        self._machine = machine

    @property
    def state(self) -> MetadataState:
        """The metadata as far as it is applied here."""
        return self._machine.state

    @property
    def is_cut_off(self) -> bool:
        """Whether this node no longer hears its Raft group."""
        return self._raft.is_cut_off()

    async def propose(self, command: AnyCommand, timeout_s: float = 5.0) -> Accepted:
        """Propose a command; its change is applied here on return.

        Raises the error of a rejection: ``Conflict`` if the command was decided on outdated
        metadata, or needs a higher feature level. Raises ``Unavailable`` if it was not applied,
        ``TimedOut`` if that is not known.
        """
        answer = await self._raft.propose(self._encode(command), timeout_s)
        result = decode_result(answer)
        if isinstance(result, Rejected):  # most of the metadata's own codes mean a conflict
            raise _ERRORS.get(result.code, Conflict)(result.detail)
        return result

    async def propose_until_decided(self, command: AnyCommand) -> None:
        """Propose a command until it is in the metadata here, or can never be.

        A leader relies on that: while a change of an in-sync set may still come to hold, it counts
        on the members of both sets.
        """
        with suppress(GoqError):
            await self._raft.propose_until_decided(self._encode(command))

    def _encode(self, command: AnyCommand) -> bytes:
        if level_of(command) > self.state.features.level:
            raise Conflict(
                "not all nodes have the version of goq that this needs; upgrade the others first"
            )
        return encode_command(command)
