"""Restores of single topics into a running node, under another name, one at a time.

The backups are those of the node's own setting ``backup.to``: no request names a place. A topic is
restored below ``restoring/<topic folder>`` of the data folder, whole and durable. Then its archive
and its folder are renamed to their places, and the topic is added to the metadata, those of the
cluster too. No topic that exists is touched.

A restore that was cut short leaves ``restoring/<topic folder>``. The next start removes it, with
what was renamed already, unless the topic is there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from goq.backup.manifest import StoredTopic
from goq.backup.node_backups import configured_place
from goq.backup.place import open_place
from goq.backup.restore import RestoreOrder, choose_backup, chosen_topics
from goq.backup.topic_restorer import TopicRestorer
from goq.broker.broker import Broker
from goq.broker.runtime.single_job import JobOutcome, SingleJob
from goq.config.backup import BackupConfig
from goq.config.topic import TopicSettings
from goq.errors import (
    Conflict,
    GoqError,
    InvalidInput,
    ShuttingDown,
    StorageFull,
    TimedOut,
    TopicExists,
)
from goq.model import DEAD_LETTERS_SUFFIX, check_name, check_not_internal, parse_topic_folder
from goq.storage.archive.manifest import ARCHIVE_DIR
from goq.storage.catalog.rows import TopicRow
from goq.storage.disk import RealDisk
from goq.storage.disk_space import low_bytes_of
from goq.storage.verification import TOPICS_DIR
from goq.units import round_size_bytes

RESTORING_DIR: Final = "restoring"
_NEW: Final = ".new"
_RETRY_S: Final = 1.0
_NICENESS: Final = 10
_READABLE_S: Final = 10.0  # then a restore is done all the same
_LOOK_S: Final = 0.02
_log = logging.getLogger("goq.backup")

T = TypeVar("T")
IsInCluster = Callable[[int], Awaitable[bool]]
"""Returns whether the cluster has a topic of an id; raises ``GoqError`` while that is unknown."""


class TopicRestoreOrder(NamedTuple):
    """A topic of a backup and the name that it gets; ``settings`` replace those of the backup.

    ``backup`` and ``at_us`` choose as those of ``RestoreOrder`` do. ``check`` raises ``GoqError``
    if the sender may not have the settings that the topic then has.
    """

    topic: str
    new_name: str
    backup: str | None = None
    at_us: int | None = None
    settings: Mapping[str, Any] = {}
    check: Callable[[TopicSettings], None] = lambda _settings: None


class RestoredTopic(NamedTuple):
    """A restored topic: the backup, its name, messages and bytes, and what the backup lacks.

    ``is_compacted`` says that compaction removed messages from before the moment.
    """

    backup: str
    topic: str
    messages: int
    bytes: int
    missing: tuple[str, ...] = ()
    is_compacted: bool = False


class NodeRestores:
    """The restores of a node; ``is_in_cluster`` is None on a standalone one."""

    def __init__(
        self, broker: Broker, config: BackupConfig, is_in_cluster: IsInCluster | None = None
    ) -> None:
        self.job = SingleJob[RestoredTopic]("restore")
        self._broker = broker
        self._config = config
        self._is_in_cluster = is_in_cluster
        self._disk = RealDisk()
        self._data_dir = broker.topics_dir.parent
        self._folder = self._data_dir / RESTORING_DIR
        self._cleaning: asyncio.Task[None] | None = None
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1, "goq-restore", initializer=_lower_priority)

    async def open(self) -> None:
        """Begin to remove what an earlier run has left of restores."""
        left = await self._in_thread(lambda: self._disk.names(self._folder))
        if left:
            self._cleaning = asyncio.ensure_future(self._clean(left))

    async def close(self) -> None:
        """Give up the restore under way; what it leaves is removed by the next start."""
        self._stopped.set()
        if self._cleaning is not None:
            self._cleaning.cancel()
            await asyncio.wait([self._cleaning])
        await self.job.cancel()
        await asyncio.to_thread(self._thread.shutdown)  # it may be opening a large log

    def begin(self, order: TopicRestoreOrder, place: str | None = None) -> int:
        """Begin a restore; return its number. ``place`` may only be that of the configuration.

        Raises ``Conflict`` while another one is under way, ``TopicExists`` and ``InvalidInput``.
        """
        where = configured_place(self._config, place)
        name = check_name(order.new_name, "topic", field="as")
        check_not_internal(name)
        if name.endswith(DEAD_LETTERS_SUFFIX):
            raise InvalidInput(
                f"{name[:200]} would be the dead letters of another topic: restore them under a"
                f" name that does not end in {DEAD_LETTERS_SUFFIX}",
                field="as",
            )
        TopicSettings().changed(order.settings)
        for taken in (name, name + DEAD_LETTERS_SUFFIX):
            if taken in self._broker.topics:
                raise TopicExists(f"topic {taken} exists: choose another name", field="as")
        if self.job.running is not None:
            raise Conflict("another restore is under way; try again when it is done")
        return self.job.begin(partial(self._restore, order, where), partial(_tell, order))

    async def _restore(self, order: TopicRestoreOrder, where: Path | str) -> RestoredTopic:
        await self._broker.start_queue.wait_for_all()
        if self._cleaning is not None:
            await asyncio.wait([self._cleaning])
        staged = await self._in_thread(lambda: self._stage(order, where))
        try:
            await self._broker.topic_admin.adopt(
                staged.row, staged.groups, staged.epoch, lambda: self._put_in_place(staged.row)
            )
        except TimedOut:
            raise  # it may be there: the next start decides
        except (GoqError, OSError):
            await self._in_thread(lambda: self._discard(staged.row.folder))
            raise
        await self._in_thread(lambda: self._disk.remove_dir(self._folder / staged.row.folder))
        await self._until_readable(staged.row.name)
        return staged.result

    async def _until_readable(self, name: str) -> None:
        """Wait until the messages can be read: a cluster opens the partitions a moment later."""
        topic = self._broker.topics.get(name)
        if topic is None:
            return
        with suppress(GoqError, TimeoutError):
            async with asyncio.timeout(_READABLE_S):
                while topic.partitions.held_count() < topic.partitions.count:
                    await asyncio.sleep(_LOOK_S)
                for partition in topic.partitions:
                    commit = partition.appender.commit
                    await commit.wait_for_commit(commit.log.end_offset)

    def _stage(self, order: TopicRestoreOrder, where: Path | str) -> _Staged:
        place = open_place(self._disk, where)
        now_us = self._broker.clock.wall_us()
        with place.locked(exclusive=False):
            chosen = RestoreOrder(order.backup, order.at_us, {order.topic: order.new_name})
            backup, manifest = choose_backup(place, chosen, now_us)
            ((stored, name),) = chosen_topics(manifest, chosen.topics)
            order.check(TopicSettings().changed(stored.settings).changed(order.settings))
            epoch = self._epoch_above(manifest.epoch)
            self._check_room(stored)
            new = self._folder / _NEW  # its topic has no name before it is whole
            self._disk.remove_dir(new)
            work = TopicRestorer(place, new, order.at_us, now_us, epoch, self._check)
            try:
                row = work.restore_topic(stored, name, order.settings)
                if work.aged:
                    raise Conflict(
                        f"all or some messages of {order.topic} are older than its retention.age,"
                        " or the archived ones older than its retention.total_age, so they would be"
                        " deleted, at once or when their segment is sealed: set another one, as"
                        " --set retention.age=none or --set retention.total_age=none"
                    )
            except Exception:
                self._disk.remove_dir(new)
                raise
        self._disk.move_dir(new, self._folder / row.folder)
        missing = tuple(stored.missing)
        result = RestoredTopic(
            backup, name, work.messages, work.bytes, missing, bool(work.compacted)
        )
        return _Staged(row, work.rows[0][1], epoch, result)

    def _check_room(self, stored: StoredTopic) -> None:
        """Raise ``StorageFull`` if the topic would leave the disk nearly full."""
        size_bytes = sum(file.size_bytes for file in stored.files)
        usage = shutil.disk_usage(self._data_dir)
        if usage.free - size_bytes < low_bytes_of(usage.total):
            raise StorageFull(
                f"topic {stored.name} has {round_size_bytes(size_bytes)}, and the disk has"
                f" {round_size_bytes(usage.free)}: it would be nearly full"
            )

    def _epoch_above(self, epoch: int) -> int:
        """Return a number that no epoch in the backup, and none given here so far, exceeds."""
        own = self._broker.epoch
        if self._is_in_cluster is None and epoch > own:
            raise Conflict(
                f"the backup is of a node that was started {epoch} times, and this one was {own}"
                " times: restore it into a data folder of its own, with --data-dir"
            )
        return max(epoch, own)

    def _put_in_place(self, row: TopicRow) -> None:
        """Rename the archive, then the topic's folder; blocks on the disk."""
        staged = self._folder / row.folder
        for kind in (ARCHIVE_DIR, TOPICS_DIR):
            if row.folder in self._disk.names(staged / kind):
                self._disk.make_dir(self._data_dir / kind)
                self._disk.move_dir(staged / kind / row.folder, self._data_dir / kind / row.folder)

    def _discard(self, folder: str) -> None:
        """Remove the files of a topic that was not added; blocks on the disk."""
        for kind in (TOPICS_DIR, ARCHIVE_DIR):
            self._disk.remove_dir(self._data_dir / kind / folder)
        self._disk.remove_dir(self._folder / folder)

    async def _clean(self, left: list[str]) -> None:
        for folder in left:
            is_lost = "~" in folder and await self._is_lost(folder)
            path = self._folder / folder
            if is_lost:
                await self._in_thread(partial(self._discard, folder))
            await self._in_thread(partial(self._disk.remove_dir, path))
            _log.warning("%s is removed: it was left by a restore", path)

    async def _is_lost(self, folder: str) -> bool:
        """Return whether a topic was renamed to its place, and not added.

        On a standalone node its folder alone adds it.
        """
        if self._is_in_cluster is None:
            return not await self._in_thread((self._broker.topics_dir / folder).exists)
        while True:
            with suppress(GoqError):
                return not await self._is_in_cluster(parse_topic_folder(folder)[1])
            await asyncio.sleep(_RETRY_S)

    def _check(self, _bytes: int) -> None:
        if self._stopped.is_set():
            raise ShuttingDown("the node is stopping")

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


class _Staged(NamedTuple):
    """A topic that is restored and not yet in its place."""

    row: TopicRow
    groups: Mapping[str, Mapping[str, str]]
    epoch: int
    result: RestoredTopic


def _tell(order: TopicRestoreOrder, ended: JobOutcome[RestoredTopic]) -> None:
    if ended.failure is not None:
        reason = ended.failure.detail
        _log.error("%s is not restored as %s: %s", order.topic, order.new_name, reason)
    else:
        _log.warning("%s is restored as %s", order.topic, order.new_name)


def _lower_priority() -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
