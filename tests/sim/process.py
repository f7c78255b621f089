"""One process of a node, from its start to its end: the parts that the product puts together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import TypeVar

from goq.broker.broker import Broker
from goq.broker.partition.partition import Partition
from goq.cluster.bootstrap import ClusterBootstrap
from goq.cluster.cluster_node import ClusterNode
from goq.cluster.raft.node import RaftNode
from goq.config.node import Config
from goq.errors import GoqError, Unavailable
from tests.support.replication.loop import SimExecutor

from .loop import Home
from .machine import Machine
from .network import HTTP_PORT, Answer, Network
from .world import World

T = TypeVar("T")


class Process(Home):
    """What runs on a machine; ``is_ready`` once it has started."""

    def __init__(
        self, world: World, machine: Machine, network: Network, config: Config, life: int
    ) -> None:
        super().__init__(machine.name)
        self.machine = machine
        self.is_ready = False
        self.ended_at_once = False
        """Whether it has ended within an operation on the disk, and nobody has seen to it yet."""
        self.failure: Exception | None = None
        self.random = world.stream(f"process {machine.name} {life}")
        self.broker: Broker
        self.membership: ClusterBootstrap
        self._world = world
        self._network = network
        self._config = config

    def start(self) -> None:
        self.machine.disk.on_crash = self._end_at_once
        self.spawn(self._start())

    def _end_at_once(self) -> None:
        self.is_dead = self.ended_at_once = True

    async def _start(self) -> None:
        """Do what ``goq.node.Node`` does, without HTTP."""
        machine, config = self.machine, self._config
        try:
            membership = self.membership = ClusterBootstrap(config, machine.disk)
            metadata = await membership.open(machine.local)  # type: ignore[arg-type]
            broker = self.broker = Broker(
                config.broker.data_dir / "topics",
                metadata,
                machine.disk,
                machine.clock,
                defaults=config.defaults.settings,
                partitions=config.defaults.partitions,
                auto_create=False,
                is_member=True,
                kept_for_replicas=self._kept_for_replicas,
                elsewhere=membership.elsewhere,
            )
            await broker.start()
            membership.prepare(broker)
            await self._world.loop.create_server(asyncio.Protocol, self.name, HTTP_PORT)
            self._network.http[self.name] = (self, self)
            membership.start(f"http://{self.name}:{HTTP_PORT}")
        except Exception as error:
            self.failure = error
            return
        self.is_ready = True

    def _kept_for_replicas(self, partition: Partition) -> int | None:
        member = self.membership.member
        return None if member is None else member.kept_for_replicas(*partition.identity)

    async def stop(self) -> None:
        """End in good order."""
        if self.is_ready:
            await self.membership.hand_over()
            await self.membership.stop()
            await self.broker.close()

    @property
    def member(self) -> ClusterNode:
        member = self.membership.member
        assert member is not None
        return member

    @property
    def raft(self) -> RaftNode | None:
        return getattr(self, "membership", None) and self.membership._raft

    def executor(self, random: Random) -> SimExecutor:
        """Return threads that work on the disk."""
        return SimExecutor(
            self._world.loop, random, lambda: self.is_dead, lambda: self.machine.disk_late_s
        )

    def spawn(self, work: Awaitable[T]) -> asyncio.Task[T]:
        """Run something that ends with this process."""
        return self._world.loop.create_task(work, context=self.context.copy())  # type: ignore[arg-type]

    async def ask(self, work: Callable[[], Awaitable[T]], patience_s: float) -> T:
        """Have something done for a client; no answer in time is ``Unavailable``."""
        task = self.spawn(self._done(work))
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        done, _ = await asyncio.wait([task], timeout=patience_s)
        if not done:
            self._world.loop.call_soon(task.cancel, context=self.context)
            raise Unavailable("no answer")
        return task.result()

    async def _done(self, work: Callable[[], Awaitable[T]]) -> T:
        if not self.is_ready:
            raise Unavailable("the node starts")
        return await work()

    async def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer another node's call, as ``NodeCallRoutes`` does."""
        try:
            found = await self.membership.answering.answer(path, headers, body)
        except GoqError as error:
            return error.http_status, {}, error.code.encode()
        return found.status, found.headers, b"".join(found.body)
