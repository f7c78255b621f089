"""Nodes that a fault strikes; leaders are preferred, because they have most to lose."""

from __future__ import annotations

from random import Random

from tests.sim.cluster import PARTITIONS, Cluster


class Targets:
    """Draws nodes by name from the nemesis's stream of chance."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random

    def names(self) -> list[str]:
        return self._cluster.names

    def some(self, count: int) -> list[str]:
        return self._random.sample(self.names(), count)

    def one(self) -> str:
        return self._random.choice(self.names())

    def leader(self) -> str:
        """Return the leader of some partition, any node if it has none."""
        leader = self._cluster.leader_of(self._random.randrange(PARTITIONS))
        return self.one() if leader is None else leader.name

    def controller(self) -> str:
        return self._cluster.controller() or self.one()

    def others(self, name: str) -> list[str]:
        return [other for other in self.names() if other != name]
