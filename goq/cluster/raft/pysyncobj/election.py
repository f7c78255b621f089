"""Second part of the Raft core: elections, with pre-votes and leader stickiness.

A member whose leader is silent first asks whether the others would vote for it, in a *pre-vote*
that changes no term (Ongaro's thesis, 9.6). So a member that alone is cut off, or that comes back,
does not depose a leader that the others hear. For the same reason a member that has heard its
leader lately takes no part in an election, unless that leader itself hands over (4.2.3).

A leader has a *lease* from the moment at which it sent what a majority has answered: nobody else
was elected before. Voters say for how long they had followed nobody. So whoever is elected knows
when the leases of all former leaders had begun, at the latest: before the shortest silence. One
after a closed connection counts from what was heard last, as the leader may live.

A member that is in a later term answers a leader of an earlier one with its term, and the leader
steps down: otherwise the two would never talk again. Votes are counted by voter.

See ``core.py`` for the class's name.
"""

from __future__ import annotations

import math
from typing import Any

from goq.cluster.raft.member import RaftMember, sorted_members
from goq.cluster.raft.pysyncobj import core as ticking
from goq.cluster.raft.pysyncobj.core import now_s

_FOLLOWER, _CANDIDATE, _LEADER = 0, 1, 2
PRE_VOTE_LEVEL = 1
"""The feature level from which on all members know pre-votes."""


class _SyncObj(ticking._SyncObj):
    """Elects."""

    silent_before_s = 0.0
    """For how long each voter had followed nobody, when this member was elected last."""

    _leader_heard_s = -math.inf
    _elected_s = -math.inf
    _votes_silent_s = 0.0
    _pre_vote_term = 0
    _vote_term = 0

    def _adopt(self, *parts: Any) -> None:
        super()._adopt(*parts)
        self._pre_voters: set[RaftMember] = set()
        self._voters: set[RaftMember] = set()
        self._followed_s: dict[RaftMember, float] = {}
        self._last_followed_s = now_s()  # what it followed before its start it does not know

    def _stand_if_due(self) -> None:
        """Begin an election if the leader was silent for too long, or has handed over."""
        is_due = self.__raftState != _LEADER and self.__raftElectionDeadline < now_s()
        if not is_due or not self.__connectedToAnyone():
            return
        is_transfer = self.__transferInProgress
        self.__raftElectionDeadline = now_s() + self.__generateRaftTimeout()
        if self._comparison.has_diverged:
            self._let_others_stand_first()
        elif is_transfer or not self.__otherNodes or not self._knows_pre_votes():
            self.__stand(is_transfer=is_transfer)
        else:
            self._pre_vote_term = self.__raftCurrentTerm + 1
            self._pre_voters.clear()
            self.__ask("request_pre_vote", self._pre_vote_term)

    def _knows_pre_votes(self) -> bool:
        return self._machine.feature_level >= PRE_VOTE_LEVEL

    def __stand(self, *, is_transfer: bool) -> None:
        self._pre_vote_term = 0
        self.__transferInProgress = False
        self.__raftLeader = None
        self.__setCurrentTerm(self.__raftCurrentTerm + 1, self.__selfNode.id)
        self.__setState(_CANDIDATE)  # of that term alone: votes of earlier ones may still come
        self._vote_term = self.__raftCurrentTerm
        self._voters.clear()
        self._votes_silent_s = self.__silent_s()
        more = {"is_transfer": True} if is_transfer and self._knows_pre_votes() else {}
        self.__ask("request_vote", self.__raftCurrentTerm, **more)
        self.__onLeaderChanged()
        self.__win_with_majority()

    def __ask(self, kind: str, term: int, **more: Any) -> None:
        last = self.__raftLog.last
        message = {"type": kind, "term": term}
        message |= {"last_log_index": last.index, "last_log_term": last.term, **more}
        for node in sorted_members(self.__otherNodes):
            self.__transport.send(node, message)

    def _on_request_pre_vote(self, node: RaftMember, message: dict[str, Any]) -> None:
        """Say whether this member would vote for another one now.

        A candidate in an earlier term learns the term, as it may be the only one with all entries.
        """
        if not self.__is_up_to_date(message) or self.__has_leader():
            return
        reply = {"type": "response_pre_vote", "term": message["term"]}
        if message["term"] <= self.__raftCurrentTerm:
            reply |= {"term": self.__raftCurrentTerm, "is_granted": False}
        self.__transport.send(node, reply)

    def _on_response_pre_vote(self, node: RaftMember, message: dict[str, Any]) -> None:
        term, is_granted = message["term"], message.get("is_granted", True)
        if self.__raftState == _LEADER:
            return
        if not is_granted and term > self.__raftCurrentTerm:
            self._on_later_term(term)
        if not is_granted or not term == self._pre_vote_term == self.__raftCurrentTerm + 1:
            return
        self._pre_voters.add(node)
        if self.__is_majority(self._pre_voters):
            self.__raftElectionDeadline = now_s() + self.__generateRaftTimeout()
            self.__stand(is_transfer=False)

    def _on_request_vote(self, node: RaftMember, message: dict[str, Any]) -> None:
        """Vote for a member whose log has all that this one has; once in a term."""
        is_wanted = message.get("is_transfer", False) or not self._knows_pre_votes()
        if not is_wanted and self.__has_leader():
            return
        if message["term"] > self.__raftCurrentTerm:
            self.__setCurrentTerm(message["term"], None)
            self.__setState(_FOLLOWER)
            self.__raftLeader = None
        if message["term"] < self.__raftCurrentTerm or not self.__is_up_to_date(message):
            return
        if self.__raftState == _LEADER or self.__votedForNodeId not in (None, node.id):
            return
        self.__setCurrentTerm(self.__raftCurrentTerm, node.id)
        self.__raftElectionDeadline = now_s() + self.__generateRaftTimeout()
        silent_ms = int(1000 * self.__silent_s())
        vote = {"type": "response_vote", "term": message["term"], "silent_ms": silent_ms}
        self.__transport.send(node, vote)

    def _on_response_vote(self, node: RaftMember, message: dict[str, Any]) -> None:
        if self.__raftState == _CANDIDATE and message["term"] == self._vote_term:
            self._voters.add(node)
            silent_s = message.get("silent_ms", 0) / 1000
            self._votes_silent_s = min(self._votes_silent_s, silent_s)
            self.__win_with_majority()

    def _on_timeout_now(self, node: RaftMember, message: dict[str, Any]) -> None:
        """Stand for election at once, as the leader asks."""
        if message["term"] >= self.__raftCurrentTerm and node == self.__raftLeader:
            self.__raftElectionDeadline = 0
            self.__transferInProgress = True

    def _on_later_term(self, term: int) -> None:
        """Step down: another member is in a later term, and would not follow."""
        self.__setCurrentTerm(term, None)
        self.__setState(_FOLLOWER)
        self.__raftLeader = None
        self.__onLeaderChanged()

    def _on_leader_heard(self) -> None:
        self._leader_heard_s = self._last_followed_s = now_s()
        self._pre_vote_term = 0

    def __is_up_to_date(self, message: dict[str, Any]) -> bool:
        last = self.__raftLog.last
        theirs = (message["last_log_term"], message["last_log_index"])
        return bool(theirs >= (last.term, last.index))

    def __has_leader(self) -> bool:
        """Whether this member leads, or has heard its leader so lately that it may well live."""
        if self.__raftState == _LEADER:
            return True
        conf = self.__conf
        window_s = conf.raftMinTimeout - conf.appendEntriesPeriod
        return bool(now_s() - self._leader_heard_s < window_s)

    def lease_began_s(self) -> float:
        """Return since when, at the latest, no other member can have been elected before this time.

        It is the time at which this leader, or former leader, had sent what a majority answered.
        """
        needed = (len(self.__otherNodes) + 1) // 2
        if not needed:
            return now_s()
        followed_s = (self._followed_s.get(node, -math.inf) for node in self.__otherNodes)
        return sorted(followed_s, reverse=True)[needed - 1]

    def __silent_s(self) -> float:
        """Return for how long this member has followed nobody, and led nobody."""
        return max(0.0, now_s() - max(self._last_followed_s, self.lease_began_s()))

    @property
    def is_in_touch(self) -> bool:
        """Whether this member has heard its leader lately, or leads and hears a majority."""
        return self.__has_leader() and (self.__raftState != _LEADER or bool(self.hasQuorum))

    def __is_majority(self, others: set[RaftMember]) -> bool:
        voters = others & self.__otherNodes
        return len(voters) + 1 > (len(self.__otherNodes) + 1) / 2

    def __win_with_majority(self) -> None:
        if self.__is_majority(self._voters):
            self.silent_before_s = self._votes_silent_s
            self.__onBecomeLeader()
            self._elected_s = now_s()

    def __onNodeDisconnected(self, node: RaftMember) -> None:
        super().__onNodeDisconnected(node)
        if node == self.__raftLeader:
            self._leader_heard_s = -math.inf  # it may have ended: others may stand at once
