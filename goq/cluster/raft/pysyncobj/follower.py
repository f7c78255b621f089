"""Last part of the Raft core: message dispatch, and what a follower accepts.

See ``core.py`` for the class's name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pysyncobj import FAIL_REASON

from goq.cluster.raft import codec
from goq.cluster.raft.log.records import Entry
from goq.cluster.raft.log.snapshots import SnapshotMetadata
from goq.cluster.raft.member import RaftMember
from goq.cluster.raft.pysyncobj import leader as leading
from goq.cluster.raft.pysyncobj.core import FATAL, now_s
from goq.cluster.raft.state_comparison import StateDigest
from goq.errors import CorruptData, InvalidInput, StorageFull

_log = logging.getLogger(__name__)


class _SyncObj(leading._SyncObj):
    """Follows."""

    def __onMessageReceived(self, node: RaftMember, message: dict[str, Any]) -> None:
        self._raise_if_failed()
        if node not in self.__otherNodes:
            return
        handler = _HANDLERS.get(message["type"])
        try:
            if handler is not None:
                handler(self, node, message)
            elif message["type"] in _LIBRARY_MESSAGES:
                if message["type"] == "apply_command":
                    codec.check_command(message["command"])
                super().__onMessageReceived(node, message)
        except InvalidInput as error:
            _log.error("rejected a message from %s: %s", node.id, error)
        except StorageFull as error:
            _log.error("cannot process a message from %s now: %s", node.id, error.detail)
        except FATAL as error:
            self._failure = error
            raise

    def _on_append(self, node: RaftMember, message: dict[str, Any]) -> None:
        """Remove only entries that contradict the leader; commit only entries that it confirmed."""
        if not self.__accept_leader(node, message):
            return
        journal, index = self.__raftLog, message["prevLogIdx"]
        previous = journal.at(index)
        if previous is None or previous.term != message["prevLogTerm"]:
            next_index = self.__raftCommitIndex + 1  # the leader certainly has these entries
            self.__transport.send(node, self.__reply(message, next_index, success=False))
            return
        codec.check_entries(index, message["entries"])
        if "digest" in message:
            self._comparison.on_announced(StateDigest(*message["digest"]))
        for command, index, term in message["entries"]:
            ours = journal.at(index)
            if ours is None or ours.term != term:
                self.__store_entry(Entry(bytes(command), index, term))
        self.__acknowledge(node, message, index)

    def __store_entry(self, entry: Entry) -> None:
        journal = self.__raftLog
        if entry.index <= self.__raftCommitIndex:
            raise CorruptData(f"the leader contradicts the committed entry {entry.index}")
        cut = [old.command[0] for old in journal[entry.index - journal.first.index :]]
        journal.add(*entry)
        is_change = codec.MEMBERSHIP in (*cut, entry.command[0])
        if is_change or entry.index == self._told_members[0]:
            self.__use_members(journal.members())

    def __acknowledge(self, node: RaftMember, message: dict[str, Any], index: int) -> None:
        """Acknowledge, once durable, that the log up to ``index`` matches the leader's.

        What is durable already is acknowledged at once: a heartbeat at rest needs no tick.
        """
        commit_index = min(message["commit_index"], index)
        self.__raftCommitIndex = max(self.__raftCommitIndex, commit_index)
        reply = self.__reply(message, index + 1, success=True)
        if self.__raftLog.is_synced:
            self.__transport.send(node, reply)
        else:
            self._replies[node] = reply

    def __reply(self, message: dict[str, Any], index: int, *, success: bool) -> dict[str, Any]:
        return {
            "type": "next_node_idx",
            "term": self.__raftCurrentTerm,
            "round": message.get("round", 0),
            "next_node_idx": index,
            "success": success,
            **_sent_ms_of(message),
        } | self.__snapshot_request()

    def __snapshot_request(self) -> dict[str, int]:
        """Return what a diverged member adds to a reply: the oldest index that it can begin at."""
        if not self._comparison.has_diverged:
            return {}
        return {"snapshot_from": self.__raftLog.first.index}

    def __accept_leader(self, node: RaftMember, message: dict[str, Any]) -> bool:
        """Accept the sender as the leader of its term; return False if that term is over."""
        if message["term"] < self.__raftCurrentTerm:
            reply = self.__reply(message, self.__raftCommitIndex + 1, success=False)
            self.__transport.send(node, reply)
            return False
        self._on_leader_heard()
        if message["term"] > self.__raftCurrentTerm:
            self.__transferInProgress = False
            self.__setCurrentTerm(message["term"], None)
        if not self.__transferInProgress:
            self.__raftElectionDeadline = now_s() + self.__generateRaftTimeout()
        if self.__raftLeader != node:
            self.__onLeaderChanged()
            self._comparison.on_new_leader()
        self.__raftLeader = node
        self.__setState(0)
        self.__leaderCommitIndex = message["commit_index"]
        return True

    def _on_snapshot(self, node: RaftMember, message: dict[str, Any]) -> None:
        """Store a chunk; install a complete snapshot durably, and acknowledge it only then."""
        if not self.__accept_leader(node, message):
            return
        names = ("index", "index_term", "members", "size_bytes", "crc32c")
        copy = SnapshotMetadata(*(message[name] for name in names))
        ours = self.__raftLog.at(copy.index)
        is_known = copy.index <= self.__raftCommitIndex or (ours and ours.term == copy.term)
        if copy.index < self.__raftLog.first.index or (
            is_known and not self._comparison.has_diverged
        ):
            self.__acknowledge(node, message, max(copy.index, self.__raftCommitIndex))
            return
        offset = self._snapshots.receive_chunk(copy, message["offset"], message["data"])
        if offset is None:
            self.__install(copy)
            self.__acknowledge(node, message, copy.index)
            return
        reply = {"type": "snapshot_reply", "term": message["term"], **_sent_ms_of(message)}
        self.__transport.send(node, reply | {"index": copy.index, "offset": offset})

    def __install(self, copy: SnapshotMetadata) -> None:
        """Replace the state by that of a snapshot.

        A log that has the snapshot's entry stays: the leader counts on all that was acknowledged.
        A diverged member then applies the entries behind the snapshot again.
        """
        ours = self.__raftLog.at(copy.index)
        if ours is None or ours.term != copy.term:
            self.__raftLog.reset(copy.index, copy.term, copy.members)
            self.__use_members(copy.members)
        self._snapshots.install(copy, is_diverged=self._comparison.has_diverged)
        self._comparison.on_restored(copy.index, self._machine.digest)
        self.__raftCommitIndex = max(self.__raftCommitIndex, copy.index)
        self.__raftLastApplied = copy.index
        self.__raftElectionDeadline = (
            now_s() + self.__generateRaftTimeout()
        )  # installing took a while
        passed = [index for index in self.__commandsWaitingCommit if index <= copy.index]
        for index in sorted(passed):
            for _, callback in self.__commandsWaitingCommit.pop(index):
                callback(None, FAIL_REASON.UNKNOWN_OUTCOME)


def _sent_ms_of(message: dict[str, Any]) -> dict[str, Any]:
    """Return what a reply repeats; nothing for a leader of an earlier version."""
    return {"sent_ms": message["sent_ms"]} if "sent_ms" in message else {}


_Handler = Callable[[_SyncObj, RaftMember, dict[str, Any]], None]
_HANDLERS: dict[str, _Handler] = {
    "request_pre_vote": _SyncObj._on_request_pre_vote,
    "response_pre_vote": _SyncObj._on_response_pre_vote,
    "request_vote": _SyncObj._on_request_vote,
    "response_vote": _SyncObj._on_response_vote,
    "timeout_now": _SyncObj._on_timeout_now,
    "append_entries": _SyncObj._on_append,
    "next_node_idx": _SyncObj._on_append_reply,
    "snapshot": _SyncObj._on_snapshot,
    "snapshot_reply": _SyncObj._on_snapshot_reply,
}
_LIBRARY_MESSAGES = ("apply_command", "apply_command_response")
