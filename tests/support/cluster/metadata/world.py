"""A cluster in miniature: nodes that live and die, a controller, and what they propose.

Nothing is real but the metadata: a replica "catches up" by a few steps with a leader alive.
"""

from __future__ import annotations

import random
from typing import Any

from goq.cluster.controller.controller import decide
from goq.cluster.controller.node_liveness import Heartbeat, NodeLiveness
from goq.cluster.controller.rebalance import plan_rebalance
from goq.cluster.metadata import commands as c
from goq.cluster.metadata.apply import apply
from goq.cluster.metadata.results import Result
from goq.cluster.metadata.state import (
    MetadataState,
    PartitionMetadata,
    PartitionRef,
    TopicMetadata,
    active_partitions,
)
from goq.model import draw_topic_id
from tests.support.cluster.metadata.checks import check_step

STEP_MS = 200


class Member:
    """A node as it really is."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.alive = False
        self.silent = False
        self.unfit_reason = ""
        self.damaged: set[tuple[int, int]] = set()
        self.repaired: set[tuple[int, int]] = set()
        self.deleted: set[int] = set()
        self.copied: dict[tuple[int, int], int] = {}


class World:
    """All nodes, the agreed state and the controller, driven by a seed."""

    def __init__(self, seed: object, node_count: int, racks: str) -> None:
        self.random = random.Random(str(seed))
        self.racks = racks
        self.state = MetadataState()
        self.now_ms = 0
        self.liveness = NodeLiveness.start(0)
        self.members: dict[str, Member] = {}
        self.late: list[c.AnyCommand] = []
        for number in range(1, node_count + 1):
            self.start(f"n{number}")

    def propose(self, command: c.AnyCommand) -> Result:
        """Apply a command, and check what it did."""
        before = self.state
        self.state, result = apply(before, command, before.version + 1)
        check_step(before, command, self.state, result)
        return result

    def start(self, name: str) -> None:
        """Start a node, for the first time or again: it registers."""
        member = self.members.setdefault(name, Member())
        member.incarnation += 1
        member.alive, member.silent = True, False
        member.copied.clear()
        rack = self.racks[int(name[1:]) % len(self.racks)] if self.racks else None
        keeps = tuple(t.topic_id for t in self.state.topics.values() if self.random.random() < 0.8)
        where = (f"http://{name}", f"{name}:9", rack)
        self.propose(c.RegisterNode(name, member.incarnation, *where, durable_topics=keeps))

    def step(self, *, faults: bool) -> int:
        """Let time pass, and everybody do what it does; return how much was proposed."""
        self.now_ms += STEP_MS
        for name, member in self.members.items():
            if member.alive and not member.silent:
                self._heartbeat(name, member)
        proposals = self._replication()
        self.liveness = self.liveness.tick(self.now_ms)
        proposals += decide(self.state, self.liveness, timeout_ms=1000, preferred_delay_ms=1000)
        if faults:
            proposals = self._disturbed(proposals)
        for command in proposals:
            self.propose(command)
        for name in sorted(set(self.members) - set(self.state.nodes)):
            del self.members[name]
        return len(proposals)

    def _disturbed(self, proposals: list[c.AnyCommand]) -> list[c.AnyCommand]:
        """Lose some, repeat some, hold some back; at times another takes the controller over."""
        r = self.random
        if r.random() < 0.05:
            self.liveness = NodeLiveness.start(self.now_ms)
        if r.random() < 0.05:
            self.now_ms += 3000
        arriving = [p for p in proposals if r.random() < 0.9]
        arriving += [p for p in proposals if r.random() < 0.1]
        self.late += [p for p in proposals if r.random() < 0.2]
        while self.late and r.random() < 0.3:
            arriving.append(self.late.pop(r.randrange(len(self.late))))
        r.shuffle(arriving)
        return arriving

    def _heartbeat(self, name: str, member: Member) -> None:
        for place in sorted(member.damaged):
            if self.random.random() < 0.3:
                member.damaged.remove(place)
                member.repaired.add(place)
        for topic in self.state.topics.values():
            if topic.deleting and self.random.random() < 0.5:
                member.deleted.add(topic.topic_id)
        for deleted in self.state.deleted_topics.values():
            if self.random.random() < 0.5:
                member.deleted.add(deleted.topic_id)
        heartbeat = Heartbeat(
            member.incarnation,
            member.unfit_reason,
            frozenset(member.deleted),
            frozenset(member.damaged),
            frozenset(member.repaired),
        )
        self.liveness = self.liveness.with_heartbeat(name, heartbeat, self.now_ms)

    def _replication(self) -> list[c.AnyCommand]:
        """Return what leaders propose of who is in sync."""
        found: list[c.AnyCommand] = []
        for place, topic, partition in active_partitions(self.state):
            leader = self.members.get(partition.leader or "")
            if leader is None or not leader.alive or leader.silent:
                continue
            if self.state.nodes[str(partition.leader)].incarnation != leader.incarnation:
                continue
            caught_up = self._caught_up(topic, place, partition)
            not_seen = tuple(n for n in partition.restarted if not self._has_all(topic, place, n))
            vouched = len(not_seen) < len(partition.restarted)
            if vouched or caught_up != set(partition.in_sync):
                in_sync = {n: self.members[n].incarnation for n in sorted(caught_up)}
                at = (place.topic, topic.topic_id, place.partition, partition.version)
                leading = (str(partition.leader), partition.leader_epoch)
                found.append(c.AlterInSync(*at, *leading, in_sync, not_seen))
        return found

    def _caught_up(
        self, topic: TopicMetadata, place: PartitionRef, partition: PartitionMetadata
    ) -> set[str]:
        here = (topic.topic_id, place.partition)
        caught_up = {str(partition.leader)}
        for name in partition.holders:
            member = self.members.get(name)
            if member is None or not member.alive or member.silent:
                continue
            member.copied[here] = member.copied.get(here, 0) + self.random.randrange(2)
            if self.state.nodes[name].is_up and self._has_all(topic, place, name):
                caught_up.add(name)
        return caught_up | {n for n in partition.in_sync if self.members[n].alive}

    def _has_all(self, topic: TopicMetadata, place: PartitionRef, name: str) -> bool:
        member = self.members.get(name)
        return member is not None and member.copied.get((topic.topic_id, place.partition), 0) >= 3

    def disturb(self) -> None:
        """Do one thing that people or bad luck do."""
        r = self.random
        name = r.choice(sorted(self.members))
        member = self.members[name]
        kind = r.randrange(16)
        if kind < 3:
            member.alive = False
        elif kind < 6:
            self.start(name)
        elif kind < 7:
            member.silent = not member.silent
        elif kind < 8:
            member.unfit_reason = r.choice(["", "disk full"])
        elif kind < 9 and len(self.members) < 9:
            self.start(f"n{max(int(known[1:]) for known in self.members) + 1}")
        elif kind < 10 and r.random() < 0.4:
            self.propose(c.DecommissionNode(name, r.random() < 0.3))
        elif kind < 12:
            self._people(r.choice(["t1", "t2", "t3", "t4"]))
        elif kind < 13 and r.random() < 0.3:
            for command in plan_rebalance(self.state):
                self.propose(command)
        else:
            self._at_random_partition(name, member)

    def _people(self, name: str) -> None:
        r = self.random
        topic = self.state.topics.get(name)
        if topic is None:
            fields: Any = (name, r.randrange(1, 9), {}, r.choice([None, 1, 2, 3]))
            drawn = draw_topic_id(r.getrandbits)
            self.propose(
                r.choice([c.CreateTopic(*fields), c.CreateTopicWithId(*fields, None, drawn)])
            )
        elif r.random() < 0.3:
            delete = r.choice([c.DeleteTopic, c.DeleteTopicAtOnce])
            self.propose(delete(name, topic.topic_id))
        elif r.random() < 0.5:
            factor, min_insync = r.choice([None, 1, 2, 3]), r.choice([None, None, 1, 2])
            self.propose(
                c.AlterTopicReplication(name, topic.topic_id, topic.version, factor, min_insync)
            )
        else:
            count = len(topic.partitions) + 1
            self.propose(c.AddPartitions(name, topic.topic_id, topic.version, count))

    def _at_random_partition(self, name: str, member: Member) -> None:
        r = self.random
        found = list(active_partitions(self.state))
        if not found:
            return
        place, topic, partition = r.choice(found)
        at = (place.topic, topic.topic_id, place.partition, partition.version)
        if r.random() < 0.3 and name in partition.replicas:
            member.damaged.add((topic.topic_id, place.partition))
            member.repaired.discard((topic.topic_id, place.partition))
        elif partition.target:
            self.propose(c.CancelReassignment(*at, r.random() < 0.5))
        else:
            names = sorted(self.state.nodes)
            target = r.sample(names, min(len(names), r.randrange(1, 4)))
            self.propose(c.ReassignPartition(*at, tuple(target), r.random() < 0.5))

    def heal(self) -> None:
        """End all faults. Who is leaving and can be spared stays dead."""
        spared = all(p.leader is not None for _, _, p in active_partitions(self.state))
        for name, member in list(self.members.items()):
            member.unfit_reason, member.silent = "", False
            node = self.state.nodes.get(name)
            gone = node is not None and node.leaving and spared and self.random.random() < 0.5
            if not member.alive and not gone:
                self.start(name)

    def settle(self, steps_max: int = 600) -> None:
        """Go on until nobody proposes anything any more."""
        quiet = 0
        for _ in range(steps_max):
            quiet = 0 if self.step(faults=False) else quiet + 1
            if quiet >= 30:
                return
        raise AssertionError("it does not come to rest")
