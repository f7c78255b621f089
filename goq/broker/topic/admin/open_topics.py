"""The open topics of a node: opened, changed and deleted after the metadata store has decided.

Only this module adds topics to the node and removes them. Its caller makes one change at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from goq.broker.topic.admin.topic_loader import TopicLoader
from goq.broker.topic.topic import Topic
from goq.config.topic import TopicSettings
from goq.errors import TopicNotFound
from goq.storage.catalog.rows import TopicRow


class TopicListener(NamedTuple):
    """The parts of a node that follow its topics."""

    on_change: Callable[[Topic], None]
    """The topic was opened, or changed in any way."""
    on_settings: Callable[[], None]
    """Settings of a topic that was open before may have changed."""
    on_adopt: Callable[[str], Awaitable[None]]
    """A topic's files are in place, in the folder of this name; the topic opens after this."""
    on_delete: Callable[[int], None]
    """The topic with this id was closed; its files are deleted after this."""


class OpenTopics:
    """The open topics by name, between the disk and what follows their changes."""

    def __init__(
        self,
        topics: dict[str, Topic],
        loader: TopicLoader,
        listener: TopicListener,
        defaults: TopicSettings,
    ) -> None:
        self._topics = topics
        self._loader = loader
        self._listener = listener
        self._defaults = defaults

    async def open(self, row: TopicRow, *, skip_failed: bool = False) -> Topic:
        """Open a topic of the metadata store; with ``skip_failed`` partitions may be offline."""
        topic = await self._loader.open(row, skip_failed=skip_failed)
        self._topics[row.name] = topic
        self._listener.on_change(topic)
        return topic

    async def reopen_partition(self, topic: Topic, number: int) -> None:
        """Open a partition that is offline, from the disk; raise if it stays offline."""
        await topic.opener.reopen(number)
        self._listener.on_change(topic)

    async def take_up(
        self, row: TopicRow, groups: Mapping[str, Mapping[str, str]], *, has_replicas: bool
    ) -> None:
        """Open or update a topic and its groups by the cluster metadata.

        The topic's file follows where this node has replicas of it.
        """
        topic = self._topics.get(row.name)
        if topic is not None and topic.id != row.id:  # created since the metadata were read
            return
        if has_replicas:
            await self._loader.write_file(row, groups)
        if topic is None:
            await self.open(row)
            return
        chosen = self._defaults.changed(row.settings)
        if chosen != topic.settings:
            topic.configure(chosen)
        if row.partitions > topic.partitions.count:
            topic.expect(row.partitions)
        for group in groups.keys() | topic.groups.keys():
            if group not in groups:
                topic.forget_group(group)
            elif groups[group] != topic.groups.get(group):
                topic.configure_group(group, groups[group])
        self._listener.on_change(topic)
        self._listener.on_settings()

    async def delete(self, name: str, topic_id: int) -> None:
        """Close a topic if it is open, and delete its files."""
        topic = self._topics.get(name)
        if topic is not None and topic.id == topic_id:
            del self._topics[name]
            self._loader.half_deleted[name] = topic_id
            reason = TopicNotFound(f"topic {name} was deleted", field="topic")
            await topic.close(reason, is_deleted=True)
            self._listener.on_delete(topic_id)
        await self._loader.delete(name, topic_id)
