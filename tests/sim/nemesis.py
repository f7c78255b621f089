"""Who breaks things, and mends them again after a while."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from goq.errors import CorruptData, GoqError, StorageFailed
from tests.sim.checks import Checks
from tests.sim.cluster import PARTITIONS, TOPIC, Cluster
from tests.sim.faults.alterations import Alterations
from tests.sim.faults.links import LinkFaults
from tests.sim.faults.operators import Operators
from tests.sim.faults.target import Targets
from tests.sim.logs import LOGS, paths

_CHANGES_TO_LEAVE_BEHIND = 150  # more than Raft's small log holds


class Nemesis:
    """Breaks something every now and then; what it has broken it mends by itself."""

    def __init__(self, cluster: Cluster, checks: Checks) -> None:
        self.rots_on: str | None = None
        """Whose disk loses bits."""
        self._cluster = cluster
        self._checks = checks
        self._world = cluster.world
        self._random = cluster.world.stream("nemesis")
        self._mending: set[asyncio.Task[None]] = set()
        self.targets = Targets(cluster, self._random)
        self.links = LinkFaults(cluster.network, self.targets, self._random)
        self.operators = Operators(cluster, self.targets, self._random)
        self.alterations = Alterations(cluster, checks)
        self._faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill one": lambda: self._restart(self.targets.some(1), power=False),
            "kill a leader": lambda: self._restart([self.targets.leader()], power=False),
            "kill the controller": lambda: self._restart([self.targets.controller()], power=False),
            "kill midway": self._kill_midway,
            "cut the power of one": lambda: self._restart(self.targets.some(1), power=True),
            "cut the power of some": lambda: self._restart(
                self.targets.some(self._random.choice([2, 3])), power=True
            ),
            "stop and start": self._stop_and_start,
            "hold a leader": lambda: self._hold(self.targets.leader()),
            "hold one": lambda: self._hold(self.targets.one()),
            "jump a clock": self._jump,
            "fill a disk": self._fill_disk,
            "fail a disk": self._fail_disk,
            "slow a disk": self._slow_disk,
            **self.links.by_name,
            **self.operators.by_name,
            **self.alterations.by_name,
        }

    async def torment(self, seconds: float) -> None:
        """Break things for so long."""
        loop, random = self._world.loop, self._random
        until = loop.time() + seconds
        while True:
            await asyncio.sleep(random.expovariate(1 / (0.6 * self._world.pace)))
            if loop.time() > until:
                break
            self._break(random.choice(list(self._faults)))

    async def torment_with_each(self) -> None:
        """Break each thing once, in some order, and leave a node behind Raft's log at the end."""
        for name in self._random.sample(list(self._faults), len(self._faults)):
            await asyncio.sleep(self._random.expovariate(1 / 0.6))
            self._break(name)
        await self.make_peace()
        await self._leave_behind()

    def _break(self, name: str) -> None:
        self._world.note(f"nemesis: {name}")
        self._world.counts[f"fault: {name}"] += 1
        mending = asyncio.ensure_future(self._faults[name]())
        self._mending.add(mending)
        mending.add_done_callback(self._mending.discard)

    async def make_peace(self) -> None:
        """Return when all that was broken is mended."""
        while self._mending:
            await asyncio.wait(self._mending)

    # Processes

    async def keep_running(self) -> None:
        """Start again what has ended by itself, as whoever looks after a node does."""
        while True:
            await asyncio.sleep(0.1)
            for name in list(self._cluster.processes):
                self._look_after(name)

    def _look_after(self, name: str) -> None:
        process = self._cluster.processes.get(name)
        if process is None:
            return
        if process.ended_at_once:
            process.ended_at_once = False
            self._world.counts["ends within an operation"] += 1
            self._restart_later(name, power=self._random.random() < 0.5)
            return
        if process.is_dead:
            return
        failure: object = process.failure
        if failure is None and process.raft is not None:
            failure = process.raft.status.failure
        if isinstance(failure, CorruptData) and not isinstance(failure, StorageFailed):
            self._world.fail(f"{name} does not start: {failure.detail}")
        if failure is not None:
            self._world.note(f"{name} has failed: {type(failure).__name__}")
            self._world.counts["nodes that stopped by themselves"] += 1
            self._restart_later(name, power=False)

    def _restart_later(self, name: str, *, power: bool) -> None:
        mending = asyncio.ensure_future(self._restart([name], power=power, even_dead=True))
        self._mending.add(mending)
        mending.add_done_callback(self._mending.discard)

    async def _restart(self, names: list[str], *, power: bool, even_dead: bool = False) -> None:
        names = [name for name in names if even_dead or self._is_up(name)]
        for name in names:
            self._cluster.crash(name, power=power)
        for name in names:
            await asyncio.sleep(self._random.expovariate(1 / 0.5))
            self._cluster.start(name)

    async def _kill_midway(self) -> None:
        disk = self._cluster.machines[self.targets.one()].disk
        disk.crash_at = disk.operations + self._random.randint(1, 60)

    async def _stop_and_start(self) -> None:
        name = self.targets.one()
        process = self._cluster.processes[name]
        if self._is_up(name) and process.is_ready and await self._cluster.stop(name):
            await asyncio.sleep(self._random.uniform(0.05, 0.5))
            self._cluster.start(name)

    async def _leave_behind(self) -> None:
        """Keep a node down until Raft's log begins after the node's own: it needs a snapshot."""
        process = self._cluster.processes[await self._new_controller()]
        name = self._random.choice(self.targets.others(process.name))
        self._cluster.crash(name, power=False)
        changes = 0
        while changes < _CHANGES_TO_LEAVE_BEHIND:
            settings = {"retention.age": f"{changes + 1}d"}
            try:
                await process.ask(partial(process.broker.topic_admin.alter, TOPIC, settings), 3.0)
                changes += 1
            except GoqError:
                process = self._cluster.processes[await self._new_controller()]
        self._cluster.start(name)

    async def _new_controller(self) -> str:
        await self._cluster.until(lambda: self._cluster.controller() is not None, "a controller")
        controller = self._cluster.controller()
        assert controller is not None
        return controller

    async def _hold(self, name: str) -> None:
        process, loop = self._cluster.processes[name], self._world.loop
        if self._is_up(name) and not process.is_held:
            self._world.note(f"{name} stands still")
            loop.hold(process)
            await asyncio.sleep(self._random.choice([0.3, 1.2, 2.5]) * self._random.uniform(0.5, 1))
            self._world.note(f"{name} goes on")
            loop.release(process)

    # Machines

    async def _jump(self) -> None:
        machine = self._cluster.machines[self.targets.one()]
        step_ms = self._random.choice([-2000, -300, 300, 2000])
        machine.clock.wall_us()
        machine.clock.jump_ms(step_ms)
        self._checks.clock_was_set()
        await asyncio.sleep(self._random.uniform(0.2, 3))
        machine.clock.wall_us()
        machine.clock.jump_ms(-step_ms)
        self._checks.clock_was_set()

    async def _fill_disk(self) -> None:
        disk = self._cluster.machines[self.targets.one()].disk
        disk.capacity_bytes = disk.used_bytes + self._random.randint(0, 4000)
        await asyncio.sleep(self._random.uniform(0.1, 1.5))
        disk.capacity_bytes = None

    async def _fail_disk(self) -> None:
        random = self._random
        disk = self._cluster.machines[self.targets.one()].disk
        failing = random.choice([("append", "write_at"), ("sync",), ("replace", "rename", "open")])

        def fault(operation: str, _path: Path) -> int | None:
            fails = operation in failing and random.random() < 0.3
            self._world.counts["disk errors"] += fails
            return errno.EIO if fails else None

        disk.fault = fault
        await asyncio.sleep(random.uniform(0.05, 0.6))
        disk.fault = lambda _operation, _path: None

    async def _slow_disk(self) -> None:
        machine = self._cluster.machines[self.targets.one()]
        machine.disk_late_s = self._random.choice([0.01, 0.1])
        await asyncio.sleep(self._random.uniform(0.2, 2))
        machine.disk_late_s = 0.0

    async def rot(self) -> None:
        """Flip bits of what is sealed in one node's logs, now and then."""
        if self.rots_on is None:
            return
        machine = self._cluster.machines[self.rots_on]
        while True:
            await asyncio.sleep(self._random.expovariate(1 / (0.7 * self._world.pace)))
            sealed = [
                path
                for number in range(PARTITIONS)
                for log in LOGS
                for path in paths(machine, number, log)[:-1]
            ]
            if sealed:
                self._checks.is_rotten = True
                self._world.counts["fault: flip a bit"] += 1
                path = self._random.choice(sealed)
                position = self._random.randrange(machine.disk.size(path))
                machine.disk.flip(path, position, 1 << self._random.randrange(8))

    def _is_up(self, name: str) -> bool:
        process = self._cluster.processes.get(name)
        return process is not None and not process.is_dead
