"""First part of the Raft core: ticks, new commands, commit and apply, and log compaction.

The classes here, in ``leader.py`` and in ``follower.py`` have the library's class name with an
underscore in front. Python drops leading underscores when it mangles names, so ``self.__x`` is the
library's own ``__x`` in both classes. That holds for one exact version of the library, which is
checked below. Methods with the library's names are called by the library, in place of its own.
"""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import pysyncobj.syncobj as library
from pysyncobj import FAIL_REASON, SyncObj
from pysyncobj.version import VERSION

from goq import limits
from goq.cluster.raft import codec
from goq.cluster.raft.log.journal import Journal
from goq.cluster.raft.log.records import Entry
from goq.cluster.raft.log.snapshots import Snapshots
from goq.cluster.raft.member import RaftMember, sorted_members
from goq.cluster.raft.state_comparison import StateComparison
from goq.cluster.raft.state_machine.state_machine import Refused, StateMachine, StateMachineFailed
from goq.errors import CorruptData, GoqError, StorageFailed, StorageFull

if VERSION != "0.3.17":
    raise ImportError(f"goq needs pysyncobj 0.3.17, not {VERSION}: pip install pysyncobj==0.3.17")

FATAL = (StorageFailed, CorruptData, StateMachineFailed, OSError, MemoryError)
"""After these errors a member stops: its memory may differ from its disk."""

_log = logging.getLogger(__name__)


def now_s() -> float:
    """Return the time of the library's clock."""
    time_s: float = library.monotonicTime()
    return time_s


class _SyncObj(SyncObj):  # type: ignore[misc]
    """Ticks."""

    _machine: StateMachine
    _snapshots: Snapshots
    _random: Random
    _failure: Exception | None = None
    _comparison: StateComparison
    __raftLeader: Any

    def _adopt(self, journal: Journal, snapshots: Snapshots, applied_index: int) -> None:
        """Replace the library's in-memory journal, before the first tick."""
        self.__raftLog = journal
        self.__raftCurrentTerm = max(journal.getCurrentTerm(), journal.last.term)
        self.__votedForNodeId = journal.getVotedForNodeId()
        self.__raftCommitIndex = self.__raftLastApplied = applied_index
        self.__commandsLocalCounter = self._random.getrandbits(62)  # unlike ids before a restart
        self._snapshots = snapshots
        self._comparison.on_applied(applied_index, self._machine.digest)
        self._told_members: tuple[int, list[str]] = (0, [])
        self._snapshots_wanted: dict[RaftMember, int] = {}
        self._rounds: dict[RaftMember, int] = {}
        self._replies: dict[RaftMember, dict[str, Any]] = {}
        self.__use_members(journal.members())

    def _onTick(self, timeToWait: float = 0.0) -> None:
        self._raise_if_failed()
        try:
            self.__raftLog.sync()
            for node, answer in self._replies.items():  # one sync for all since the last tick
                if answer["term"] == self.__raftCurrentTerm:
                    self.__transport.send(node, answer)
            self._replies.clear()
            self._stand_if_due()  # moves the deadline, so that the library begins no election
            self.__raftLog.sync()  # a lone member has won, and commits what it began its term with
            super()._onTick(timeToWait)
            self.__raftLog.sync()  # the leader's own, while the followers sync theirs
        except FATAL as error:
            self._failure = error
            raise

    def _stand_if_due(self) -> None:
        """Begin an election if one is due; see ``election.py``."""
        raise NotImplementedError

    def _let_others_stand_first(self) -> None:
        """Put off an election: the state of a diverged member counts only if no other can lead."""
        self._comparison.on_new_leader()
        self.__raftElectionDeadline = now_s() + 2 * self.__conf.raftMaxTimeout

    def __setCurrentTerm(self, term: int, vote: str | None) -> None:
        """Enter a term only once it is durable: a full disk must not make this member a leader."""
        self.__raftLog.setCurrentTerm(term, vote)
        self.__raftCurrentTerm, self.__votedForNodeId = term, vote

    def __applyLogEntries(self) -> bool:
        """Apply durable entries; count each before its callbacks; survive its exceptions."""
        before, comparison = self.__raftLastApplied, self._comparison
        if self.__raftCommitIndex > before:
            self.__raftLog.sync()
        while self.__raftLastApplied < self.__raftCommitIndex and not comparison.has_diverged:
            entry = self.__raftLog.get(self.__raftLastApplied + 1)
            result = self.__apply(entry)
            self.__raftLastApplied += 1
            comparison.on_applied(entry.index, self._machine.digest)
            for term, callback in self.__commandsWaitingCommit.pop(entry.index, []):
                if term == entry.term:
                    callback(result, FAIL_REASON.SUCCESS)
                else:
                    callback(None, FAIL_REASON.DISCARDED)
        return bool(self.__raftLastApplied > before)  # True: send to the followers at once

    def __apply(self, entry: Entry) -> Any:
        if entry.command[0] != codec.REGULAR:
            return None  # members changed when the entry was appended
        try:
            return self._machine.apply(codec.decode_proposal(entry.command), entry.index)
        except (StateMachineFailed, StorageFull, OSError, MemoryError):
            raise
        except GoqError as error:
            _log.warning("the command at %d was refused: %s", entry.index, error.detail)
            return Refused(error.code, error.detail)
        except Exception as error:
            _log.exception("the command at %d could not be applied", entry.index)
            return Refused("internal", f"{type(error).__name__}: {error}")

    def _checkCommandsToApply(self) -> None:
        last = self.__raftLog.last.index
        super()._checkCommandsToApply()
        if self.__raftLog.last.index > last:
            self.__sendAppendEntries()  # one batch, without waiting for the heartbeat

    def __tryLogCompaction(self) -> None:
        """Trim durably applied entries, but keep some for lagging followers."""
        journal, entries_min = self.__raftLog, self.__conf.logCompactionMinEntries
        held = self._snapshots.retained_index()
        large = journal.size_bytes > limits.RAFT_JOURNAL_BYTES
        if len(journal) <= entries_min and not large:
            return
        keep = 1 if large else entries_min // 2
        index = min(self.__raftLastApplied, journal.last.index - keep + 1)
        if held is not None and held < index:
            if journal.size_bytes > 2 * limits.RAFT_JOURNAL_BYTES:
                self._snapshots.discard_outgoing()  # or the log would grow without bound
            else:
                index = held
        if index > journal.first.index or (large and journal.has_grown):
            try:
                self._machine.flush(self.__raftLastApplied)
                journal.trim(max(index, journal.first.index))
            except StorageFull as error:
                _log.warning("the cluster's log cannot be trimmed: %s", error)

    def _applyCommand(
        self,
        command: bytes,
        callback: Any,
        commandType: int | None = None,
    ) -> None:
        full = self.__raftLog.size_bytes > limits.RAFT_JOURNAL_BYTES_MAX
        if commandType is not None:
            command = bytes((commandType,)) + command
        try:
            if full:
                raise library.Queue.Full
            self.__commandsQueue.put_nowait((command, callback))
        except library.Queue.Full:
            self.__callErrCallback(FAIL_REASON.QUEUE_FULL, callback)

    def addNodeToCluster(self, node: str, callback: Any = None) -> None:
        """Add a member, given as its spec."""
        self._applyCommand(codec.encode_change("add", node), callback, codec.MEMBERSHIP)

    def removeNodeFromCluster(self, node: str, callback: Any = None) -> None:
        """Remove a member, given as its spec."""
        self._applyCommand(codec.encode_change("rem", node), callback, codec.MEMBERSHIP)

    def setCodeVersion(self, newVersion: int, callback: Any = None) -> None:
        """Refuse: each proposal carries its own version."""
        raise NotImplementedError("a proposal carries its version")

    def __parseChangeClusterRequest(self, command: bytes) -> list[Any] | None:
        if command[:1] != bytes((codec.MEMBERSHIP,)):
            return None
        operation, spec = codec.decode_change(command)
        return [operation, RaftMember(spec).id, RaftMember(spec)]

    def __changeCluster(self, request: list[Any]) -> bool:
        """Accept one change at a time, and no new member while a member is unreachable.

        A member that does not know of the new one would refuse its votes and its leadership.
        """
        if codec.MEMBERSHIP in self.__raftLog.command_kinds(self.__raftLastApplied + 1):
            return False
        committed = self.__raftCommitIndex
        here = {node for node, match in self.__raftMatchIndex.items() if match >= committed}
        if request[0] == "add" and not self.__otherNodes <= here & self.__connectedNodes:
            return False
        return bool(super().__changeCluster(request))

    def learn_members(self, index: int, members: list[str]) -> None:
        """Use these members, told by a member at this index, until the log is as new.

        Replaying an old part of the log, a node would refuse members that have come back with
        another disk, and drop those that had left meanwhile: its leader too.
        """
        self._told_members = index, members
        self.__use_members(self.__raftLog.members())

    def __use_members(self, members: list[str]) -> None:
        told_at, told = self._told_members
        if self.__raftLog.last.index < told_at:
            members = told
        others = {RaftMember(spec) for spec in members} - {self.__selfNode}
        specs = {node.spec for node in self.__otherNodes}
        stay = {node for node in others if node.spec in specs}
        if stay != self.__otherNodes:  # with another disk or address it is another member
            self.__updateClusterConfiguration(sorted_members(stay))
        if others != stay:
            self.__updateClusterConfiguration(sorted_members(others))

    def __onNodeDisconnected(self, node: RaftMember) -> None:
        super().__onNodeDisconnected(node)
        if node == self.__raftLeader:  # forwarded commands may be lost
            self.__onLeaderChanged()

    def __generateRaftTimeout(self) -> float:
        conf = self.__conf
        spread_s: float = conf.raftMaxTimeout - conf.raftMinTimeout
        return float(conf.raftMinTimeout) + spread_s * self._random.random()

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise StorageFailed(f"this member of the cluster has stopped: {self._failure}")

    def _doDestroy(self) -> None:
        super()._doDestroy()
        self._snapshots.close()
