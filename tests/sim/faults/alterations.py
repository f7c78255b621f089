"""Changes of the topic's settings, each of which every node answers by once it is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from goq.broker.metadata import DEFAULT_REPLICATION, TopicReplication
from goq.errors import GoqError
from tests.sim.checks import MIN_INSYNC, Checks
from tests.sim.cluster import NAMES, TOPIC, Cluster

_PATIENCE_S = 3.0


class Alterations:
    """Alters the topic through one node or another."""

    def __init__(self, cluster: Cluster, checks: Checks) -> None:
        self._cluster = cluster
        self._checks = checks
        self._world = cluster.world
        self._random = cluster.world.stream("alterations")
        self.by_name: dict[str, Callable[[], Awaitable[None]]] = {
            "require all replicas": self._require_all_replicas,
        }

    async def keep_altering(self) -> None:
        """Alter something that changes nothing else, again and again."""
        number = 0
        while True:
            await asyncio.sleep(self._random.expovariate(1 / (0.3 * self._world.pace)))
            number += 1
            await self._alter({"retention.age": f"{number}d"})

    async def _require_all_replicas(self) -> None:
        """Have a write need all replicas for a while, then as many as before."""
        await self._alter_min_insync(len(NAMES))
        await asyncio.sleep(self._random.uniform(0.3, 1.5))
        while not await self._alter_min_insync(MIN_INSYNC):
            await asyncio.sleep(0.2)

    async def _alter_min_insync(self, number: int) -> bool:
        self._checks.on_min_insync_change(None)
        if not await self._alter({}, TopicReplication(min_insync=number)):
            return False
        self._checks.on_min_insync_change(number)
        self._world.counts["changes of min_insync"] += 1
        return True

    async def _alter(
        self, settings: Mapping[str, str], replication: TopicReplication = DEFAULT_REPLICATION
    ) -> bool:
        """Have one node alter the topic, as a request does; return whether it was acknowledged."""
        process = self._cluster.processes[self._random.choice(self._cluster.names)]
        version = 0

        async def change() -> None:
            nonlocal version
            await process.broker.topic_admin.alter(TOPIC, settings, None, replication)
            version = process.cluster_node.state.version
            await process.cluster_node.freshness.spread()

        try:
            await process.ask(change, _PATIENCE_S)
        except GoqError:
            return False
        self._world.counts["settings altered"] += 1
        self._checks.on_change_acknowledged(version)
        return True
