"""Who keeps the group running: starts what ended, and changes who is a member, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.cluster.raft.fuzz.cluster import Cluster
from tests.cluster.raft.fuzz.libraries.library import inside

SUCCESS = 0
MEMBERS_MAX = 5
BEHIND_MAX = 20  # commands that a member may lack and still count


class Operator:
    """Knows who should be a member, and waits for each change before the next."""

    def __init__(self, cluster: Cluster, nodes: int) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._random = cluster.world.stream("operator")
        self.member_ids = [f"n{number + 1}" for number in range(nodes)]
        self._made = nodes
        self._changing: Callable[[], None] | None = None
        self._wiped: set[str] = set()
        for self_id in self.member_ids:
            cluster.add(self_id, [i for i in self.member_ids if i != self_id])

    def keep_running(self) -> None:
        """Start what is down, in any order, after any time."""
        for member in list(self._cluster.members.values()):
            if member.raft is None and member.id not in self._wiped and self._random.random() < 0.3:
                self._cluster.start(member)
        if self._changing is not None:
            self._changing()
        self._world.after(self._random.uniform(0.05, 0.4), self.keep_running)

    @property
    def idle(self) -> bool:
        """Whether no change of members is under way."""
        return self._changing is None

    def _ready(self, without: str | None = None) -> bool:
        """Whether a change may begin: most of who is left must be there, and not be far behind."""
        left = [self._cluster.members[i] for i in self.member_ids if i != without]
        applied = len(self._cluster.watch.line) - BEHIND_MAX
        there = [m for m in left if m.raft is not None and m.reached.count >= applied]
        return self.idle and 2 * len(there) > len(left)

    def grow(self) -> None:
        if self._ready() and len(self.member_ids) < MEMBERS_MAX:
            self._add()

    def shrink(self) -> None:
        leaving = self._random.choice(self.member_ids)
        if self._ready(without=leaving) and len(self.member_ids) > 1:
            self._remove(leaving)

    def replace(self) -> None:
        """Lose a node's disk for good, remove it, and add another."""
        lost = self._random.choice(self.member_ids)
        if self._ready(without=lost) and len(self.member_ids) > 2:
            self._stop_for_good(lost)
            self._remove(lost, then=self._add)

    def _stop_for_good(self, node_id: str) -> None:
        self._wiped.add(node_id)
        self._cluster.crash(self._cluster.members[node_id], power=True)

    def _take_away(self, node_id: str) -> None:
        """Stop a node that is a member no more: nobody tells it so, and it would campaign."""
        self._stop_for_good(node_id)
        del self._cluster.members[node_id]

    def _add(self) -> None:
        self._made += 1
        node_id = f"n{self._made}"
        self._cluster.add(node_id, list(self.member_ids))

        def done() -> None:
            self.member_ids.append(node_id)
            self._world.counts["members added"] += 1

        self._change("add", node_id, done)

    def _remove(self, node_id: str, then: Callable[[], None] = lambda: None) -> None:
        def done() -> None:
            self.member_ids.remove(node_id)
            late_s = self._random.choice([0, 0, self._random.uniform(0, 3)])
            self._world.after(late_s, lambda: self._take_away(node_id))
            self._world.counts["members removed"] += 1
            then()

        self._change("remove", node_id, done)

    def _change(self, what: str, node_id: str, done: Callable[[], None]) -> None:
        """Ask the leader for a change until it is certain that it happened."""
        answered_by_s = 0.0

        def answered(_: Any, reason: int) -> None:
            nonlocal answered_by_s
            answered_by_s = 0.0
            if reason == SUCCESS or self._has_happened(what, node_id):
                self._finish(what, node_id, done)

        def ask() -> None:
            nonlocal answered_by_s
            leader = self._cluster.leader()
            if self._world.now < answered_by_s or leader is None or leader.raft is None:
                return
            raft = leader.raft
            if leader.id == node_id:
                self._cluster.run(leader, raft, raft.transferLeadership)
                return
            answered_by_s = self._world.now + 1.0
            library = self._cluster.library
            change = library.add_member if what == "add" else library.remove_member
            self._cluster.run(leader, raft, partial(change, raft, node_id, answered), soon=True)

        self._changing = ask

    def _has_happened(self, what: str, node_id: str) -> bool:
        """Whether a leader that knows that it leads has the change in what it committed."""
        leader = self._cluster.leader()
        if leader is None or leader.raft is None:
            return False
        log = inside(leader.raft, "raftLog")
        whole = leader.raft.raftCommitIndex == log[-1][1] and (
            log[-1][2] == leader.raft.raftCurrentTerm
        )
        there = any(node.id == node_id for node in leader.raft.otherNodes)
        return whole and there == (what == "add")

    def _finish(self, what: str, node_id: str, done: Callable[[], None]) -> None:
        if self._changing is not None:
            self._world.note(f"{what} {node_id} is done")
            self._changing = None
            done()
