"""Faults of links: cuts of directions, ports or nodes, delays and repeated calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random

from tests.sim.environment.network import ALL_KINDS, ANSWER, RAFT, REQUEST, Network, Way, ways
from tests.sim.faults.target import Targets

_PORTS = ((RAFT,), (REQUEST, ANSWER), (REQUEST,), (ANSWER,))


class LinkFaults:
    """Faults of the network, by name."""

    def __init__(self, network: Network, targets: Targets, random: Random) -> None:
        self._network = network
        self._targets = targets
        self._random = random
        self.by_name: dict[str, Callable[[], Awaitable[None]]] = {
            "isolate": lambda: self._part(self._around(targets.one())),
            "isolate a leader": lambda: self._part(self._around(targets.leader())),
            "isolate the controller": lambda: self._part(self._around(targets.controller())),
            "cut one way": self._cut_one_way,
            "leave a bridge": self._leave_a_bridge,
            "cut one port of a node": lambda: self._cut_a_port(targets.one()),
            "cut one port of the controller": lambda: self._cut_a_port(targets.controller()),
            "cut one port of a link": self._cut_a_port_of_a_link,
            "slow links": self._slow_links,
            "repeat calls": self._repeat_calls,
        }

    def around(self, name: str, *, may_be_requests: bool) -> set[Way]:
        """Draw a cut between a node and all others: of a port or both, one direction or both.

        Requests may fail alone: then no other node can call this one, and its heartbeats are
        answered.
        """
        ports = _PORTS[: 3 if may_be_requests else 2]
        cut = self._around(name, self._random.choice((*ports, ALL_KINDS)))
        return self._in_some_direction(cut, name)

    async def _part(self, cut: set[Way]) -> None:
        self._network.block(cut)
        await asyncio.sleep(self._random.uniform(0.1, 2.5))
        self._network.heal(cut)

    async def _cut_one_way(self) -> None:
        source, target = self._targets.some(2)
        await self._part(ways(source, target))

    async def _leave_a_bridge(self) -> None:
        one, other = self._targets.some(2)
        await self._part(ways(one, other) | ways(other, one))

    async def _cut_a_port(self, name: str) -> None:
        """Cut one port of a node from all others; it hears, is heard, or neither."""
        cut = self._around(name, self._random.choice(_PORTS))
        await self._part(self._in_some_direction(cut, name))

    async def _cut_a_port_of_a_link(self) -> None:
        one, other = self._targets.some(2)
        kinds = self._random.choice(_PORTS)
        cut = ways(one, other, kinds) | ways(other, one, kinds)
        await self._part(self._in_some_direction(cut, one))

    def _in_some_direction(self, cut: set[Way], name: str) -> set[Way]:
        """Return the ways to a node, those from it, or all."""
        ends = self._random.choice([(0, 1), (0,), (1,)])
        return {way for way in cut if any(way[end] == name for end in ends)}

    def _around(self, name: str, kinds: Iterable[str] = ALL_KINDS) -> set[Way]:
        kinds = tuple(kinds)
        others = self._targets.others(name)
        return {way for o in others for way in ways(name, o, kinds) | ways(o, name, kinds)}

    async def _slow_links(self) -> None:
        slow, slowed = self._network.slow, []
        for one in self._targets.names():
            for other in self._targets.others(one):
                if self._random.random() < 0.4:
                    slow[one, other] = self._random.choice([0.02, 0.1, 0.5]) * self._random.random()
                    slowed.append((one, other))
        await asyncio.sleep(self._random.uniform(0.2, 2))
        for way in slowed:
            slow.pop(way, None)

    async def _repeat_calls(self) -> None:
        self._network.repeats = 0.3
        await asyncio.sleep(self._random.uniform(0.2, 2))
        self._network.repeats = 0.0
