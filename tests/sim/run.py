"""One seed: faults for a while, then peace, and what must hold at its end."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from goq import limits
from tests.sim.books import Books
from tests.sim.checks import Checks
from tests.sim.clients import Clients
from tests.sim.cluster import NAMES, Cluster, run_in
from tests.sim.dead_letters import DeadLetters
from tests.sim.environment.network import Network
from tests.sim.environment.patches import product_in
from tests.sim.environment.world import World
from tests.sim.faults.lone_fault import LoneFault
from tests.sim.nemesis import Nemesis

PRODUCERS = CONSUMERS = 2
PEACE_S = 30.0
LONG_PACE = 25.0
LONG_S = (300.0, 900.0)
_WELL_S = 1.0
"""For so long a cluster is well before one fault strikes it alone.

After other faults it takes until a controller may hand over again.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a life ended."""

    seed: int
    broken: list[str]
    history: str
    counts: Counter[str]
    simulated_s: float


def run(
    seed: int,
    *,
    faults_s: float | None = None,
    each_fault: bool = False,
    lone_fault: bool = False,
    may_diverge: bool = False,
    dead_letters: bool = False,
    alterations: bool = False,
    is_long: bool = False,
    log: Callable[[str], None] | None = None,
) -> Outcome:
    """Run one seed to its end, with faults for so long, with each once, or with a long one only.

    With ``may_diverge`` the metadata of nodes may differ, until the end. With ``dead_letters``
    messages are rejected, or die of their second lease. With ``alterations`` the topic is altered
    all the time, and every node is to answer by it. A long life has minutes
    of faults, each of which strikes a cluster that is at rest as a rule.
    """
    world = World(seed, pace=LONG_PACE if is_long else 1.0, log=log)
    if is_long:
        faults_s = world.stream("length").uniform(*LONG_S) if faults_s is None else faults_s
        world.loop.life_s_max += faults_s
    network = Network(world)
    with tempfile.TemporaryDirectory(prefix="goq-sim-") as folder, product_in(world, network):
        life = _Life(world, network, Path(folder))
        life.checks.may_diverge = may_diverge
        life.clients.has_dead_letters = dead_letters
        try:
            work = life.live(
                faults_s, each_fault=each_fault, lone_fault=lone_fault, alterations=alterations
            )
            run_in(world, work)
        except AssertionError as error:
            world.fail(str(error) or repr(error))
        for unexpected in world.loop.unexpected:
            world.broken.append(unexpected)
        life.count()
        for machine in (*life.cluster.machines.values(), *life.cluster.retired):
            machine.local.end()
    return Outcome(seed, world.broken, world.history(), world.counts, world.noted_s)


class _Life:
    def __init__(self, world: World, network: Network, folder: Path) -> None:
        self.world = world
        self.cluster = Cluster(world, network, folder)
        self.books = Books(world)
        self.checks = Checks(self.cluster, self.books)
        self.clients = Clients(self.cluster, self.books, self.checks)
        self.dead_letters = DeadLetters(self.cluster, self.books, self.clients)
        self.nemesis = Nemesis(self.cluster, self.checks)
        nemesis = self.nemesis
        self.lone = LoneFault(
            self.cluster, self.clients, nemesis.targets, nemesis.links, nemesis.operators
        )
        self.random = world.stream("life")

    async def live(
        self, faults_s: float | None, *, each_fault: bool, lone_fault: bool, alterations: bool
    ) -> None:
        random, nemesis = self.random, self.nemesis
        if random.random() < 0.2 or each_fault:
            nemesis.rots_on = random.choice(NAMES)
            nemesis.operators.only_lost = nemesis.rots_on
        if faults_s is None:
            faults_s = random.uniform(2, 5)
        for name in NAMES:
            self.cluster.start(name)
        others = [asyncio.ensure_future(self.checks.keep_looking())]
        others.append(asyncio.ensure_future(nemesis.keep_running()))
        await self.cluster.until(self.cluster.knows_all, "all nodes know each other")
        await self.clients.make_topics()
        producers = [asyncio.ensure_future(self.clients.produce(n)) for n in range(PRODUCERS)]
        consumers = [asyncio.ensure_future(self.clients.consume(n)) for n in range(CONSUMERS)]
        if alterations:
            others.append(asyncio.ensure_future(nemesis.alterations.keep_altering()))
        if self.clients.has_dead_letters:
            others.append(asyncio.ensure_future(self.dead_letters.keep_redriving()))
        rotting = asyncio.ensure_future(nemesis.rot())
        if each_fault:
            await nemesis.torment_with_each()
        elif not lone_fault:
            await nemesis.torment(faults_s)
        self.world.note("peace")
        rotting.cancel()
        for machine in self.cluster.machines.values():
            machine.disk.crash_at = None
        await nemesis.make_peace()
        if lone_fault or each_fault:
            steady_s = _WELL_S if lone_fault else limits.CONTROLLER_HANDOVER_PAUSE_MS / 1000
            is_well, until_s = self.checks.is_well, PEACE_S + steady_s
            await self.cluster.until(is_well, "all is well again", until_s, steady_s=steady_s)
            await self.lone.strike()
        self.clients.is_calm = True
        await self._end(producers, consumers)
        for other in others:
            other.cancel()
        for name in self.cluster.names:
            await self.cluster.stop(name)
        self.checks.logs(self.dead_letters.check() if self.clients.has_dead_letters else set())

    def _is_done(self) -> bool:
        """Whether the group has done all there is, and no dead letter is left."""
        if self.clients.has_dead_letters and not self.dead_letters.are_redriven():
            return False
        return self.checks.is_done()

    async def _end(
        self, producers: list[asyncio.Future[None]], consumers: list[asyncio.Future[None]]
    ) -> None:
        until = self.cluster.until
        await until(lambda: all(p.done() for p in producers), "producers", PEACE_S)
        for producer in producers:
            producer.result()
        await until(self._is_done, "the group has done all", PEACE_S)
        for consumer in consumers:
            consumer.cancel()
        await asyncio.wait(consumers)
        await until(self.checks.is_done, "what was leased last is done", PEACE_S)
        await until(self.checks.is_in_sync, "all replicas are in sync", PEACE_S)
        await until(self.checks.are_equal, "all replicas are equal", PEACE_S)
        await until(self.checks.are_states_equal, "all nodes know the same", PEACE_S)
        await until(self.checks.does_no_skewed_node_lead, "right clocks lead", PEACE_S)
        await until(self.checks.is_as_rebuilt, "states are what logs lead to", 3.0)

    def count(self) -> None:
        """Sum up what happened."""
        counts, books = self.world.counts, self.books
        counts["seeds"] += 1
        counts["simulated seconds"] += int(self.world.noted_s)
        counts["messages acknowledged"] += len(books.acknowledged)
        counts["deliveries"] += books.delivered.total()
        counts["acks acknowledged"] += len(books.acked_s)
        counts["elections of Raft"] += self.checks.raft_leaders
        for life in self.cluster.lives:
            if life.is_ready:
                counts["frames repaired"] += life.cluster_node.repairs.repaired_frames
        counts["files set aside"] += self.checks.files_set_aside()
        topic = self.cluster.final_topic
        if topic is not None:
            counts["changes of leaders"] += sum(p.leader_epoch - 1 for p in topic.partitions)
