"""A running node: the one place where the parts are put together."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from goq import limits
from goq.api.app import App
from goq.api.errors import problem_response
from goq.broker.broker import Broker
from goq.broker.metadata import LocalMetadata, MetadataStore
from goq.broker.partition.partition import Partition
from goq.clock import SystemClock
from goq.config.node import Config
from goq.errors import UsageError
from goq.http.server import HttpServer
from goq.storage.data_dir_lock import DataDirLock
from goq.storage.disk import RealDisk

if TYPE_CHECKING:
    from goq.cluster.bootstrap import ClusterBootstrap
    from goq.cluster.cluster_node import ClusterNode


class Node:
    """A node from its configuration; :meth:`start` it, then :meth:`stop` it.

    ``broker``, ``app`` and, on a member of a cluster, ``cluster`` are set while it runs.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._draining = False
        self._lock: DataDirLock | None = None
        self.broker: Broker | None = None
        self._server: HttpServer | None = None
        self.app: App | None = None
        self._bootstrap: ClusterBootstrap | None = None
        self.cluster: ClusterNode | None = None

    @property
    def url(self) -> str:
        """Where the node listens."""
        assert self._server is not None
        host, port = self._server.addresses[0]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Recover the data folder, then listen.

        Raises ``DataDirLocked``, ``CorruptData`` or ``UsageError`` when that cannot be; then
        everything is let go of again.
        """
        try:
            await self._start()
        except BaseException:
            await self._release()
            raise

    async def _start(self) -> None:
        config, defaults = self.config.broker, self.config.defaults
        try:
            config.data_dir.mkdir(parents=True, exist_ok=True)
            self._lock = DataDirLock(config.data_dir)
        except OSError as error:
            raise UsageError(
                f"cannot use {config.data_dir}: {error.strerror}", field="broker.data_dir"
            ) from None
        disk = RealDisk()
        local = LocalMetadata(config.data_dir)
        metadata: MetadataStore = local
        if self.config.cluster.is_member:
            from goq.cluster.bootstrap import ClusterBootstrap  # a node on its own needs none of it

            self._bootstrap = ClusterBootstrap(self.config, disk)
            metadata = await self._bootstrap.open(local)
        self.broker = Broker(
            config.data_dir / "topics",
            metadata,
            disk,
            SystemClock(),
            defaults=defaults.settings,
            partitions=defaults.partitions,
            auto_create=config.auto_create_topics,
            is_member=self._bootstrap is not None,
            replica_start_offset=self._replica_start_offset,
            remote_target=None if self._bootstrap is None else self._bootstrap.remote_partition,
        )
        await self.broker.start()
        if self._bootstrap is not None:
            self.cluster = self._bootstrap.build(self.broker)
        self.app = App(
            self.broker,
            config.node_id,
            lambda: self.url,
            lambda: self._draining,
            self.cluster,
        )
        server = HttpServer(self.app.handle, problem_response)
        self.app.metrics.server = server
        try:
            await server.start(config.host, config.port)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {config.listen}: {error.strerror or error}",
                field="broker.listen",
            ) from None
        self._server = server
        if self.cluster is not None:
            self.cluster.start(self.url)

    def _replica_start_offset(self, partition: Partition) -> int | None:
        if self.cluster is None:
            return None
        return self.cluster.replicas.needed_from(*partition.identity)

    async def stop(self) -> None:
        """Finish what is in flight, make everything durable, let go of the folder.

        Who waits for messages is told at once; who publishes gets the answer. In a cluster others
        lead first what this node leads: nobody has to wait until it is missed.
        """
        self._draining = True
        if self.cluster is not None:
            await self.cluster.hand_over()
        if self.app is not None:
            self.app.stop_waiting()
        if self.broker is not None:
            self.broker.streams.end_all()
        if self._server is not None:
            await self._server.drain(limits.DRAIN_TIMEOUT_MS)
            self._server = None
        await self._release()

    async def _release(self) -> None:
        broker, cluster, bootstrap, lock = self.broker, self.cluster, self._bootstrap, self._lock
        self.broker = self.cluster = self._bootstrap = self._lock = self.app = None
        try:
            if cluster is not None:
                await cluster.stop()
            if bootstrap is not None:
                await bootstrap.close()
            if broker is not None:
                await broker.close()
        finally:
            if lock is not None:
                lock.release()


async def _run(config: Config, on_ready: Callable[[str], None]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopping.set)
    node = Node(config)
    await node.start()
    try:
        on_ready(node.url)
        await stopping.wait()
    finally:
        await node.stop()


def run(config: Config, on_ready: Callable[[str], None]) -> None:
    """Run a node until SIGTERM or Ctrl-C; ``on_ready`` gets its URL."""
    _raise_open_files()
    # Requests make no cycles worth looking for: the default of every 700 objects costs 6 %.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    if sys.platform != "win32":
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(config, on_ready))
    else:
        asyncio.run(_run(config, on_ready))


def _raise_open_files() -> None:
    """Every partition holds two files open, every connection one: take what the system allows."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
