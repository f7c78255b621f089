"""Topics between disk and memory: recovered at the start, opened, deleted.

A topic's id is in the name of its folder. A topic from before ids were drawn gets one at the first
start with this version, and keeps its folder. A deletion is decided on before the first file is
removed, and the folder goes last: a deletion that a crash cut short is finished at the next start,
or when a topic of that name is created again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from goq.broker.metadata import MetadataStore
from goq.broker.partition.leases import LeasedBatch
from goq.broker.partition.publish_target import PublishTarget, TargetLookup
from goq.broker.partition_context import PartitionContext
from goq.broker.topic.topic import Topic, TopicParameters
from goq.config.topic import TopicSettings
from goq.errors import GoqError, InvalidInput
from goq.model import NATIVE_TOPIC_IDS, NO_TOPIC_ID, topic_folder
from goq.storage.catalog.rows import DoubtKind, TopicDoubt, TopicRow
from goq.storage.catalog.topic_catalog import KEEP_ALL, topic_record
from goq.storage.catalog.topic_file import write_topic_file

_log = logging.getLogger("goq.broker")


class TopicLoader:
    """Opens and deletes the topics of a node. ``on_delete`` removes the archive of a topic."""

    def __init__(
        self,
        topics_dir: Path,
        metadata: MetadataStore,
        defaults: TopicSettings,
        context: PartitionContext,
        target: Callable[[Topic, str, int], Awaitable[PublishTarget]],
        remote_target: TargetLookup | None,
        return_lease: Callable[[str, str, LeasedBatch], None] | None,
        *,
        remember_group: Callable[[Topic, str], Awaitable[None]],
        parameters: TopicParameters,
        is_member: bool,
        on_delete: Callable[[str], Awaitable[None]],
    ) -> None:
        self.half_deleted: dict[str, int] = {}
        """The ids of topics whose deletion has begun, by name."""
        self._topics_dir = topics_dir
        self._metadata = metadata
        self._defaults = defaults
        self._context = context
        self._target = target
        self._remote_target = remote_target
        self._return_lease = return_lease
        self._remember_group = remember_group
        self._parameters = parameters
        self._is_member = is_member
        self._on_delete = on_delete

    async def recover_rows(self) -> dict[str, TopicRow]:
        """Finish deletions; return all topics."""
        self._context.disk.make_dir(self._topics_dir)
        rows = {row.name: row for row in await self._metadata.topics()}
        for row in [row for row in rows.values() if row.deleting]:
            del rows[row.name]
            try:
                await self.delete(row.name, row.id)
            except (GoqError, OSError) as error:
                self.half_deleted[row.name] = row.id
                _log.error("the deletion of topic %s is not finished: %s", row.name, error)
        if not self._is_member:
            for row in [row for row in rows.values() if row.id == NO_TOPIC_ID]:
                rows[row.name] = await self._with_id(row)
        return rows

    async def _with_id(self, row: TopicRow) -> TopicRow:
        """Give a topic from before ids were drawn its id; return it."""
        row = row._replace(id=1 + self._context.new_id() % (NATIVE_TOPIC_IDS - 1))
        if row.doubt is None:  # else nothing of it changes before a user decides
            await self._metadata.put_topic(row)
        return row

    async def open(self, row: TopicRow, *, skip_failed: bool) -> Topic:
        """Return an open topic with its groups; in a cluster its partitions open later."""
        row, settings = self._settings_of(row)
        topic = Topic(
            row.name,
            row.id,
            settings,
            self._topics_dir / row.folder,
            self._context,
            self._context.tasks,
            self._target,
            self._remote_target,
            self._return_lease,
            remember_group=self._remember_group,
            parameters=self._parameters,
            doubt=row.doubt,
            manifest=partial(self._metadata.manifest_of, row.folder),
        )
        for group, written in (await self._metadata.groups(row.name)).items():
            try:
                topic.configure_group(group, written)
            except InvalidInput as error:
                topic.configure_group(group, {})
                topic.set_doubt(_unreadable(f"group {group}", error))
        try:
            await self.open_partitions(topic, row.partitions, skip_failed=skip_failed)
        except GoqError as error:
            await topic.close(error, is_deleted=True)
            raise
        for partition in topic.partitions:
            for group in partition.group_names:
                topic.groups.setdefault(group, {})
        return topic

    def _settings_of(self, row: TopicRow) -> tuple[TopicRow, TopicSettings]:
        """Return the settings of a topic; with those that cannot be read it is in doubt."""
        try:
            return row, self._defaults.changed(row.settings)
        except InvalidInput as error:
            doubt = row.doubt or _unreadable(f"topic {row.name}", error)
            return row._replace(doubt=doubt), self._defaults.changed(KEEP_ALL)

    async def write_file(self, row: TopicRow, groups: Mapping[str, Mapping[str, str]]) -> None:
        """Write the file of a topic that the cluster metadata define. They do not depend on it."""
        disk, record = self._context.disk, topic_record(row, groups)
        try:
            await self.in_thread(lambda: write_topic_file(disk, self._topics_dir, record))
        except OSError as error:
            _log.warning("the file of topic %s is not written: %s", row.name, error)

    async def open_partitions(
        self, topic: Topic, partitions: int, *, skip_failed: bool = False
    ) -> None:
        """Open a topic's partitions, see ``PartitionOpener``; in a cluster only expect them."""
        if self._is_member:
            topic.expect(partitions)
            return
        known = await self._metadata.manifest_of(topic.folder)
        await topic.opener.open(partitions, known, skip_failed=skip_failed)
        if known.partitions >= partitions or topic.partitions.offline:
            return
        try:
            await self._metadata.put_partitions(topic.folder, partitions)
        except GoqError as error:
            if not skip_failed:
                raise
            _log.warning("a lost log of topic %s would not be noticed: %s", topic.name, error)

    async def finish_deletion(self, name: str) -> None:
        """Delete a topic whose deletion has begun and did not end."""
        if name in self.half_deleted:
            await self.delete(name, self.half_deleted[name])

    async def delete(self, name: str, topic_id: int) -> None:
        """Delete the partitions of a closed topic, its archive, its entry, its folder."""
        folder = topic_folder(name, topic_id)
        await self.in_thread(lambda: self._remove_partitions(self._topics_dir / folder))
        await self._on_delete(folder)
        await self._metadata.delete_topic(name, topic_id)
        await self.in_thread(lambda: self._context.disk.remove_dir(self._topics_dir / folder))
        if self.half_deleted.get(name) == topic_id:
            del self.half_deleted[name]

    def _remove_partitions(self, folder: Path) -> None:
        """Remove the partitions; the file that says that the topic is deleted stays."""
        disk = self._context.disk
        for name in disk.names(folder):
            if name.isascii() and name.isdecimal():
                disk.remove_dir(folder / name)

    async def in_thread(self, work: Callable[[], object]) -> None:
        """Run work that blocks on the disk."""
        await asyncio.get_running_loop().run_in_executor(self._context.executor, work)


def _unreadable(what: str, error: InvalidInput) -> TopicDoubt:
    return TopicDoubt(DoubtKind.READ_ONLY, f"the settings of {what} cannot be read: {error.detail}")
