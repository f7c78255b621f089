"""Third part of the Raft core: what a leader sends, and which replies it trusts.

See ``core.py`` for the class's name.
"""

from __future__ import annotations

from typing import Any

from goq import limits
from goq.cluster.raft.member import RaftMember, sorted_members
from goq.cluster.raft.pysyncobj import election as electing
from goq.cluster.raft.pysyncobj.core import now_s

_LEADER = 2


class _SyncObj(electing._SyncObj):
    """Leads."""

    def _on_append_reply(self, node: RaftMember, message: dict[str, Any]) -> None:
        """Trust replies of this term only, and of several rejections in transit only the first."""
        if self.__raftState == _LEADER and message["term"] > self.__raftCurrentTerm:
            self._on_later_term(message["term"])
        if self.__raftState != _LEADER or message["term"] != self.__raftCurrentTerm:
            return
        self.__note_answer(node, message)
        self._snapshots_wanted.pop(node, None)
        if "snapshot_from" in message:
            self._snapshots_wanted[node] = message["snapshot_from"]
        wanted = min(message["next_node_idx"], self.__raftLog.last.index + 1)
        if message["success"]:
            self.__raftMatchIndex[node] = max(self.__raftMatchIndex[node], wanted - 1)
            self.__raftNextIndex[node] = max(self.__raftNextIndex[node], wanted)
        elif message["round"] == self._rounds.get(node, 0):
            self._rounds[node] = message["round"] + 1
            self.__raftNextIndex[node] = max(self.__raftMatchIndex[node] + 1, wanted)
            self.__newAppendEntriesTime = 0  # send at the next tick

    def __note_answer(self, node: RaftMember, message: dict[str, Any]) -> None:
        """Note when this leader was answered, and when it had sent what is answered."""
        self.__lastResponseTime[node] = answered_s = now_s()
        sent_ms = message.get("sent_ms")
        sent_s = answered_s if sent_ms is None else min(sent_ms / 1000, answered_s)
        self._followed_s[node] = max(self._followed_s.get(node, sent_s), sent_s)

    def __sendAppendEntries(self) -> None:
        self.__newAppendEntriesTime = now_s() + self.__conf.appendEntriesPeriod
        for node in sorted_members(self.__otherNodes & self.__connectedNodes):
            self.__send_missing(node)
            wanted = self._snapshots_wanted.get(node)
            if wanted is not None and wanted <= self.__raftLastApplied:
                self.__send_snapshot(node, wanted)

    def __send_missing(self, node: RaftMember) -> None:
        """Send the entries that a follower lacks, up to a limit; at least a heartbeat."""
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
                "sent_ms": int(1000 * now_s()),
            }
            digest = self._comparison.latest
            if digest is not None:
                message["digest"] = tuple(digest)
            if self.__transport.send(node, message) is False or node not in self.__connectedNodes:
                return
            self.__raftNextIndex[node] = index + len(entries)
            heartbeat = False

    def __send_snapshot(self, node: RaftMember, index_min: int = 0) -> None:
        journal, snapshots = self.__raftLog, self._snapshots
        held = snapshots.retained_index()
        if held is None or journal.at(held) is None or held < index_min:
            index = self.__raftLastApplied
            if not snapshots.create(index, journal.get(index).term, journal.members(index)):
                return
        piece = snapshots.next_chunk(node.id, self.__conf.raftMaxTimeout)
        piece |= {"term": self.__raftCurrentTerm, "commit_index": self.__raftCommitIndex}
        piece["sent_ms"] = int(1000 * now_s())
        self.__transport.send(node, piece)

    def _on_snapshot_reply(self, node: RaftMember, message: dict[str, Any]) -> None:
        if self.__raftState != _LEADER or message["term"] != self.__raftCurrentTerm:
            return
        self.__note_answer(node, message)
        if self._snapshots.on_reply(node.id, message["index"], message["offset"]):
            self.__newAppendEntriesTime = 0
