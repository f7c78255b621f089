"""One long fault of one node in a whole cluster: the others go on publishing meanwhile.

A fault that lasts as long as its cause may stop the node that it strikes. Publishes that are asked
for at any other node are acknowledged within ``PUBLISH_S_MAX``, those under way at the start too.
"""

from __future__ import annotations

import asyncio

from tests.sim.clients import Clients
from tests.sim.cluster import NAMES, PARTITIONS, Cluster
from tests.sim.faults.links import LinkFaults
from tests.sim.faults.operators import Operators
from tests.sim.faults.target import Targets
from tests.sim.process import Process

PUBLISH_S_MAX = 6.0
_FAULT_S = 8.0
_FIRST_PRODUCER = 20  # the numbers below are those of the producers that ask any node
_PAUSE_S = 0.1


class LoneFault:
    """Strikes one node for a while, and publishes at the others."""

    def __init__(
        self,
        cluster: Cluster,
        clients: Clients,
        targets: Targets,
        links: LinkFaults,
        operators: Operators,
    ) -> None:
        self.longest_s = 0.0
        """The longest time that a publish took."""
        self._cluster = cluster
        self._clients = clients
        self._targets = targets
        self._links = links
        self._operators = operators
        self._world = cluster.world
        self._random = cluster.world.stream("lone fault")

    async def strike(self) -> None:
        """Strike a node once, and mend it."""
        random = self._random
        strike = random.choice([self._cut, self._cut, self._cut, self._hold])
        name = random.choice([self._targets.controller, self._targets.leader, self._targets.one])()
        if self._cluster.skewed is not None and not self._are_all_replicated():
            name = self._cluster.skewed  # without another node nothing can be acknowledged
        until_s = self._world.loop.time() + _FAULT_S
        probes = [asyncio.ensure_future(self._probe(n, name, until_s)) for n in range(PARTITIONS)]
        await strike(name)
        await asyncio.gather(*probes)

    def _are_all_replicated(self) -> bool:
        topic = self._cluster.topic()
        return topic is not None and all(len(p.replicas) == len(NAMES) for p in topic.partitions)

    async def _cut(self, name: str) -> None:
        is_fit = self._cluster.skewed is None  # else no other replica may be able to lead
        network, cut = self._cluster.network, self._links.around(name, may_be_requests=is_fit)
        self._world.note(f"lone fault: cut {sorted(cut)}")
        self._world.counts["lone fault: cut"] += 1
        network.block(cut)
        healed_s = self._world.loop.time() + _FAULT_S
        if self._random.random() < 0.5:  # it is to lead from now on, and may not learn of it
            for number in range(PARTITIONS):
                await self._operators.elect(number, name)
        await asyncio.sleep(healed_s - self._world.loop.time())
        network.heal(cut)

    async def _hold(self, name: str) -> None:
        loop, process = self._world.loop, self._cluster.processes[name]
        self._world.note(f"lone fault: {name} stands still")
        self._world.counts["lone fault: hold"] += 1
        loop.hold(process)
        await asyncio.sleep(_FAULT_S)
        loop.release(process)

    async def _probe(self, partition: int, struck: str, until_s: float) -> None:
        def choose() -> Process:
            return self._cluster.processes[self._random.choice(self._targets.others(struck))]

        sequence = 0
        while self._world.loop.time() < until_s:
            began_s = self._world.loop.time()
            await self._clients.publish(_FIRST_PRODUCER, partition, sequence, 1, choose)
            took_s = self._world.loop.time() - began_s
            self.longest_s = max(self.longest_s, took_s)
            if took_s > PUBLISH_S_MAX:
                self._world.fail(
                    f"{struck} was struck, and {partition} took no publish for {took_s:.1f} s"
                )
            sequence += 1
            await asyncio.sleep(_PAUSE_S)
