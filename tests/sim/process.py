"""One process of a node, from its start to its end: the parts that the product puts together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, TypeVar

from goq.broker.broker import Broker
from goq.broker.partition.partition import Partition
from goq.cluster.bootstrap import ClusterBootstrap
from goq.cluster.cluster_node import ClusterNode
from goq.cluster.raft.node import RaftNode
from goq.cluster.raft.transport.link import Link
from goq.config.node import Config
from goq.errors import GoqError, ShuttingDown, Unavailable
from goq.http.client.http1 import parse_url
from goq.storage.journal.journal import JOURNAL_DIR
from tests.sim.environment.loop import Home
from tests.sim.environment.machine import Machine
from tests.sim.environment.network import HTTP_PORT, Answer, Network, SimulatedConnections
from tests.sim.environment.world import World
from tests.support.cluster.replication.loop import HOME, SimExecutor

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
        self.bootstrap: ClusterBootstrap
        self.cluster_node: ClusterNode
        self._world = world
        self._network = network
        self._config = config

    def start(self) -> None:
        self.machine.disk.on_crash = self._end_at_once
        self.spawn(self._start())

    def _end_at_once(self) -> None:
        self.is_dead = self.ended_at_once = True

    async def _start(self) -> None:
        """Do what ``goq.node.NodeServer`` does, without HTTP."""
        machine, config = self.machine, self._config
        try:
            bootstrap = self.bootstrap = ClusterBootstrap(
                config,
                machine.disk,
                machine.clock,
                create_raft=LoopRaftNode,
                create_connections=SimulatedConnections,
                dial_stream=self._dial_stream,
            )
            metadata = await bootstrap.open(machine.local)
            broker = self.broker = Broker(
                config.broker.data_dir / "topics",
                metadata,
                machine.disk,
                machine.clock,
                defaults=config.defaults.settings,
                partitions=config.defaults.partitions,
                auto_create=False,
                is_member=True,
                replica_start_offset=self._replica_start_offset,
                remote_target=bootstrap.remote_partition,
                journal_dir=config.broker.data_dir / JOURNAL_DIR,
            )
            await broker.start()
            self.cluster_node = bootstrap.build(broker)
            await self._world.loop.create_server(self._accept_stream, self.name, HTTP_PORT)
            self._network.http[self.name] = (self, self)
            self.cluster_node.start(f"http://{self.name}:{HTTP_PORT}")
        except Exception as error:
            self.failure = error
            return
        self.is_ready = True

    def _accept_stream(self) -> asyncio.Protocol:
        """Take a connection as one that has been upgraded."""
        return self.cluster_node.streams.accept()

    async def _dial_stream(self, url: str, create_link: Callable[[], Link]) -> Link:
        host = parse_url(url).host
        _, link = await self._world.loop.create_connection(create_link, host, HTTP_PORT)
        self._world.counts["streams between nodes"] += 1
        return link

    def _replica_start_offset(self, partition: Partition) -> int | None:
        cluster_node = getattr(self, "cluster_node", None)
        return cluster_node and cluster_node.replicas.needed_from(partition.identity)

    async def stop(self) -> None:
        """End in good order."""
        if self.is_ready:
            await self.cluster_node.hand_over()
            await self.cluster_node.stop()
            await self.bootstrap.close()
            await self.broker.close()

    @property
    def raft(self) -> RaftNode | None:
        return self.bootstrap.raft if hasattr(self, "bootstrap") else None

    @property
    def has_applied_all(self) -> bool:
        """Whether the Raft member leads a majority, and has applied all of its log."""
        driver = self.raft and self.raft._driver
        if not driver or not driver._raft:
            return False
        is_heard = driver.status.is_leader and driver.status.has_quorum
        return is_heard and not driver._raft._journal().entries_from(
            driver.status.applied_index + 1
        )

    def executor(self, random: Random) -> SimExecutor:
        """Return threads that work on the disk."""
        return SimExecutor(
            self._world.loop, random, lambda: self.is_dead, lambda: self.machine.disk_late_s
        )

    def spawn(self, work: Awaitable[T]) -> asyncio.Task[T]:
        """Run something that ends with this process."""
        return self._world.loop.create_task(work, context=self.context.copy())

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
            found = await self.cluster_node.rpc_server.handle(path, headers, body)
        except GoqError as error:
            return error.http_status, {}, error.code.encode()
        return found.status, found.headers, b"".join(found.body)


class LoopRaftNode(RaftNode):
    """A ``RaftNode`` whose thread is the one loop that there is."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        home = HOME.get()
        assert isinstance(home, Process)
        super().__init__(*arguments, **{**options, "random": home.random})
        self._life: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._app_loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = self._app_loop.create_future()
        self._life = asyncio.ensure_future(self._main(started))
        await started
        self._signing = asyncio.ensure_future(self._sign_life())

    async def stop(self) -> None:
        if self._signing is not None:
            self._signing.cancel()
        if self._stopping is not None and self._life is not None:
            self._call_raft_loop(self._stopping.set)
            await self._life
        self._fail_pending(ShuttingDown("this node is stopping; ask another one"))
