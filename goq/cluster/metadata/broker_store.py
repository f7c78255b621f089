"""The broker's metadata where several nodes share it: topics and groups are agreed on by Raft.

What is true of this node alone, as its segments and its starts, stays in its own ``node.db``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from goq.broker.metadata import LocalMetadata, SegmentKey
from goq.cluster.metadata import commands
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.results import Accepted
from goq.cluster.metadata.state import GroupMetadata, MetadataState, TopicMetadata
from goq.errors import Conflict, TopicExists, TopicNotFound
from goq.storage.node_db import ArchiveRow, SegmentRow, TopicRow

_PATIENCE_S = 3.0
_PAUSE_S = 0.02


class ReplicatedMetadataStore:
    """A ``MetadataStore``: a change is agreed on, and known here, when a method returns."""

    def __init__(self, local: LocalMetadata, proposing: MetadataClient) -> None:
        self._local = local
        self._proposing = proposing

    @property
    def _state(self) -> MetadataState:
        return self._proposing.state

    async def next_epoch(self) -> int:
        """Count a start of this node."""
        return await self._local.next_epoch()

    async def topics(self) -> list[TopicRow]:
        """Return all topics that are not being deleted."""
        return topic_rows(self._state)

    async def put_topic(self, topic: TopicRow) -> None:
        """Make a topic, or change it to what ``topic`` says."""
        known = self._state.topics.get(topic.name)
        if known is None:
            await self._propose(
                commands.CreateTopic(topic.name, topic.partitions, dict(topic.settings))
            )
        elif topic.deleting:
            await self._propose(commands.DeleteTopic(topic.name, known.topic_id))
        elif known.deleting:
            raise TopicExists(f"topic {topic.name} is being deleted; try again", field="name")
        else:
            await self._alter(known, topic)

    async def _alter(self, known: TopicMetadata, topic: TopicRow) -> None:
        changed: dict[str, str | None] = {
            key: value for key, value in topic.settings.items() if known.settings.get(key) != value
        }
        changed |= dict.fromkeys(known.settings.keys() - topic.settings.keys())
        version = known.version
        if changed:
            command = commands.AlterTopic(topic.name, known.topic_id, version, changed)
            version = (await self._propose(command)).value
        if topic.partitions > len(known.partitions):
            await self._propose(
                commands.AddPartitions(topic.name, known.topic_id, version, topic.partitions)
            )

    async def delete_topic(self, name: str) -> None:
        """Forget what this node's own database says of a topic: for all, the name is free
        when all nodes have deleted their files."""
        await self._local.delete_topic(name)

    async def groups(self, topic: str) -> dict[str, dict[str, str]]:
        """Return a topic's groups, each with its own settings."""
        return group_settings(self._state, topic)

    async def put_group(self, topic: str, name: str, settings: Mapping[str, str]) -> None:
        """Make a group, or give it other settings; one that there is keeps those it has for none.

        Several nodes may do so at once, as when their consumers come for the first time.
        """
        until = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            topic_id, group = self._group(topic, name)
            if group is not None and (not settings or dict(group.settings) == dict(settings)):
                return
            version = 0 if group is None else group.version
            command = commands.PutGroup(topic, topic_id, name, version, dict(settings))
            try:
                await self._propose(command)
                return
            except Conflict:  # decided on what was so before: look again once it is known here
                if asyncio.get_running_loop().time() >= until:
                    raise
            await asyncio.sleep(_PAUSE_S)

    async def delete_group(self, topic: str, name: str) -> None:
        """Forget a group."""
        topic_id, group = self._group(topic, name)
        if group is not None:
            await self._propose(commands.DeleteGroup(topic, topic_id, name, group.version))

    def _group(self, topic: str, name: str) -> tuple[int, GroupMetadata | None]:
        known = self._state.topics.get(topic)
        if known is None:
            raise TopicNotFound(f"there is no topic {topic}", field="topic")
        return known.topic_id, self._state.groups.get(topic, {}).get(name)

    async def _propose(self, command: commands.AnyCommand) -> Accepted:
        return await self._proposing.propose(command)

    async def put_segment(self, segment: SegmentRow) -> None:
        """Add a sealed segment of this node to its manifest."""
        await self._local.put_segment(segment)

    async def add_segments(self, segments: Sequence[SegmentRow]) -> None:
        """Add sealed segments of this node to its manifest; what it says of them stays."""
        await self._local.add_segments(segments)

    async def delete_segments_of(self, topic: str, partition: int, log: str) -> None:
        """Take all segments of one log of this node out of its manifest."""
        await self._local.delete_segments_of(topic, partition, log)

    async def delete_segments(self, keys: Sequence[SegmentKey]) -> None:
        """Take deleted segments of this node out of its manifest."""
        await self._local.delete_segments(keys)

    async def put_archived(self, rows: Sequence[ArchiveRow]) -> None:
        """Add segments to the manifest of this node's archive, or replace them there."""
        await self._local.put_archived(rows)

    async def archived(self) -> list[ArchiveRow]:
        """Return the manifest of this node's archive."""
        return await self._local.archived()

    async def close(self) -> None:
        """Finish what is under way."""
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
