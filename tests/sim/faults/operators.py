"""What operators do: nodes join, leave, and come back without their disks; partitions move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

from goq.cluster.admin.operations import ClusterOperations
from goq.cluster.metadata.state import MetadataState
from goq.errors import GoqError
from tests.sim.cluster import PARTITIONS, TOPIC, Cluster
from tests.sim.faults.target import Targets
from tests.sim.process import Process

NODES_MIN, NODES_MAX = 3, 5
_DONE_S_MAX = 60.0
_PATIENCE_S = 3.0
_RETRY_S = 0.3


class Operators:
    """Changes of the cluster, by name. One node at a time joins, leaves or has lost its disk."""

    def __init__(self, cluster: Cluster, targets: Targets, random: Random) -> None:
        self.only_lost: str | None = None
        """The one node that may lose its disk, as those of others may be needed to mend its."""
        self._cluster = cluster
        self._targets = targets
        self._random = random
        self._members = asyncio.Lock()
        self._seen_version = 0
        self.by_name: dict[str, Callable[[], Awaitable[None]]] = {
            "move a leadership": self._move_leadership,
            "move a partition": self._move_partition,
            "rebalance": lambda: self._try(lambda cluster: cluster.rebalance(dry_run=False)),
            "a node joins": self._join,
            "a node leaves": self._leave,
            "lose a disk": self._lose_disk,
        }

    async def _join(self) -> None:
        async with self._members:
            if len(self._cluster.names) < NODES_MAX:
                name = self._cluster.newcomer()
                self._cluster.start(name)
                await self._until(lambda state: name in state.nodes, f"{name} has joined")
                self._cluster.world.counts["nodes joined"] += 1

    async def _leave(self) -> None:
        async with self._members:
            name = self._targets.one()
            if len(self._receivers_without(name)) >= NODES_MIN:
                await self._let_go(name)
                await self._cluster.retire(name)
                self._cluster.world.counts["nodes left"] += 1

    async def _lose_disk(self) -> None:
        """Take a node's disk away, when the others have everything; it joins without it.

        The empty node starts before the old one has left, or after it.
        """
        async with self._members:
            name = self.only_lost or self._targets.one()
            if name not in self._cluster.names or not self.can_lose(name):
                self._cluster.world.counts["disks kept"] += 1
                return
            self._cluster.world.counts["disks lost"] += 1
            self._cluster.lose_disk(name)
            if self._random.random() < 0.5:
                self._cluster.start(name)
            await self._let_go(name)
            self._cluster.lost.discard(name)
            self._cluster.start(name)
            await self._until(lambda state: name in state.nodes, f"{name} is back")

    def _receivers_without(self, name: str) -> set[str]:
        """Return the nodes that replicas of one may move to: none has a wrong clock."""
        return {*self._cluster.names} - {name, self._cluster.skewed or name}

    def can_lose(self, name: str) -> bool:
        """Whether a node can lose its disk, and leave without waiting for one with a wrong clock.

        Such a node takes no replicas, but counts as one that could. With fewer nodes than replicas
        nothing moves.
        """
        staying = len({*self._cluster.names} - {name})
        can_leave = staying < NODES_MIN or len(self._receivers_without(name)) >= NODES_MIN
        return can_leave and self._have_others_all(name)

    def _have_others_all(self, name: str) -> bool:
        """Whether all partitions have two more replicas in sync, and no other node is missing.

        Only a controller knows it that has applied its whole log: after a power cut the state of
        every node may be behind what is agreed on.
        """
        cluster, controller = self._cluster, self._cluster.controller()
        process = None if controller is None else cluster.processes[controller]
        if process is None or not (process.is_ready and process.has_applied_all):
            return False
        return all(map(cluster.is_up, cluster.names)) and all(
            len({*partition.in_sync} - {name, *partition.restarted}) >= 2
            for topic in process.cluster_node.state.topics.values()
            for partition in topic.partitions
        )

    async def _let_go(self, name: str) -> None:
        """Ask until a node has left: until it is not registered, or with another disk."""
        known = self._cluster.state.nodes.get(name)
        disk = "" if known is None else known.disk

        def has_left(state: MetadataState) -> bool:
            node = state.nodes.get(name)
            return bool(state.nodes) and (node is None or node.disk != disk)

        async def ask() -> None:
            await self._try(lambda cluster: cluster.decommission_node(name), without=name)

        await self._until(has_left, f"{name} has left", ask)

    async def _until(
        self,
        condition: Callable[[MetadataState], bool],
        what: str,
        ask: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Return once the newest state is so; count time only while nothing else is broken."""
        loop = self._cluster.world.loop
        until_s = loop.time() + _DONE_S_MAX
        while not self._is_so(condition):
            if loop.time() > until_s:
                self._cluster.world.fail(f"not in time: {what}")
                return
            if ask is not None:
                await ask()
            await asyncio.sleep(_RETRY_S)

    def _is_so(self, condition: Callable[[MetadataState], bool]) -> bool:
        """Ask the newest state that was ever seen: after a power cut all nodes may be behind it."""
        state = self._cluster.state
        self._seen_version = max(self._seen_version, state.version)
        return state.version == self._seen_version and condition(state)

    async def _move_partition(self) -> None:
        number = self._random.randrange(PARTITIONS)
        known = sorted(self._cluster.state.nodes)
        if len(known) < NODES_MIN:
            return
        target = tuple(self._random.sample(known, NODES_MIN))
        await self._try(lambda cluster: cluster.reassign_partition(TOPIC, number, target))
        if self._random.random() < 0.2:
            await asyncio.sleep(self._random.uniform(0, 0.5))
            await self._try(lambda cluster: cluster.cancel_reassignment(TOPIC, number))

    async def _move_leadership(self) -> None:
        """Have another node lead a partition, or Raft."""
        to, number = self._targets.one(), self._random.randrange(PARTITIONS)
        await self._ask_controller(
            (lambda process: process.raft.transfer_leadership(to, 2.0))
            if self._random.random() < 0.5
            else (lambda process: self._elect(process, number, to))
        )

    async def elect(self, number: int, leader: str) -> None:
        """Have a node lead a partition, if it may."""
        await self._ask_controller(lambda process: self._elect(process, number, leader))

    async def _elect(self, process: Process, number: int, leader: str) -> None:
        await process.cluster_node.view.operations.elect_leader(TOPIC, number, leader)

    async def _ask_controller(self, work: Callable[[Any], Awaitable[None]]) -> None:
        controller = self._cluster.controller()
        if controller is None:
            return
        process = self._cluster.processes[controller]

        async def move() -> None:
            await work(process)

        try:
            await process.ask(move, _PATIENCE_S)
        except GoqError:
            self._cluster.world.counts["moves refused"] += 1

    async def _try(
        self, work: Callable[[ClusterOperations], Awaitable[object]], without: str = ""
    ) -> None:
        """Ask one node for a change, which may be refused."""
        up = [name for name in self._cluster.names if name != without and self._cluster.is_up(name)]
        if not up:
            return
        process: Process = self._cluster.processes[self._random.choice(up)]
        with suppress(GoqError):
            await process.ask(lambda: work(process.cluster_node.view.operations), _PATIENCE_S)
