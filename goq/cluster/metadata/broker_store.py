"""The broker's metadata store in a cluster: topics and groups are replicated by Raft.

Data of this node alone, such as its segments and its start count, stays in its own ``node.db``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from goq.broker.metadata import LocalMetadata, SegmentKey
from goq.cluster.metadata import commands
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.results import Accepted
from goq.cluster.metadata.state import GroupMetadata, MetadataState, TopicMetadata
from goq.errors import Conflict, GoqError, TimedOut, TopicExists, TopicNotFound
from goq.storage.node_db import ArchiveRow, SegmentRow, TopicRow

_CONFLICT_TIMEOUT_S = 3.0
_CONFLICT_RETRY_S = 0.02


class ReplicatedMetadataStore:
    """A ``MetadataStore``: a change is committed, and applied here, when a method returns."""

    def __init__(self, local: LocalMetadata, metadata: MetadataClient) -> None:
        self._local = local
        self._metadata = metadata

    @property
    def _state(self) -> MetadataState:
        return self._metadata.state

    async def next_epoch(self) -> int:
        """Count a start of this node."""
        return await self._local.next_epoch()

    async def topics(self) -> list[TopicRow]:
        """Return all topics that are not being deleted."""
        return topic_rows(self._state)

    async def put_topic(self, topic: TopicRow, *, is_new: bool = False) -> None:
        """Create a topic, or change it to match ``topic``.

        Raises ``TopicExists`` if it ``is_new`` to this node's broker, but not to the cluster.
        """
        existing = self._state.topics.get(topic.name)
        if existing is None:
            await self._propose(
                commands.CreateTopic(topic.name, topic.partitions, dict(topic.settings))
            )
        elif topic.deleting:
            await self._propose(commands.DeleteTopic(topic.name, existing.topic_id))
        elif existing.deleting:
            raise TopicExists(f"topic {topic.name} is being deleted; try again", field="name")
        elif is_new:
            raise TopicExists(f"topic {topic.name} exists already", field="name")
        else:
            await self._alter(existing, topic)

    async def _alter(self, existing: TopicMetadata, topic: TopicRow) -> None:
        changed: dict[str, str | None] = {
            key: value
            for key, value in topic.settings.items()
            if existing.settings.get(key) != value
        }
        changed |= dict.fromkeys(existing.settings.keys() - topic.settings.keys())
        version = existing.version
        if changed:
            command = commands.AlterTopic(topic.name, existing.topic_id, version, changed)
            version = (await self._propose(command)).value
        if topic.partitions > len(existing.partitions):
            adding = commands.AddPartitions(
                topic.name, existing.topic_id, version, topic.partitions
            )
            try:
                await self._propose(adding)
            except GoqError as error:
                if changed:
                    raise TimedOut(
                        f"the settings are changed, but not the partitions: {error.detail}"
                    ) from error
                raise

    async def delete_topic(self, name: str) -> None:
        """Forget what this node's own database holds of a topic.

        The topic's name is free in the cluster once all nodes have deleted their files.
        """
        await self._local.delete_topic(name)

    async def groups(self, topic: str) -> dict[str, dict[str, str]]:
        """Return a topic's groups, each with its own settings."""
        return group_settings(self._state, topic)

    async def put_group(self, topic: str, name: str, settings: Mapping[str, str]) -> None:
        """Create a group, or replace its settings; without settings an existing group is unchanged.

        Several nodes may do so at once, for example when their first consumers arrive.
        """
        deadline_s = asyncio.get_running_loop().time() + _CONFLICT_TIMEOUT_S
        while True:
            topic_id, group = self._group(topic, name)
            if group is not None and (not settings or dict(group.settings) == dict(settings)):
                return
            version = 0 if group is None else group.version
            command = commands.PutGroup(topic, topic_id, name, version, dict(settings))
            try:
                await self._propose(command)
                return
            except Conflict:  # decided on an outdated state: retry once the new one is applied here
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
            await asyncio.sleep(_CONFLICT_RETRY_S)

    async def delete_group(self, topic: str, name: str) -> None:
        """Delete a group."""
        topic_id, group = self._group(topic, name)
        if group is not None:
            await self._propose(commands.DeleteGroup(topic, topic_id, name, group.version))

    def _group(self, topic: str, name: str) -> tuple[int, GroupMetadata | None]:
        existing = self._state.topics.get(topic)
        if existing is None:
            raise TopicNotFound(f"there is no topic {topic}", field="topic")
        return existing.topic_id, self._state.groups.get(topic, {}).get(name)

    async def _propose(self, command: commands.AnyCommand) -> Accepted:
        return await self._metadata.propose(command)

    async def put_segment(self, segment: SegmentRow) -> None:
        """Add a sealed segment of this node to its manifest."""
        await self._local.put_segment(segment)

    async def add_segments(self, segments: Sequence[SegmentRow]) -> None:
        """Add sealed segments of this node to its manifest; existing entries stay."""
        await self._local.add_segments(segments)

    async def delete_segments_of(self, topic: str, partition: int, log: str) -> None:
        """Remove all segments of one log of this node from its manifest."""
        await self._local.delete_segments_of(topic, partition, log)

    async def delete_segments(self, keys: Sequence[SegmentKey]) -> None:
        """Remove deleted segments of this node from its manifest."""
        await self._local.delete_segments(keys)

    async def put_archived(self, rows: Sequence[ArchiveRow]) -> None:
        """Add segments to the manifest of this node's archive, or replace them there."""
        await self._local.put_archived(rows)

    async def archived(self) -> list[ArchiveRow]:
        """Return the manifest of this node's archive."""
        return await self._local.archived()

    async def close(self) -> None:
        """Finish pending writes."""
        await self._local.close()


def topic_rows(state: MetadataState) -> list[TopicRow]:
    """Return all topics that are not being deleted, by name."""
    return [
        TopicRow(name, len(topic.partitions), dict(topic.settings))
        for name, topic in sorted(state.topics.items())
        if not topic.deleting
    ]


def group_settings(state: MetadataState, topic: str) -> dict[str, dict[str, str]]:
    """Return a topic's groups, each with its own settings."""
    groups = state.groups.get(topic, {})
    return {name: dict(group.settings) for name, group in groups.items()}
