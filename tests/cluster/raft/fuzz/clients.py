"""Who proposes: new requests, and again, under their number, those that may have been lost."""

from __future__ import annotations

from typing import Any

from tests.cluster.raft.fuzz.cluster import Cluster, Member
from tests.cluster.raft.fuzz.machine import command_of, request_of
from tests.cluster.raft.fuzz.profile import Profile

SUCCESS = 0


class RudeCallback(Exception):
    """What a callback raises that should not."""


class Clients:
    """Propose to any node, and wait for an answer no longer than a second."""

    def __init__(self, cluster: Cluster, profile: Profile) -> None:
        self._cluster = cluster
        self._profile = profile
        self._random = cluster.world.stream("clients")
        self._requests = 0
        self._attempts = 0
        self._open: list[str] = []  # proposed, and not acknowledged: may be proposed again

    def keep_proposing(self, until_s: float) -> None:
        world = self._cluster.world
        if world.now > until_s:
            return
        up = self._cluster.up()
        if up:
            leader = self._cluster.leader()
            to_leader = leader is not None and self._random.random() < 0.5
            member = leader if leader and to_leader else self._random.choice(up)
            for _ in range(self._random.choice([1, 1, 1, 5])):
                self._propose(member)
        gap_s = self._random.expovariate(1 / self._profile.gap_s)
        world.after(gap_s, lambda: self.keep_proposing(until_s))

    def propose_new(self, member: Member) -> int:
        """Propose something new to a node and return the number of the request."""
        self._requests += 1
        self._send(member, self._requests)
        return self._requests

    def _propose(self, member: Member) -> None:
        if self._open and self._random.random() < 0.3:
            self._cluster.world.counts["retries"] += 1
            command = self._open.pop(self._random.randrange(len(self._open)))
            self._send(member, request_of(command))
        else:
            self.propose_new(member)

    def _send(self, member: Member, request: int) -> None:
        self._attempts += 1
        poison = self._profile.poison and self._random.random() < 0.02
        padding = self._random.choice(self._profile.paddings)
        command = command_of(request, self._attempts, padding, poison=poison)
        self._cluster.watch.proposed.add(command)
        waiting = True

        def answered(answer: Any, reason: int) -> None:
            nonlocal waiting
            if reason == SUCCESS:
                self._acknowledged(request, answer, poison=poison)
            elif waiting:
                self._open.append(command)
            waiting = False
            if self._profile.rude and self._random.random() < 0.02:
                raise RudeCallback

        def late() -> None:
            nonlocal waiting
            if waiting:
                self._cluster.world.counts["timeouts"] += 1
                self._open.append(command)
            waiting = False

        self._cluster.world.after(1.0, late)
        self._cluster.propose(member, command, answered)

    def _acknowledged(self, request: int, answer: Any, *, poison: bool) -> None:
        self._cluster.world.note(f"acknowledged {request}: {answer}")
        if not poison:
            self._cluster.world.counts["acknowledged"] += 1
            self._cluster.watch.acknowledge(request, answer)
