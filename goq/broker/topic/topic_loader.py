"""Topics between disk and memory: recovered at the start, opened, deleted.

A topic's id is in the name of its folder. A topic from before ids were drawn gets one at the first
start with this version, and keeps its folder. Without ``node.db`` the folders tell the ids.
A deletion is recorded before the first file is removed, and the entry goes last: a deletion that a
crash cut short is finished at the next start, or when a topic of that name is created again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from goq.broker.metadata import MetadataStore
from goq.broker.partition.publish_target import PublishTarget, TargetLookup
from goq.broker.partition_context import PartitionContext
from goq.broker.topic.topic import Topic, TopicParameters
from goq.config.topic import TopicSettings
from goq.errors import InvalidInput
from goq.model import NATIVE_TOPIC_IDS, NO_TOPIC_ID, parse_topic_folder, topic_folder
from goq.storage.node_db import TopicRow

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
        *,
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
        self._parameters = parameters
        self._is_member = is_member
        self._on_delete = on_delete

    async def recover_rows(self) -> dict[str, TopicRow]:
        """Finish deletions, adopt unknown folders of a standalone node; return all topics."""
        disk = self._context.disk
        disk.make_dir(self._topics_dir)
        rows = {row.name: row for row in await self._metadata.topics()}
        for row in [row for row in rows.values() if row.deleting]:
            await self.delete(row.name, row.id)
            del rows[row.name]
        if self._is_member:
            return rows
        for row in [row for row in rows.values() if row.id == NO_TOPIC_ID]:
            rows[row.name] = await self._put(row)
        known = {row.folder for row in rows.values()}
        for folder in disk.names(self._topics_dir):
            if folder not in known and (partitions := self._partitions_in(folder)):
                name, topic_id = parse_topic_folder(folder)
                if name in rows:
                    _log.warning("%s is of an earlier topic %s; nothing reads it", folder, name)
                else:
                    rows[name] = await self._adopt(name, topic_id, partitions)
        return rows

    def _partitions_in(self, folder: str) -> int:
        """Return the number of partitions in a topic's folder; 0 for another folder."""
        try:
            parse_topic_folder(folder)
            names = self._context.disk.names(self._topics_dir / folder)
        except (InvalidInput, NotADirectoryError):
            return 0
        return 1 + max((int(n) for n in names if n.isascii() and n.isdecimal()), default=-1)

    async def _adopt(self, name: str, topic_id: int, partitions: int) -> TopicRow:
        """Adopt a topic's folder that the database does not know: data is never dropped."""
        _log.warning(
            "topic %s has a folder but no entry in node.db: taken up with default settings", name
        )
        return await self._put(TopicRow(name, partitions, self._defaults.written(), id=topic_id))

    async def _put(self, row: TopicRow) -> TopicRow:
        """Store a topic's entry, with an id if it has none; return it."""
        if row.id == NO_TOPIC_ID:
            row = row._replace(id=1 + self._context.new_id() % (NATIVE_TOPIC_IDS - 1))
        await self._metadata.put_topic(row)
        return row

    async def open(self, row: TopicRow) -> Topic:
        """Return an open topic with its groups; in a cluster its partitions open later."""
        topic = Topic(
            row.name,
            row.id,
            self._defaults.changed(row.settings),
            self._topics_dir / row.folder,
            self._context,
            self._context.tasks,
            self._target,
            self._remote_target,
            parameters=self._parameters,
        )
        for group, written in (await self._metadata.groups(row.name)).items():
            topic.configure_group(group, written)
        await self.open_partitions(topic, row.partitions)
        for partition in topic.partitions:
            for group in partition.group_names:
                topic.groups.setdefault(group, {})
        return topic

    async def open_partitions(self, topic: Topic, partitions: int) -> None:
        """Open the partitions of a topic; in a cluster only expect them."""
        if self._is_member:
            topic.expect(partitions)
        else:
            await topic.open(partitions)

    async def finish_deletion(self, name: str) -> None:
        """Delete a topic whose deletion has begun and did not end."""
        if name in self.half_deleted:
            await self.delete(name, self.half_deleted[name])

    async def delete(self, name: str, topic_id: int) -> None:
        """Delete the files of a closed topic, then its entry."""
        folder = topic_folder(name, topic_id)
        await asyncio.get_running_loop().run_in_executor(
            self._context.executor, self._context.disk.remove_dir, self._topics_dir / folder
        )
        await self._on_delete(folder)
        await self._metadata.delete_topic(name, topic_id)
        if self.half_deleted.get(name) == topic_id:
            del self.half_deleted[name]
