"""A running node: the composition root.

Starting: lock the data folder, open the metadata, recover the broker, join the cluster, listen.
Stopping goes the other way. Nothing else builds these parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from goq import limits
from goq.access.admin_token import FILE_NAME, read_admin_token, write_admin_token
from goq.access.token_table import TokenTable
from goq.api.app import App
from goq.api.metrics.request_spans import RequestSpans
from goq.broker.broker import Broker
from goq.broker.metadata import LocalMetadata, MetadataStore
from goq.broker.partition.partition import Partition
from goq.clock import Clock, SystemClock, next_beat
from goq.config.exposure import check_exposure, check_secret_files
from goq.config.node import Config
from goq.errors import GoqError, StorageFailed, StorageFull, UsageError, describe_os_error
from goq.http.message import CreateProtocol
from goq.http.tls.certificate_expiry import expiry_s
from goq.listeners import Listeners
from goq.storage.archive.manifest import ARCHIVE_DIR
from goq.storage.archive.store_cache import CACHE_DIR
from goq.storage.data_dir_lock import DataDirLock
from goq.storage.disk import Disk, RealDisk
from goq.storage.disk_space import DiskSpace, SpaceState
from goq.storage.journal.journal import JOURNAL_DIR
from goq.storage.log.segment import KEYS_SUFFIX, SPANS_SUFFIX
from goq.storage.verification import TOPICS_DIR

if TYPE_CHECKING:
    from goq.cluster.bootstrap import ClusterBootstrap
    from goq.cluster.cluster_node import ClusterNode

_CACHES = (
    f"{CACHE_DIR}/*",
    *(
        f"{folder}/*/*/*/*{suffix}"
        for folder in (ARCHIVE_DIR, TOPICS_DIR)
        for suffix in (KEYS_SUFFIX, SPANS_SUFFIX)
    ),
)
_ROOM_TO_START = (
    "a start needs 1 MiB: free that, on the same disk, then start the node, and delete topics or"
    " shorten their retention"
)


class NodeServer:
    """A node with its configuration: :meth:`start` it, then :meth:`stop` it.

    ``broker``, ``app`` and, on a member of a cluster, ``cluster`` are set while it runs. Topics
    beyond the first ``start_partitions`` partitions open after the start.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock | None = None,
        *,
        start_partitions: int = limits.START_PARTITIONS,
        spans: RequestSpans | None = None,
    ) -> None:
        self.config = config
        self._listeners = Listeners(config, spans)
        self._start_partitions = start_partitions
        self._clock = clock or SystemClock()
        self._draining = False
        self._lock: DataDirLock | None = None
        self._new_dirs: list[Path] = []
        self._space = DiskSpace(config.broker.data_dir, _CACHES)
        self._space_monitor: asyncio.Task[None] | None = None
        self.on_failure: Callable[[GoqError], None] = lambda _error: None
        """Called, perhaps again, when the node is of no use until it is stopped and started."""
        self.broker: Broker | None = None
        self.app: App | None = None
        self._bootstrap: ClusterBootstrap | None = None
        self.cluster: ClusterNode | None = None
        self._tokens: TokenTable | None = None

    @property
    def url(self) -> str:
        """The address that the node listens on."""
        return self._listeners.url

    @property
    def sqs_url(self) -> str | None:
        """The address of the SQS-compatible endpoint, None without one."""
        return self._listeners.sqs_url

    async def start(self) -> None:
        """Recover the data folder, then listen.

        Raises ``DataDirLocked``, ``CorruptData``, ``StorageFull`` or ``UsageError``, after
        releasing everything. A folder that this start created is removed, unless other nodes may
        count on it by then.
        """
        try:
            await self._start()
        except BaseException as error:
            await self._listeners.close(0)
            await self._release(remove_new=True)
            if isinstance(error, StorageFull):
                raise StorageFull(f"{error.detail}; {_ROOM_TO_START}") from error
            raise
        self._new_dirs = []

    async def _start(self) -> None:
        check_exposure(self.config)
        check_secret_files(self.config)
        self._listeners.load_certificate()
        disk = RealDisk(space=self._space)
        self._lock = self._lock_data_dir(disk)
        self._listeners.check_addresses()
        self._space.begin_start()
        metadata = await self._open_metadata(disk)
        self.broker = self._build_broker(disk, metadata)
        await self.broker.start()
        if self._bootstrap is not None:
            self.cluster = self._bootstrap.build(self.broker)
        self._tokens = self._open_tokens(metadata)
        self.app = App(
            self.broker,
            self.config.broker.node_id,
            lambda: self.url,
            lambda: self._draining,
            self.cluster,
            disk.files.shortages,
            self._space,
            partition_metrics=self.config.metrics.partitions,
            token_table=self._tokens,
            certificate=self._listeners.certificate,
            backup=self.config.backup,
        )
        if self.config.cluster.tls is not None:
            peer_end_s = expiry_s(self.config.cluster.tls.cert_file)
            self.app.metrics.cluster_certificate_end_s = peer_end_s
        await self.app.backups.open()
        await self.app.restores.open()
        self._space_monitor = asyncio.ensure_future(self._watch_space())
        await self._listeners.start(self.app, self.broker, self._tokens, self._upgrades())
        if self.cluster is not None:
            self.cluster.on_change = partial(self._on_cluster_change, self.app, self.cluster)
            self.cluster.start(self.url)
            self.cluster.on_change()
        self.app.schedules.start()

    def _on_cluster_change(self, app: App, cluster: ClusterNode) -> None:
        app.schedules.wake()
        failure = cluster.raft.status.failure
        if failure is not None:
            self.on_failure(
                StorageFailed(
                    f"this member of the cluster has stopped: {failure}; start the node again when"
                    " its disk works"
                )
            )

    async def _watch_space(self) -> None:
        """Measure the room on the disk; a node whose disk is full leads nothing."""
        before = SpaceState.OK
        while True:
            state = await asyncio.to_thread(self._space.check)
            if state is SpaceState.FULL and self.cluster is not None:
                self.cluster.disk_health.on_error(StorageFull("the disk is full"))
                if before is not state:
                    await self.cluster.hand_over_controller()
            before = state
            await next_beat(limits.DISK_SPACE_CHECK_S)

    def _lock_data_dir(self, disk: Disk) -> DataDirLock:
        data_dir = self.config.broker.data_dir
        missing = [path for path in (data_dir, *data_dir.parents) if not path.exists()]
        try:
            disk.make_dir(data_dir)
            self._new_dirs = missing
            return DataDirLock(data_dir)
        except OSError as error:
            raise UsageError(
                f"cannot use {data_dir}: {describe_os_error(error, data_dir)}",
                field="broker.data_dir",
            ) from None

    async def _open_metadata(self, disk: RealDisk) -> MetadataStore:
        """Return the cluster's metadata on a member of a cluster, else the node's own."""
        local = LocalMetadata(self.config.broker.data_dir, disk, self._space)
        if not self.config.cluster.is_member:
            return local
        from goq.cluster.bootstrap import ClusterBootstrap  # a standalone node starts faster

        self._bootstrap = ClusterBootstrap(
            self.config,
            disk,
            self._clock,
            raft_disk=disk.vital(),
            give_up_reserve=self._space.give_up,
        )
        self._new_dirs = []
        return await self._bootstrap.open(local)

    def _open_tokens(self, metadata: MetadataStore) -> TokenTable | None:
        """Return the tokens that requests need, None where the node asks for none."""
        if not self.config.asks_for_tokens:
            return None
        table = TokenTable(lambda: metadata.tokens, self._clock.wall_ms)
        text = read_admin_token(self.config.broker.data_dir)
        if text is None and not table.has_admin():
            text = write_admin_token(self.config.broker.data_dir)
        table.set_admin_token(self.config.broker.node_id, text)
        return table

    def _build_broker(self, disk: Disk, metadata: MetadataStore) -> Broker:
        config, defaults = self.config.broker, self.config.defaults
        return Broker(
            config.data_dir / TOPICS_DIR,
            metadata,
            disk,
            self._clock,
            defaults=defaults.settings,
            partitions=defaults.partitions,
            auto_create=config.auto_create_topics,
            is_member=self._bootstrap is not None,
            replica_start_offset=self._replica_start_offset,
            remote_target=None if self._bootstrap is None else self._bootstrap.remote_partition,
            return_lease=None if self._bootstrap is None else self._bootstrap.return_lease,
            end_leases=None if self._bootstrap is None else self._bootstrap.end_leases,
            journal_dir=config.data_dir / JOURNAL_DIR if self._has_format() else None,
            start_partitions=self._start_partitions,
            archive_config=self.config.archive,
            node_id=config.node_id,
            is_disk_full=partial(getattr, self._space, "is_full"),  # each receive asks
        )

    def _has_format(self) -> bool:
        """Whether an earlier goq would refuse the folder; only then it may have a journal."""
        return self._lock is not None and self._lock.has_current_format

    def _upgrades(self) -> dict[str, CreateProtocol]:
        """Return what connections may change to: the streams of other nodes."""
        if self.cluster is None:
            return {}
        from goq.cluster.rpc.peer_streams import PROTOCOL  # a standalone node starts faster

        return {PROTOCOL: self.cluster.streams.accept}

    def _replica_start_offset(self, partition: Partition) -> int | None:
        if self.cluster is None:
            return None
        return self.cluster.replicas.needed_from(partition.identity)

    def reload(self, config: Config) -> dict[str, str]:
        """Take over the settings that can change while the node runs: the names of hosts.

        The certificate is loaded again. The token of the data folder is read again, and does not
        count any more without its file. Returns what has become of the token, by the file's name,
        if it is another one now. Raises ``UsageError``.
        """
        changed: dict[str, str] = {}
        if self._tokens is not None:
            text = read_admin_token(config.broker.data_dir)
            if self._tokens.set_admin_token(config.broker.node_id, text):
                changed[FILE_NAME] = "none" if text is None else "replaced"
        if self._listeners.certificate is not None:
            self._listeners.certificate.reload()
        if self._bootstrap is not None:
            self._bootstrap.reload_authorities()
        self.config = config
        self._listeners.allow_hosts(config)
        return changed

    def requests_under_way(self) -> list[str]:
        """Return the requests that are not answered yet, for a log."""
        return self._listeners.requests_under_way()

    async def stop(self) -> None:
        """Finish requests in flight, make everything durable, unlock the data folder.

        Waiting receives are answered at once; publishes get their answer. In a cluster other nodes
        first take over this node's partitions, so that no client waits for a failure detector.
        """
        self._draining = True
        if self.app is not None:
            await self.app.schedules.stop()
        await self._listeners.stop_sqs()
        if self.cluster is not None:
            await self.cluster.hand_over()
        if self.app is not None:
            self.app.stop_waiting()
        if self.broker is not None:
            self.broker.start_queue.stop()
            self.broker.streams.end_all()
        await self._listeners.close(limits.DRAIN_TIMEOUT_MS)
        if self.app is not None and self.app.audit is not None:
            await self.app.audit.close()
        await self._release()

    async def _release(self, *, remove_new: bool = False) -> None:
        if self._space_monitor is not None:
            self._space_monitor.cancel()
            await asyncio.gather(self._space_monitor, return_exceptions=True)
            self._space_monitor = None
        if self.app is not None:
            await self.app.backups.close()
            await self.app.restores.close()
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
                if remove_new:
                    self._remove_new_dirs()
                lock.release()

    def _remove_new_dirs(self) -> None:
        with suppress(OSError):
            for number, path in enumerate(self._new_dirs):
                if number == 0:
                    RealDisk().remove_dir(path)
                else:
                    path.rmdir()  # a parent, if it is empty
