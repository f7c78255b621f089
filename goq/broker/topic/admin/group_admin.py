"""The administration of consumer groups: stored at their first use, configured, deleted.

The metadata store decides on a change before the topic follows it. Only a deletion begins with the
progress, which lies in the partitions: when the store fails after that, the outcome is unknown.
Changes go on to their end when the client is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from goq.broker.metadata import MetadataStore
from goq.broker.runtime.tasks import to_the_end
from goq.broker.topic.admin.capacity import Capacity
from goq.broker.topic.topic import Topic
from goq.config.topic import flatten
from goq.errors import GoqError, StorageFull, outcome_unknown, raise_failures
from goq.model import check_name


class GroupAdmin:
    """Changes the groups of topics. ``on_change`` is called once the topic has followed.

    None is stored at its first use while ``is_disk_full``.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        capacity: Capacity,
        on_change: Callable[[Topic], None],
        is_disk_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._metadata = metadata
        self._capacity = capacity
        self._on_change = on_change
        self._is_disk_full = is_disk_full

    async def remember(self, topic: Topic, group: str) -> None:
        """Store a group at its first use."""
        if group not in topic.groups:
            check_name(group, "group")
            if self._is_disk_full():  # its reserve is for what makes room
                raise StorageFull(f"the disk is full: group {group} is not created")
            with self._capacity.group(topic, group):
                await self._metadata.put_group(topic.name, group, {})
                topic.add_group(group)

    @to_the_end
    async def configure(self, topic: Topic, group: str, settings: Mapping[str, Any]) -> None:
        """Change settings of a group; others keep their values."""
        check_name(group, "group")
        known = topic.groups.get(group, {})
        chosen = topic.settings.for_group({**known, **flatten(settings)}).written_for_group()
        own = {name: chosen[name] for name in {*known, *flatten(settings)}}
        with self._capacity.group(topic, group):
            await self._metadata.put_group(topic.name, group, own)
            topic.configure_group(group, own)
        self._on_change(topic)

    @to_the_end
    async def delete(self, topic: Topic, group: str) -> None:
        """Delete a group and its progress."""
        topic.partitions.check_all_open()
        deleting = [partition.delete_group(group) for partition in topic.partitions]
        raise_failures(await asyncio.gather(*deleting, return_exceptions=True))
        try:
            await self._metadata.delete_group(topic.name, group)
        except GoqError as error:
            raise outcome_unknown(error) from error  # the progress is deleted
        topic.forget_group(group)
        self._on_change(topic)
