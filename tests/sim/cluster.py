"""All nodes: their machines, and the processes on these."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from goq import limits
from goq.cluster.metadata.state import MetadataState, TopicMetadata
from goq.cluster.replication.protocol import PartitionKey
from goq.config.node import BrokerConfig, ClusterConfig, Config
from goq.config.topic import TopicSettings
from goq.model import DEAD_LETTERS_SUFFIX
from tests.sim.environment.machine import Machine
from tests.sim.environment.network import Network
from tests.sim.environment.world import World
from tests.sim.process import Process

T = TypeVar("T")
NAMES = ("a", "b", "c")
TOPIC = "t"
PARTITIONS = 2
GROUP = "g"
RAFT_PORT = 9080
_CANCELS_MAX = 3
_SKEWS_MS = (400, 3000, 20_000, 3_600_000)
_STOP_S_MAX = 30.0
SECRET = b"known to all nodes of the simulation"
SETTINGS = replace(
    TopicSettings(),
    visibility_timeout_ms=1000,
    attempts_max=None,
    backoff_initial_ms=50,
)
MORTAL_SETTINGS = replace(SETTINGS, attempts_max=2)
"""Of a topic whose messages become dead letters."""
DEAD_LETTERS = TOPIC + DEAD_LETTERS_SUFFIX


class Cluster:
    """Nodes by name; ``folder`` is an empty folder of the real machine."""

    def __init__(self, world: World, network: Network, folder: Path) -> None:
        self.world = world
        self.network = network
        self.machines: dict[str, Machine] = {}
        self.processes: dict[str, Process] = {}
        self.lives: list[Process] = []
        self.skewed: str | None = None
        """The node whose clock is so far off that it must not lead."""
        self.final_topic: TopicMetadata | None = None
        """The topic as it was known before a node was stopped last."""
        secret = folder / "secret"
        secret.touch(0o600)
        secret.write_bytes(SECRET)
        peers = {name: f"{name}:{RAFT_PORT}" for name in NAMES}
        self._folder, self._secret, self._peers = folder, secret, peers
        self._random = world.stream("cluster")
        self._newcomers = iter("defghijklmnopqrstuvwxyz")
        self.retired: list[Machine] = []
        self.lost: set[str] = set()
        """Nodes whose disk was lost, until the cluster has let them go."""
        for name in NAMES:
            self._install(name)
        self._skew_clocks()

    def _install(self, name: str) -> None:
        """Set up a machine with an empty disk, in place of one of its name if there is one."""
        before = self.machines.get(name)
        if before is not None:
            self.retired.append(before)
        own = self._folder / name
        own.mkdir(exist_ok=True)
        machine = self.machines[name] = Machine(self.world, name, own, len(self.retired))
        if before is not None:
            machine.clock = before.clock

    def _config(self, name: str) -> Config:
        """Return a node's configuration, by which it may also come back after it has left."""
        others = [other for other in self.names if other != name]
        cluster = ClusterConfig(
            listen=f"{name}:{RAFT_PORT}",
            peers=self._peers if name in self._peers else {},
            join=f"http://{self._random.choice(others)}:8080",
            secret_file=self._secret,
        )
        folder = self.machines[name].folder
        broker = BrokerConfig(node_id=name, data_dir=folder, listen=f"{name}:8080")
        return Config(broker=broker, cluster=cluster)

    @property
    def names(self) -> list[str]:
        """The nodes that have a machine."""
        return sorted(self.machines)

    def newcomer(self) -> str:
        """Set up another machine; return its name."""
        name = next(self._newcomers)
        self._install(name)
        return name

    def lose_disk(self, name: str) -> None:
        """End a node, and take its disk away."""
        if not self.processes[name].is_dead:
            self.crash(name, power=False)
        self.world.note(f"{name} loses its disk")
        self.lost.add(name)
        self._install(name)

    async def retire(self, name: str) -> None:
        """End a node that has left, and take its machine away."""
        if not self.processes[name].is_dead:
            await self.stop(name)
        self.world.note(f"{name} is gone")
        self.retired.append(self.machines.pop(name))
        del self.processes[name]

    def _skew_clocks(self) -> None:
        """Let clocks differ a little, and in half of the lives one by far."""
        random = self.world.stream("clocks")
        for machine in list(self.machines.values()):
            machine.clock.advance_ms(random.randint(-50, 50))
            machine.clock.rate = 1 + random.uniform(-0.001, 0.001)
        if random.random() < 0.5:
            name, ahead_ms = random.choice(NAMES), random.choice(_SKEWS_MS)
            self.machines[name].clock.advance_ms(random.choice([-1, 1]) * ahead_ms)
            if ahead_ms > limits.CLOCK_SKEW_UNFIT_MS:
                self.skewed = name
            self.world.counts[f"a clock {ahead_ms} ms off"] += 1

    def start(self, name: str) -> None:
        """Start a node, unless it runs or is gone."""
        before = self.processes.get(name)
        if name not in self.machines or (before is not None and not before.is_dead):
            return
        self.network.off.discard(name)
        process = Process(
            self.world, self.machines[name], self.network, self._config(name), len(self.lives)
        )
        self.world.note(f"{name} starts")
        self.processes[name] = process
        self.lives.append(process)
        process.start()

    def is_up(self, name: str) -> bool:
        process = self.processes.get(name)
        return process is not None and not process.is_dead and process.failure is None

    def crash(self, name: str, *, power: bool) -> None:
        """End a process at once; with the power goes what was not synced, or some of it."""
        process, machine = self.processes[name], self.machines[name]
        counts = self.world.counts
        self.world.note(f"{name} {'loses power' if power else 'is killed'}")
        counts["power losses" if power else "kills"] += 1
        process.is_dead = True
        process.held = []
        self.network.ended(process, power=power)
        if power:
            counts["bytes not synced when the power went"] += machine.unsynced_bytes
            machine.lose_power()
        else:
            machine.disk.crash(power=False)

    async def stop(self, name: str) -> bool:
        """End a process in good order; return False if something else ended it meanwhile."""
        process = self.processes[name]
        self.final_topic = self.topic() or self.final_topic
        self.world.note(f"{name} stops")
        stopping = process.spawn(process.stop())
        until_s = self.world.loop.time() + _STOP_S_MAX
        while not (stopping.done() or process.is_dead or self.world.loop.time() > until_s):
            await asyncio.sleep(0.01)
        if process.is_dead:
            return False
        process.is_dead = True
        self.network.ended(process, power=False)
        self.machines[name].disk.crash(power=False)
        return True

    def live(self) -> list[Process]:
        return [process for name, process in self.processes.items() if self.is_up(name)]

    @property
    def state(self) -> MetadataState:
        """The newest state that any node knows."""
        states = [process.cluster_node.state for process in self.live() if process.is_ready]
        return max(states, key=lambda state: state.version, default=MetadataState())

    def knows_all(self) -> bool:
        """Whether a topic's replicas would be on all nodes."""
        return self.state.nodes.keys() == set(NAMES)

    def topic(self) -> TopicMetadata | None:
        return self.state.topics.get(TOPIC)

    def keys(self) -> list[PartitionKey]:
        topic = self.topic()
        if topic is None:
            return []
        return [PartitionKey(TOPIC, topic.topic_id, number) for number in range(PARTITIONS)]

    def leader_of(self, number: int, name: str = TOPIC) -> Process | None:
        """Return who leads a partition, as the newest state says, if it does so already."""
        topic = self.state.topics.get(name)
        leader = None if topic is None else topic.partitions[number].leader
        process = None if leader is None else self.processes.get(leader)
        if process is None or not process.is_ready or process.is_dead:
            return None
        return process

    def controller(self) -> str | None:
        """Return who leads Raft in the highest term, if anybody does."""
        views = [
            (process.raft.status.term, process.name)
            for process in self.live()
            if process.raft is not None and process.raft.status.is_leader
        ]
        return max(views)[1] if views else None

    async def until(
        self,
        condition: Callable[[], bool],
        what: str,
        seconds: float = 60.0,
        *,
        steady_s: float = 0.0,
    ) -> None:
        """Return once something is so, for some time without a break.

        Fail if it takes longer than so many seconds of simulated time.
        """
        loop = self.world.loop
        end_s, since_s = loop.time() + seconds, loop.time()
        while not (is_so := condition()) or loop.time() - since_s < steady_s:
            if not is_so:
                since_s = loop.time()
            if loop.time() > end_s:
                raise AssertionError(f"not in time: {what}")
            await asyncio.sleep(0.05)


def run_in(world: World, work: Awaitable[T]) -> T:
    """Run something to its end in simulated time, then end all that is left."""
    loop = world.loop
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(work)
    finally:
        loop.runs_all = True
        loop.run_until_complete(_end_all())
        asyncio.set_event_loop(None)
        loop.close()


async def _end_all() -> None:
    """End all there is: what waits is cancelled, and what the dead will never do is let go of."""
    for _ in range(_CANCELS_MAX):
        others = {task for task in asyncio.all_tasks() if not task.done()}
        others.discard(asyncio.current_task())
        if not others:
            return
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=1)
    for task in others:
        task._log_destroy_pending = False
        with suppress(RuntimeError):
            task.get_coro().close()
