"""The complete Raft core, without threads, sockets or a clock: its owner ticks it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from pysyncobj import SyncObjConf

from goq.cluster.raft import codec
from goq.cluster.raft.log.journal import Journal
from goq.cluster.raft.log.snapshots import Snapshots
from goq.cluster.raft.member import RaftMember, check_member
from goq.cluster.raft.pysyncobj import follower as following
from goq.cluster.raft.pysyncobj.core import now_s
from goq.cluster.raft.state_comparison import StateComparison
from goq.cluster.raft.state_machine.state_machine import Proposal, StateMachine
from goq.errors import CorruptData
from goq.storage.disk import Disk

Callback = Callable[[Any, int], None]
_NO_LEADER_RETRY_S = 0.1
_log = logging.getLogger(__name__)


class HardenedSyncObj(following._SyncObj):
    """A Raft node. Not thread-safe, except for :meth:`apply`.

    ``self_id`` and ``other_ids`` are members, such as ``n1`` or ``n1=host:port``; the others count
    only in a new folder, later those of the log do. ``transport_class`` is called as the library
    does. ``request_ids`` supplies all randomness, that of elections too; time is what
    ``pysyncobj.syncobj.monotonicTime`` returns. Raises ``CorruptData`` when the folder and the
    state machine do not match, or synced bytes have changed.
    """

    def __init__(
        self,
        self_id: str,
        other_ids: list[str],
        conf: SyncObjConf,
        *,
        disk: Disk,
        folder: Path,
        machine: StateMachine,
        transport_class: Callable[..., Any],
        request_ids: Random,
    ) -> None:
        conf = copy.copy(conf)
        if conf.autoTick:
            raise ValueError("the node is ticked by its owner: autoTick must be off")
        conf.appendEntriesUseBatch = True  # a tick sends all new commands at once
        conf.dynamicMembershipChange = True
        conf.journalFile = conf.fullDumpFile = conf.password = None
        self._machine = machine
        self._comparison = StateComparison()  # read while the library looks at all attributes
        self._random = request_ids
        self._proposer = request_ids.getrandbits(63)
        self._sequence = 0
        members = sorted(map(check_member, {self_id, *other_ids}))
        journal = Journal.open(disk, folder, members)
        try:
            snapshots = Snapshots(disk, folder, machine, now_s, conf.logCompactionBatchSize)
            snapshots.recover(journal.first.index, journal.first.term)
            applied_index = max(machine.applied_index, journal.first.index)
            _check_same_history(folder, applied_index, journal.last.index)
        except BaseException:
            journal.close()
            raise
        super().__init__(
            RaftMember(self_id),
            [RaftMember(spec) for spec in other_ids],
            conf=conf,
            nodeClass=RaftMember,
            transportClass=transport_class,
        )
        self._adopt(journal, snapshots, applied_index)

    def apply(
        self,
        command: Any,
        callback: Callback | None = None,
        *,
        request: tuple[int, int] | None = None,
    ) -> tuple[int, int]:
        """Propose a command; return its proposal id, with which it can be proposed again.

        ``callback(result, reason)`` is called with the result, or with a ``FAIL_REASON`` of the
        library. It may never be called, as the connection to the leader may break. Raises
        ``TooLarge``, and ``InvalidInput`` for a command that is not plain data.
        """
        if request is None:
            self._sequence += 1
            request = (self._proposer, self._sequence)
        data = codec.encode_proposal(Proposal(codec.COMMAND_VERSION, *request, command))
        self._applyCommand(
            data, None if callback is None else _logging_errors(callback), codec.REGULAR
        )
        return request

    def submit(self, kind: int, body: bytes, callback: Callback) -> None:
        """Append a command of a kind in ``codec``; the caller has checked its body."""
        self._applyCommand(body, _logging_errors(callback), kind)

    def add_member(self, spec: str, callback: Callback) -> None:
        """Add a member, which runs already and knows the others."""
        self.addNodeToCluster(check_member(spec), _logging_errors(callback))

    def remove_member(self, spec: str, callback: Callback) -> None:
        """Remove a member; the leader does not remove itself."""
        self.removeNodeFromCluster(check_member(spec), _logging_errors(callback))

    @property
    def failure(self) -> Exception | None:
        """The error that stopped the node for good, if any."""
        return self._failure

    @property
    def leader_id(self) -> str | None:
        """The id of the leader, None while none is known."""
        leader = self._getLeader()
        return None if leader is None else str(leader.id)

    @property
    def has_diverged(self) -> bool:
        """Whether the state contradicts the leader's, whose snapshot the node waits for."""
        return self._comparison.has_diverged

    def reachable_members(self) -> frozenset[str]:
        """Return the members that answered this leader lately, with this one.

        None without the lead, or if no other member answered.
        The library counts its election as an answer of each. A former leader that is silent would
        count as reachable for so long.
        """
        if not self._isLeader():
            return frozenset()
        fallback_s = float(self._SyncObj__conf.leaderFallbackTimeout)
        since_s = max(now_s() - fallback_s, self._elected_s)
        answered = self._SyncObj__lastResponseTime
        connected = self._SyncObj__otherNodes & self._SyncObj__connectedNodes
        others = frozenset(str(n.id) for n in connected if answered.get(n, 0) > since_s)
        return others | {str(self.selfNode.id)} if others else others

    def unconnected_members(self) -> frozenset[str]:
        """Return the other members without an open connection."""
        others = self._SyncObj__otherNodes - self._SyncObj__connectedNodes
        if not others:
            return frozenset()
        return frozenset(str(node.id) for node in others)

    def members(self) -> list[str]:
        """Return all members as of the end of the log, including this one."""
        return self._journal().members()

    def unapplied_commands(self) -> list[Any]:
        """Return the proposed commands in the log that are not applied, committed or not."""
        entries = self._journal().entries_from(self.raftLastApplied + 1)
        regular = (entry.command for entry in entries if entry.command[0] == codec.REGULAR)
        return [codec.decode_proposal(command).command for command in regular]

    def _journal(self) -> Journal:
        journal: Journal = self._SyncObj__raftLog
        return journal

    def is_at_rest(self) -> bool:
        """Return whether this member has nothing to do before its next tick is due.

        It has applied its whole log. Of a leader, all members have that log too. No command that a
        member passed on waits for a tick, and no answer for a sync.
        """
        last = self._journal().last.index
        if (
            not self.raftLastApplied == self.raftCommitIndex == last
            or self._SyncObj__commandsQueue._FastQueue__queue
            or self._replies
        ):
            return False
        if not self._isLeader():
            has_leader = self.leader_id is not None and not self.has_diverged
            return bool(has_leader and self._SyncObj__raftElectionDeadline > now_s())
        sent_to = self._SyncObj__raftNextIndex
        return bool(
            all(sent_to.get(node) == last + 1 for node in self._SyncObj__otherNodes)
            and not self._snapshots_wanted
            and self._SyncObj__newAppendEntriesTime > now_s()
        )

    def tick_due_in_s(self) -> float:
        """Return the time until the next tick is due, if no message arrives before."""
        time_s = now_s()
        if not self._isLeader():
            stands_s = float(self._SyncObj__raftElectionDeadline) - time_s
            return stands_s if stands_s > 0 else _NO_LEADER_RETRY_S
        alone = not self._SyncObj__otherNodes
        if alone and self._journal().last.index > self.raftCommitIndex:
            return 0.0  # no other member's reply would trigger the next tick
        return max(0.0, float(self._SyncObj__newAppendEntriesTime) - time_s)


def _check_same_history(folder: Path, applied_index: int, last_index: int) -> None:
    if applied_index > last_index:
        raise CorruptData(
            f"the state of this node includes entry {applied_index}, but the log in {folder} ends"
            f" at {last_index}; remove this node from the cluster, and join it again with"
            " an empty folder"
        )


def _logging_errors(callback: Callback) -> Callback:
    def call(result: Any, reason: int) -> None:
        try:
            callback(result, reason)
        except Exception:
            _log.exception("a callback of the Raft node failed")

    return call
