"""What simulated nodes agree on: a stand-in for the cluster's metadata, always right, seen late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica import ReplicaAssignment

_FIRST_EPOCH = 1

Tell = Callable[[dict[PartitionKey, ReplicaAssignment]], None]


class Agreement:
    """The parts of all partitions. A change is told to each node some time later, in order."""

    def __init__(self, random: Random, parts: dict[PartitionKey, ReplicaAssignment]) -> None:
        self.parts = parts
        self.live: dict[str, Tell] = {}
        self.unfit: set[str] = set()
        self._random = random

    def join(self, node: str, tell: Tell) -> None:
        """A node has started: it leads nothing, and is in sync only if nobody had missed it."""
        before, was_missed = dict(self.parts), node not in self.live
        self.leave(node)
        self.live[node] = tell
        for key, part in self.parts.items():
            starts = part.incarnations or (0,) * len(part.replicas)
            starts = tuple(s + (n == node) for s, n in zip(starts, part.replicas, strict=True))
            part = self._put(key, part._replace(incarnations=starts))
            if part.leader is None:
                self._elect(key)
            elif node in before[key].in_sync and not was_missed:
                in_sync = tuple(sorted({*part.in_sync, node}))
                self._put(key, part._replace(in_sync=in_sync, restarted=(*part.restarted, node)))
        self._spread()

    def leave(self, node: str) -> None:
        """A node has died; it stays in sync where no other can lead: nothing is written then."""
        self.live.pop(node, None)
        for key, part in self.parts.items():
            if part.leader is None and part.leader_epoch > _FIRST_EPOCH:
                continue
            before, in_sync = part, tuple(n for n in part.in_sync if n != node) or part.in_sync
            if in_sync != part.in_sync:
                returned = tuple(n for n in part.restarted if n != node)
                part = self._put(key, part._replace(in_sync=in_sync, restarted=returned))
            if part.leader == node:
                self._put(key, part._replace(leader=None, leader_epoch=part.leader_epoch + 1))
                self._elect(key)
                part = self.parts[key]
                if part.leader is None:
                    held = before._replace(leader=None, leader_epoch=part.leader_epoch)
                    self._put(key, held._replace(version=part.version))
        self._spread()

    def depose(self, key: PartitionKey) -> None:
        """Let another node lead, if one can."""
        part = self.parts[key]
        gone = (part.leader, *part.damaged, *part.restarted)
        others = [n for n in part.in_sync if n in self.live and n not in gone]
        others = [n for n in others if n not in self.unfit]
        if others:
            leader = self._random.choice(others)
            self._put(key, part._replace(leader=leader, leader_epoch=part.leader_epoch + 1))
            self._spread()

    def renew(self, node: str, key: PartitionKey, leader_epoch: int) -> None:
        """Let a leader lead on in the next epoch, if it still leads in this one."""
        part = self.parts[key]
        if (part.leader, part.leader_epoch) == (node, leader_epoch):
            self._put(key, part._replace(leader_epoch=leader_epoch + 1))
            self._spread()

    def alter_in_sync(
        self, node: str, key: PartitionKey, seen: ReplicaAssignment, wanted: frozenset[str]
    ) -> bool:
        """Change an in-sync set if nothing has changed since the leader saw it."""
        part = self.parts[key]
        ok = part.leader == node and part.version == seen.version
        ok = ok and part.incarnations == seen.incarnations
        ok = ok and all(n in self.live for n in wanted - set(part.in_sync))
        if ok:
            returned = tuple(n for n in part.restarted if n in wanted and n in seen.restarted)
            self._put(key, part._replace(in_sync=tuple(sorted(wanted)), restarted=returned))
            self._spread()
        return ok

    def hear_of_damage(
        self, node: str, damaged: frozenset[tuple[int, int]], repaired: frozenset[tuple[int, int]]
    ) -> None:
        """A node says which of its replicas are damaged, and which are whole again."""
        for key, part in list(self.parts.items()):
            this = (key.topic_id, key.number)
            if this in damaged and node not in part.damaged:
                part = self._put(key, part._replace(damaged=(*part.damaged, node)))
                if part.leader == node:
                    self._put(key, part._replace(leader=None, leader_epoch=part.leader_epoch + 1))
                    self._elect(key)
                self._spread()
            elif this in repaired and this not in damaged and node in part.damaged:
                others = tuple(n for n in part.damaged if n != node)
                part = self._put(key, part._replace(damaged=others))
                if part.leader is None:
                    self._elect(key)
                self._spread()

    def hear_of_fitness(self, node: str, reason: str) -> None:
        """A node says why it cannot lead, or that it can."""
        if (node in self.unfit) == bool(reason):
            return
        self.unfit ^= {node}
        for key, part in list(self.parts.items()):
            if part.leader in self.unfit:
                self.depose(key)

    def _elect(self, key: PartitionKey) -> None:
        part = self.parts[key]
        able = [n for n in part.in_sync if n in self.live and n not in part.damaged]
        able = [n for n in able if n not in part.restarted] or able
        able = [n for n in able if n not in self.unfit] or able
        if able:
            leader, epoch = self._random.choice(able), part.leader_epoch + 1
            returned = tuple(n for n in part.restarted if n != leader)
            part = part._replace(leader=leader, leader_epoch=epoch, restarted=returned)
            self._put(key, part)

    def _put(self, key: PartitionKey, part: ReplicaAssignment) -> ReplicaAssignment:
        self.parts[key] = part = part._replace(version=part.version + 1)
        return part

    def _spread(self) -> None:
        loop = asyncio.get_running_loop()
        for node, tell in self.live.items():
            delay_s = self._random.expovariate(1 / self._random.choice([0.01, 0.01, 0.01, 0.3]))
            loop.call_later(delay_s, self._tell, node, tell, dict(self.parts))

    def _tell(self, node: str, tell: Tell, parts: dict[PartitionKey, ReplicaAssignment]) -> None:
        if self.live.get(node) is tell:
            tell(parts)
