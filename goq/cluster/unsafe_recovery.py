"""Unsafe recovery: restarts a cluster from one node's folder after most nodes are lost for good.

Nothing can be decided without a majority of the nodes. So this appends to the Raft log of one
stopped node what no majority agreed on: the removal of all other members, and a command
(``ForceNewCluster``) that makes this node the only one. When the node starts, its own vote is the
majority, and it applies both. Messages that only the lost nodes had are lost. The lost nodes must
not return: they would be a cluster of their own. This node does not talk with them any more.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import NamedTuple

from goq.cluster.membership.disk_identity import load_disk_id
from goq.cluster.metadata.command_codec import encode_command
from goq.cluster.metadata.commands import ForceNewCluster
from goq.cluster.metadata.handlers.unsafe_recovery import SurvivingReplicas, surviving_replicas
from goq.cluster.metadata.state import MetadataState
from goq.cluster.metadata.state_machine import MetadataStateMachine
from goq.cluster.raft import codec
from goq.cluster.raft.log.journal import FILE_NAME, Journal
from goq.cluster.raft.log.snapshots import Snapshots
from goq.cluster.raft.member import RaftMember
from goq.cluster.raft.state_machine.state_machine import Proposal
from goq.errors import Conflict, UsageError
from goq.storage.data_dir_lock import DataDirLock
from goq.storage.disk import Disk

_PIECE_BYTES = 256 * 1024


class RecoveryPlan(NamedTuple):
    """The outcome of a recovery: the node that continues, the nodes given up, what survives."""

    node: str
    given_up: tuple[str, ...]
    survival: SurvivingReplicas


class UnsafeRecovery:
    """The folder of a stopped member, locked and open until :meth:`close`.

    Raises ``UsageError`` if the folder is not a member's, ``DataDirLocked``, ``CorruptData``, and
    ``Conflict`` if its node is the only one already.
    """

    def __init__(self, disk: Disk, data_dir: Path) -> None:
        folder = data_dir / "cluster"
        if FILE_NAME not in disk.names(folder):
            raise UsageError(f"{data_dir} is not the folder of a node of a cluster")
        self._lock = DataDirLock(data_dir)
        self._machine: MetadataStateMachine | None = None
        self._journal: Journal | None = None
        try:
            self._disk = load_disk_id(disk, data_dir, folder, data_dir / "topics").id
            machine = self._machine = MetadataStateMachine(folder)
            journal = self._journal = Journal.open(disk, folder, [])
            snapshots = Snapshots(disk, folder, machine, time.monotonic, _PIECE_BYTES)
            snapshots.recover(journal.first.index, journal.first.term)
            self.plan = self._make_plan(machine.state, journal, data_dir)
        except BaseException:
            self.close()
            raise

    def _make_plan(self, state: MetadataState, journal: Journal, data_dir: Path) -> RecoveryPlan:
        name = next((n.id for n in state.nodes.values() if n.disk == self._disk), None)
        if name is None:
            raise UsageError(f"the node of {data_dir} has never been one of a cluster")
        others = {str(RaftMember(spec).id) for spec in journal.members()} | state.nodes.keys()
        others.discard(name)
        if not others:
            raise Conflict(f"{name} is the only node of its cluster already: start it")
        return RecoveryPlan(name, tuple(sorted(others)), surviving_replicas(state, name))

    def execute(self) -> None:
        """Make the node the only member; durable on return.

        After a crash half-way only some of the others are removed: repeat it.
        """
        journal, plan = self._journal, self.plan
        assert journal is not None
        term = journal.getCurrentTerm() + 1
        journal.set_term(term, plan.node)
        members = {str(RaftMember(spec).id) for spec in journal.members()} - {plan.node}
        commands = [
            bytes((codec.MEMBERSHIP,)) + codec.encode_change("rem", other)
            for other in sorted(members)
        ]
        command = encode_command(ForceNewCluster(plan.node, self._disk))
        request = Proposal(codec.COMMAND_VERSION, secrets.randbits(63), 1, command)
        commands.append(bytes((codec.REGULAR,)) + codec.encode_proposal(request))
        for index, data in enumerate(commands, journal.last.index + 1):
            journal.add(data, index, term)
        journal.sync()

    def close(self) -> None:
        """Close the files and release the lock."""
        if self._journal is not None:
            self._journal.close()
        if self._machine is not None:
            self._machine.close()
        self._lock.release()
