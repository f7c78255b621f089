"""What of the library's own class is done otherwise here, method by method, and why.

The class is called as the library's is, but for an underscore that Python drops when it mangles
names: ``self.__x`` is the library's own ``__x`` on both sides. That holds for one exact version of
the library, which is checked. The methods have the library's names and are called by it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Any

import pysyncobj.syncobj as library
from pysyncobj import FAIL_REASON, SyncObj
from pysyncobj.version import VERSION

from goq import limits
from goq.cluster.raft import codec
from goq.cluster.raft.journal import Journal
from goq.cluster.raft.machine import MachineFailed, Refused, StateMachine
from goq.cluster.raft.member import Member, in_order
from goq.cluster.raft.records import Entry
from goq.cluster.raft.snapshots import Copy, Snapshots
from goq.errors import DamagedData, GoqError, InvalidInput, LogFailed, StorageFull

if VERSION != "0.3.17":
    raise ImportError(
        f"goq needs pysyncobj 0.3.17, and this is {VERSION}: pip install 'goq[cluster]'"
    )

_LEADER = 2
_log = logging.getLogger(__name__)


def _now_s() -> float:
    return library.monotonicTime()  # type: ignore[no-any-return]


class _SyncObj(SyncObj):  # type: ignore[misc]
    """The library's node with its faults mended; :class:`HardenedSyncObj` is the one to use."""

    _machine: StateMachine
    _snapshots: Snapshots
    _random: Random
    _failure: Exception | None = None
    __raftLeader: Any

    def _adopt(self, journal: Journal, snapshots: Snapshots, applied_index: int) -> None:
        """Take the place of the library's journal in memory, before the first tick."""
        self.__raftLog = journal
        self.__raftCurrentTerm = max(journal.getCurrentTerm(), journal.last.term)
        self.__votedForNodeId = journal.getVotedForNodeId()
        self.__raftCommitIndex = self.__raftLastApplied = applied_index
        self.__commandsLocalCounter = self._random.getrandbits(62)  # no id of an earlier life
        self._snapshots = snapshots
        self._rounds: dict[Member, int] = {}
        self._answers: dict[Member, dict[str, Any]] = {}
        self.__take_members(journal.members())

    # Ticks

    def _onTick(self, timeToWait: float = 0.0) -> None:
        self._raise_if_failed()
        try:
            self.__raftLog.sync()
            for node, answer in self._answers.items():  # one sync for all that came since
                if answer["term"] == self.__raftCurrentTerm:
                    self.__transport.send(node, answer)
            self._answers.clear()
            super()._onTick(timeToWait)
            self.__raftLog.sync()  # the leader's own, while the followers do theirs
        except (LogFailed, DamagedData, MachineFailed, OSError, MemoryError) as error:
            self._failure = error
            raise

    def __applyLogEntries(self) -> bool:
        """Apply only what is durable here; count before calling back; pass exceptions by."""
        before = self.__raftLastApplied
        if self.__raftCommitIndex > before:
            self.__raftLog.sync()
        while self.__raftLastApplied < self.__raftCommitIndex:
            entry = self.__raftLog.get(self.__raftLastApplied + 1)
            result = self.__apply(entry)
            self.__raftLastApplied += 1
            for term, callback in self.__commandsWaitingCommit.pop(entry.index, []):
                if term == entry.term:
                    callback(result, FAIL_REASON.SUCCESS)
                else:
                    callback(None, FAIL_REASON.DISCARDED)
        return bool(self.__raftLastApplied > before)  # then tell the followers at once

    def __apply(self, entry: Entry) -> Any:
        if entry.command[0] != codec.REGULAR:
            return None  # members changed when the entry came into the log
        try:
            return self._machine.apply(codec.decode_request(entry.command), entry.index)
        except (MachineFailed, OSError, MemoryError):
            raise
        except GoqError as error:
            return Refused(error.code, error.detail)
        except Exception as error:
            _log.exception("the command at %d cannot be applied", entry.index)
            return Refused("internal", f"{type(error).__name__}: {error}")

    def _checkCommandsToApply(self) -> None:
        last = self.__raftLog.last.index
        super()._checkCommandsToApply()
        if self.__raftLog.last.index > last:
            self.__sendAppendEntries()  # all of them at once, without waiting for the heartbeat

    def __tryLogCompaction(self) -> None:
        """Let go of what the machine holds durably, but keep some for followers that lag."""
        journal, entries_min = self.__raftLog, self.__conf.logCompactionMinEntries
        large = journal.size_bytes > limits.RAFT_JOURNAL_BYTES
        if len(journal) <= entries_min and not large:
            return
        held = self._snapshots.held_index()
        if large and held is not None and journal.size_bytes > 2 * limits.RAFT_JOURNAL_BYTES:
            self._snapshots.drop_outgoing()
            held = None
        keep = 1 if large else entries_min // 2
        index = min(self.__raftLastApplied, journal.last.index - keep + 1, held or 2**63)
        if index > journal.first.index or (large and journal.grown):
            try:
                self._machine.flush(self.__raftLastApplied)
                journal.trim(max(index, journal.first.index))
            except StorageFull as error:
                _log.warning("the log of the cluster cannot be trimmed: %s", error)

    # Messages

    def __onMessageReceived(self, node: Member, message: dict[str, Any]) -> None:
        self._raise_if_failed()
        if node not in self.__otherNodes:
            return
        handler = _HANDLERS.get(message["type"])
        try:
            if handler is not None:
                handler(self, node, message)
            elif message["type"] in _AS_THE_LIBRARY_DOES:
                if message["type"] == "apply_command":
                    codec.check_command(message["command"])
                super().__onMessageReceived(node, message)
        except InvalidInput as error:
            _log.error("refused a message of %s: %s", node.id, error)
        except (LogFailed, DamagedData, MachineFailed, OSError, MemoryError) as error:
            self._failure = error
            raise

    def _on_append(self, node: Member, message: dict[str, Any]) -> None:
        """Cut off only what contradicts the leader, and commit only what it vouched for."""
        if not self.__follow(node, message):
            return
        journal, index = self.__raftLog, message["prevLogIdx"]
        previous = journal.at(index)
        if previous is None or previous.term != message["prevLogTerm"]:
            answer = self.__raftCommitIndex + 1  # this much is the leader's as well, surely
            self.__transport.send(node, self.__answer(message, answer, success=False))
            return
        for command, index, term in message["entries"]:
            ours = journal.at(index)
            if ours is None or ours.term != term:
                self.__take_entry(Entry(bytes(command), index, term))
        self.__verified(node, message, index)

    def __take_entry(self, entry: Entry) -> None:
        journal = self.__raftLog
        if entry.index <= self.__raftCommitIndex:
            raise DamagedData(f"the leader contradicts the committed entry {entry.index}")
        cut = [old.command[0] for old in journal[entry.index - journal.first.index :]]
        journal.add(*entry)
        if codec.MEMBERSHIP in (*cut, entry.command[0]):
            self.__take_members(journal.members())

    def __verified(self, node: Member, message: dict[str, Any], index: int) -> None:
        """All up to ``index`` is the leader's: say so once it is durable."""
        commit_index = min(message["commit_index"], index)
        self.__raftCommitIndex = max(self.__raftCommitIndex, commit_index)
        self._answers[node] = self.__answer(message, index + 1, success=True)

    def __answer(self, message: dict[str, Any], index: int, *, success: bool) -> dict[str, Any]:
        return {
            "type": "next_node_idx",
            "term": self.__raftCurrentTerm,
            "round": message.get("round", 0),
            "next_node_idx": index,
            "success": success,
        }

    def __follow(self, node: Member, message: dict[str, Any]) -> bool:
        """Take the sender for the leader of its term; False if that term is over."""
        if message["term"] < self.__raftCurrentTerm:
            return False
        if message["term"] > self.__raftCurrentTerm:
            self.__transferInProgress = False
            self.__setCurrentTerm(message["term"], None)
        if not self.__transferInProgress:
            self.__raftElectionDeadline = _now_s() + self.__generateRaftTimeout()
        if self.__raftLeader != node:
            self.__onLeaderChanged()
        self.__raftLeader = node
        self.__setState(0)
        self.__leaderCommitIndex = message["commit_index"]
        return True

    def _on_answer(self, node: Member, message: dict[str, Any]) -> None:
        """Believe answers of this term only, and of many refusals under way only the first."""
        if self.__raftState != _LEADER or message["term"] != self.__raftCurrentTerm:
            return
        self.__lastResponseTime[node] = _now_s()
        wanted = message["next_node_idx"]
        if message["success"] and wanted <= self.__raftLog.last.index + 1:
            self.__raftMatchIndex[node] = max(self.__raftMatchIndex[node], wanted - 1)
            self.__raftNextIndex[node] = max(self.__raftNextIndex[node], wanted)
        elif message["round"] == self._rounds.get(node, 0):
            self._rounds[node] = message["round"] + 1
            self.__raftNextIndex[node] = max(self.__raftMatchIndex[node] + 1, wanted)
            self.__newAppendEntriesTime = 0  # with the next tick

    def __sendAppendEntries(self) -> None:
        self.__newAppendEntriesTime = _now_s() + self.__conf.appendEntriesPeriod
        for node in sorted(
            self.__otherNodes & self.__connectedNodes, key=lambda node: str(node.id)
        ):
            self.__feed(node)

    def __feed(self, node: Member) -> None:
        """Send what a follower lacks, as far as it fits on the way; at least a heartbeat."""
        journal, heartbeat = self.__raftLog, True
        while True:
            index = self.__raftNextIndex[node]
            previous = journal.at(index - 1)
            if previous is None:
                self.__send_snapshot(node)
                return
            under_way = index - 1 - self.__raftMatchIndex[node]
            full = under_way > limits.RAFT_IN_FLIGHT_ENTRIES_MAX
            entries = [] if full else journal.batch(index, self.__conf.appendEntriesBatchSizeBytes)
            if not entries and not heartbeat:
                return
            message = {
                "type": "append_entries",
                "term": self.__raftCurrentTerm,
                "commit_index": self.__raftCommitIndex,
                "round": self._rounds.get(node, 0),
                "prevLogIdx": previous.index,
                "prevLogTerm": previous.term,
                "entries": [tuple(entry) for entry in entries],
            }
            if self.__transport.send(node, message) is False or node not in self.__connectedNodes:
                return
            self.__raftNextIndex[node] = index + len(entries)
            heartbeat = False

    # Snapshots

    def __send_snapshot(self, node: Member) -> None:
        journal, snapshots = self.__raftLog, self._snapshots
        held = snapshots.held_index()
        if held is None or journal.at(held) is None:
            index = self.__raftLastApplied
            snapshots.take(index, journal.get(index).term, journal.members(index))
        piece = snapshots.piece(node.id, self.__conf.raftMaxTimeout)
        piece |= {"term": self.__raftCurrentTerm, "commit_index": self.__raftCommitIndex}
        self.__transport.send(node, piece)

    def _on_snapshot(self, node: Member, message: dict[str, Any]) -> None:
        """Take a piece; install the whole durably, and only then say so."""
        if not self.__follow(node, message):
            return
        names = ("index", "index_term", "members", "size_bytes", "crc32c")
        copy = Copy(*(message[name] for name in names))
        ours = self.__raftLog.at(copy.index)
        if copy.index <= self.__raftCommitIndex or (ours and ours.term == copy.term):
            self.__verified(node, message, max(copy.index, self.__raftCommitIndex))
            return
        offset = self._snapshots.receive(copy, message["offset"], message["data"])
        if offset is None:
            self.__install(copy)
            self.__verified(node, message, copy.index)
            return
        reply = {"type": "snapshot_reply", "term": message["term"]}
        self.__transport.send(node, reply | {"index": copy.index, "offset": offset})

    def __install(self, copy: Copy) -> None:
        self.__raftLog.reset(copy.index, copy.term, copy.members)
        self._snapshots.install(copy)
        self.__raftCommitIndex = self.__raftLastApplied = copy.index
        self.__take_members(copy.members)
        passed = [index for index in self.__commandsWaitingCommit if index <= copy.index]
        for index in sorted(passed):
            for _, callback in self.__commandsWaitingCommit.pop(index):
                callback(None, FAIL_REASON.UNKNOWN_OUTCOME)

    def _on_snapshot_reply(self, node: Member, message: dict[str, Any]) -> None:
        if self.__raftState != _LEADER or message["term"] != self.__raftCurrentTerm:
            return
        self.__lastResponseTime[node] = _now_s()
        if self._snapshots.answered(node.id, message["index"], message["offset"]):
            self.__feed(node)

    # Commands and members

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
        """Add a member, given as its text."""
        self._applyCommand(codec.encode_change("add", node), callback, codec.MEMBERSHIP)

    def removeNodeFromCluster(self, node: str, callback: Any = None) -> None:
        """Remove a member, given as its text."""
        self._applyCommand(codec.encode_change("rem", node), callback, codec.MEMBERSHIP)

    def setCodeVersion(self, newVersion: int, callback: Any = None) -> None:
        """Refuse: commands carry versions of their own."""
        raise NotImplementedError("a request carries its version")

    def __parseChangeClusterRequest(self, command: bytes) -> list[Any] | None:
        if command[:1] != bytes((codec.MEMBERSHIP,)):
            return None
        operation, spec = codec.decode_change(command)
        return [operation, Member(spec).id, Member(spec)]

    def __changeCluster(self, request: list[Any]) -> bool:
        """Take one change at a time: the next after this one is applied."""
        if codec.MEMBERSHIP in self.__raftLog.kinds(self.__raftLastApplied + 1):
            return False
        return bool(super().__changeCluster(request))

    def __take_members(self, members: list[str]) -> None:
        others = {Member(spec) for spec in members} - {self.__selfNode}
        if others != self.__otherNodes:
            self.__updateClusterConfiguration(in_order(others))

    def __onNodeDisconnected(self, node: Member) -> None:
        super().__onNodeDisconnected(node)
        if node == self.__raftLeader:  # what it was asked may be lost on the way
            self.__onLeaderChanged()

    def __generateRaftTimeout(self) -> float:
        conf = self.__conf
        spread_s: float = conf.raftMaxTimeout - conf.raftMinTimeout
        return float(conf.raftMinTimeout) + spread_s * self._random.random()

    # Ends

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise LogFailed(f"this member of the cluster has stopped: {self._failure}")

    def _doDestroy(self) -> None:
        super()._doDestroy()
        self._snapshots.close()


_Handler = Callable[[_SyncObj, Member, dict[str, Any]], None]
_HANDLERS: dict[str, _Handler] = {
    "append_entries": _SyncObj._on_append,
    "next_node_idx": _SyncObj._on_answer,
    "snapshot": _SyncObj._on_snapshot,
    "snapshot_reply": _SyncObj._on_snapshot_reply,
}
_AS_THE_LIBRARY_DOES = (
    "request_vote", "response_vote", "timeout_now", "apply_command", "apply_command_response"
)  # fmt: skip
