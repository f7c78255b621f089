"""Having the cluster's metadata changed, and reading it, from the node's event loop."""

from __future__ import annotations

from goq.cluster.metadata.commands import AnyCommand, encode_command
from goq.cluster.metadata.results import Accepted, Rejected
from goq.cluster.metadata.state import MetadataState
from goq.cluster.metadata.state_machine import MetadataStateMachine, decode_result
from goq.cluster.raft.node import RaftNode
from goq.errors import BY_CODE, Conflict, GoqError, TimedOut, Unavailable

_ERRORS = {**BY_CODE, "not_enough_nodes": Unavailable}  # more may be up in a moment


class MetadataClient:
    """The metadata as this node has it, and the way to change it."""

    def __init__(self, raft: RaftNode, machine: MetadataStateMachine) -> None:
        self._raft = raft
        self._machine = machine

    @property
    def state(self) -> MetadataState:
        """The metadata as far as it is known here."""
        return self._machine.state

    async def propose(self, command: AnyCommand, timeout_s: float = 5.0) -> Accepted:
        """Have a command applied; what it changed is known here on return.

        Raises why it was refused, ``Conflict`` if what it was decided on is no longer so,
        ``Unavailable`` when it was not applied, ``TimedOut`` when that is not known.
        """
        return await self._propose(command, timeout_s, self._raft.new_proposal_id())

    async def propose_until_decided(self, command: AnyCommand) -> Accepted | None:
        """Have a command applied, or know for sure that it is not: then None."""
        request = self._raft.new_proposal_id()
        while True:
            try:
                return await self._propose(command, 5.0, request)
            except TimedOut:
                continue  # sent again it is the same request, and answered as such
            except GoqError:
                return None

    async def _propose(
        self, command: AnyCommand, timeout_s: float, request: tuple[int, int]
    ) -> Accepted:
        answer = await self._raft.propose(encode_command(command), timeout_s, request)
        result = decode_result(answer)
        if isinstance(result, Rejected):  # most of the metadata's own codes are of one kind
            raise _ERRORS.get(result.code, Conflict)(result.detail)
        return result
