"""The administration of a node's topics: create, alter, delete, and follow the cluster metadata.

Changes come one at a time, and go on to their end when the client is gone. The metadata store
decides on a change before the disk and the memory follow: a refused change leaves no trace. When
what follows fails, the outcome is unknown: the change holds, and this node catches up with it
later.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from goq.broker.metadata import (
    DEFAULT_REPLICATION,
    MetadataStore,
    TopicReplication,
    TopicVersion,
)
from goq.broker.partition.failure_policy import dead_letter_settings
from goq.broker.partition.publish_target import PublishTarget
from goq.broker.runtime.tasks import to_the_end
from goq.broker.topic.admin.capacity import Capacity
from goq.broker.topic.admin.open_topics import OpenTopics, TopicListener
from goq.broker.topic.admin.start_queue import StartQueue
from goq.broker.topic.admin.topic_loader import TopicLoader
from goq.broker.topic.audit_log import AUDIT_SETTINGS
from goq.broker.topic.topic import Topic
from goq.config.topic import TopicSettings
from goq.errors import (
    Conflict,
    GoqError,
    InvalidInput,
    StorageFull,
    TopicExists,
    outcome_unknown,
)
from goq.model import (
    AUDIT_TOPIC,
    DEAD_LETTERS_SUFFIX,
    check_name,
    check_not_internal,
    check_partitions,
    draw_topic_id,
)
from goq.storage.catalog.rows import TopicRow

_LONG_CHARS = 10_000
"""Of a setting: weights of 10,000 tenants would hold the event loop for 12 ms or more."""


class NewTopicDefaults(NamedTuple):
    """The settings and the number of partitions of a topic created without them."""

    settings: TopicSettings
    partitions: int


class TopicAdmin:
    """Changes ``topics``; ``find`` returns an open topic, or raises.

    Copies to other topics wait for ``started``: only then are their targets known, and created. No
    topic is created while ``is_disk_full``.
    """

    def __init__(
        self,
        topics: dict[str, Topic],
        find: Callable[[str], Topic],
        metadata: MetadataStore,
        capacity: Capacity,
        start_queue: StartQueue,
        started: asyncio.Event,
        *,
        defaults: NewTopicDefaults,
        auto_create: bool,
        is_member: bool,
        is_disk_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._topics = topics
        self._find = find
        self._metadata = metadata
        self._capacity = capacity
        self._start_queue = start_queue
        self._started = started
        self._defaults = defaults
        self._auto_create = auto_create
        self._is_member = is_member
        self._is_disk_full = is_disk_full
        self._loader: TopicLoader
        self._listener: TopicListener
        self._open_topics: OpenTopics
        self._changing = asyncio.Lock()

    def start(self, loader: TopicLoader, listener: TopicListener) -> None:
        """Set what opens topics, and what follows their changes."""
        self._loader = loader
        self._listener = listener
        self._open_topics = OpenTopics(self._topics, loader, listener, self._defaults.settings)

    async def open(self, row: TopicRow, *, skip_failed: bool = False) -> Topic:
        """Open a topic of the metadata store; with ``skip_failed`` partitions may be offline."""
        return await self._open_topics.open(row, skip_failed=skip_failed)

    def settings_of(self, row: TopicRow) -> TopicSettings:
        """Return the effective settings of a topic on this node."""
        return self._defaults.settings.changed(row.settings)

    def settings_for_publish(self, name: str) -> TopicSettings:
        """Return a topic's settings, or the defaults of a new topic."""
        topic = self._topics.get(name)
        return self._defaults.settings if topic is None else topic.settings

    async def topic_for_publish(self, name: str) -> Topic:
        """Return a topic; create it if it is missing and the configuration allows it."""
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        if self._start_queue:
            await self._start_queue.wait_for(name)
        if name in self._topics or not self._auto_create:
            return self._find(name)
        try:
            return await self.create(name)
        except TopicExists:
            return self._find(name)

    @to_the_end
    async def create(
        self,
        name: str,
        partitions: int | None = None,
        settings: Mapping[str, Any] | None = None,
        replication: TopicReplication = DEFAULT_REPLICATION,
    ) -> Topic:
        """Create a topic; raise ``TopicExists``."""
        check_not_internal(name)
        check_name(name, "topic", field="name")
        count = check_partitions(self._defaults.partitions if partitions is None else partitions)
        chosen = await _changed(self._defaults.settings, settings or {})
        self._metadata.check_replication(replication)
        await self._start_queue.wait_for(name)
        async with self._changing:
            if name in self._topics:
                raise TopicExists(f"topic {name} exists already", field="name")
            return await self._create(name, count, chosen, replication)

    @to_the_end
    async def audit_topic(self) -> Topic:
        """Return the topic of the audit trail; create it if there is none."""
        topic = self._topics.get(AUDIT_TOPIC)
        if topic is not None:
            return topic
        await self._start_queue.wait_for(AUDIT_TOPIC)
        async with self._changing:
            topic = self._topics.get(AUDIT_TOPIC)
            return topic or await self._create(AUDIT_TOPIC, 1, AUDIT_SETTINGS, DEFAULT_REPLICATION)

    async def _create(
        self, name: str, partitions: int, settings: TopicSettings, replication: TopicReplication
    ) -> Topic:
        if self._is_disk_full():  # its reserve is for what makes room
            raise StorageFull(f"the disk is full: topic {name} is not created")
        with self._capacity.topic(partitions):
            await self._loader.finish_deletion(name)
            row = TopicRow(name, partitions, settings.written(), id=draw_topic_id(secrets.randbits))
            row = await self._metadata.create_topic(row, replication)
            try:
                return self._topics.get(name) or await self._open_topics.open(row)
            except GoqError as error:
                if not self._is_member:
                    await self._undo_creation(row, error)
                    raise
                raise outcome_unknown(error) from error  # the topic exists, but is not open here

    async def _undo_creation(self, row: TopicRow, error: GoqError) -> None:
        """Delete a topic that could not be opened; raise ``TimedOut`` if that fails, too.

        On a full disk each try to create one would leave another folder, out of the reserve.
        """
        self._loader.half_deleted[row.name] = row.id  # if it fails, the next creation goes on
        try:
            await self._loader.delete(row.name, row.id)
        except (GoqError, OSError):
            raise outcome_unknown(error) from error

    @to_the_end
    async def adopt(
        self,
        row: TopicRow,
        groups: Mapping[str, Mapping[str, str]],
        epoch: int,
        put_in_place: Callable[[], None],
    ) -> None:
        """Add a topic whose files ``put_in_place`` renames to their place; it blocks on the disk.

        No epoch in its logs exceeds ``epoch``. Raises ``TopicExists``, and ``TimedOut`` if it may
        have been added.
        """
        check_not_internal(row.name)
        await self._start_queue.wait_for(row.name)
        async with self._changing:
            if row.name in self._topics:
                raise TopicExists(f"topic {row.name} exists already")
            with self._capacity.topic(row.partitions):
                await self._loader.finish_deletion(row.name)
                await self._loader.in_thread(put_in_place)
                await self._metadata.adopt_topic(row, groups, epoch)
                try:
                    await self._listener.on_adopt(row.folder)
                    if row.name not in self._topics:
                        await self._open_topics.open(row)
                except GoqError as error:
                    raise outcome_unknown(error) from error  # it exists, but is not open here

    @to_the_end
    async def alter(
        self,
        name: str,
        settings: Mapping[str, Any],
        partitions: int | None = None,
        replication: TopicReplication = DEFAULT_REPLICATION,
        unset: Collection[str] = (),
        expected: Mapping[str, Any] = MappingProxyType({}),
    ) -> Topic:
        """Change settings or the replication, or add partitions; messages stay where they are.

        The settings ``unset`` get their defaults, as in a new topic of this name. Raises
        ``Conflict``, and changes nothing, unless the settings ``expected`` are so.
        That decides on a topic in doubt: it has the settings that it shows, and those given here.
        """
        check_not_internal(name)
        await self._start_queue.wait_for(name)
        async with self._changing:
            topic = self._find(name)
            since, now = await self._decided(topic)
            if await _changed(now, expected) != now:
                raise Conflict(f"topic {name} was changed: not all of its settings are as expected")
            restored = now.restored(unset, self._defaults_of(name))
            chosen = await _changed(restored, settings)
            count = topic.partitions.count
            if partitions is not None:
                if check_partitions(partitions) < count:
                    raise InvalidInput(
                        f"topic {name} has {count} partitions; there can be more, not fewer",
                        field="partitions",
                    )
                count = partitions
            self._metadata.check_replication(replication, name)
            await self._alter(topic, count, chosen, replication, since)
            return topic

    async def _decided(self, topic: Topic) -> tuple[TopicVersion | None, TopicSettings]:
        """Return what a change of a topic is decided on.

        In a cluster another node may have changed it, and this node not taken that up yet: a change
        that was decided on the open topic would undo the other one.
        """
        since = self._metadata.version_of(topic.name, topic.id)
        if since is None:
            return None, topic.settings
        return since, await _changed(self._defaults.settings, since.settings)

    def _defaults_of(self, name: str) -> TopicSettings:
        """Return the settings of a new topic: of a dead-letter topic, those of its source."""
        source = self._topics.get(name.removesuffix(DEAD_LETTERS_SUFFIX))
        if source is None or source.name == name:
            return self._defaults.settings
        return dead_letter_settings(source.settings)

    async def _alter(
        self,
        topic: Topic,
        partitions: int,
        settings: TopicSettings,
        replication: TopicReplication = DEFAULT_REPLICATION,
        since: TopicVersion | None = None,
    ) -> None:
        row = TopicRow(topic.name, partitions, settings.written(), id=topic.id)
        with self._capacity.partitions(partitions - topic.partitions.count, topic):
            await self._metadata.put_topic(row, replication, since)
            if topic.doubt is not None:
                known = await self._metadata.groups(topic.name)
                for group, own in topic.groups.items():
                    if known.get(group) != own:
                        await self._metadata.put_group(topic.name, group, own)
                topic.set_doubt(None)
            topic.configure(settings)
            await self._loader.open_partitions(topic, partitions)
        self._listener.on_change(topic)
        self._listener.on_settings()

    async def target(self, source: Topic, name: str, number: int) -> PublishTarget:
        """Return the target partition of copies from ``source``; create it if missing."""
        await self._started.wait()
        await self._start_queue.wait_for(name)
        topic = self._topics.get(name)
        if topic is None or number >= topic.partitions.count:
            topic = await self._make_target(source, name, number)
        return topic.publisher.target(number)

    @to_the_end
    async def _make_target(self, source: Topic, name: str, number: int) -> Topic:
        async with self._changing:
            topic = self._topics.get(name)
            check_not_internal(name)
            is_grave = name == source.name + DEAD_LETTERS_SUFFIX
            count = max(number + 1, source.partitions.count if is_grave else 1)
            if topic is None:
                default = self._defaults.settings
                settings = dead_letter_settings(source.settings) if is_grave else default
                of = self._metadata.replication_of(source.name) if is_grave else DEFAULT_REPLICATION
                return await self._create(name, count, settings, of)
            if number >= topic.partitions.count:
                since, settings = await self._decided(topic)
                await self._alter(topic, count, settings, since=since)
            return topic

    @to_the_end
    async def reopen_partition(self, name: str, number: int) -> None:
        """Open a partition that is offline, from the disk.

        Raises ``PartitionOffline`` if it stays offline, and ``Conflict`` in a cluster.
        """
        await self._start_queue.wait_for(name)
        topic = self._find(name)
        topic.partitions.check(number)
        if self._is_member:
            raise Conflict("a cluster opens its replicas by itself: goq cluster status shows them")
        await self._open_topics.reopen_partition(topic, number)

    @to_the_end
    async def delete(self, name: str) -> None:
        """Delete a topic and all its messages."""
        check_not_internal(name)
        await self._start_queue.wait_for(name)
        async with self._changing:
            topic = self._find(name)
            count, written = topic.partitions.count, topic.settings.written()
            await self._metadata.put_topic(TopicRow(name, count, written, True, topic.id))
            if not self._is_member:
                await self._open_topics.delete(name, topic.id)

    async def take_up(
        self, row: TopicRow, groups: Mapping[str, Mapping[str, str]], *, has_replicas: bool
    ) -> None:
        """Open or update a topic and its groups by the cluster metadata.

        The topic's file follows where this node has replicas of it.
        """
        async with self._changing:
            await self._open_topics.take_up(row, groups, has_replicas=has_replicas)

    async def drop(self, name: str, topic_id: int) -> None:
        """Delete the files of a topic that the cluster metadata no longer contain."""
        async with self._changing:
            await self._open_topics.delete(name, topic_id)

    async def close(self, reason: GoqError) -> None:
        """Close all topics once the change under way has ended; waiters get ``reason``."""
        async with self._changing:
            await asyncio.gather(*(topic.close(reason) for topic in self._topics.values()))


async def _changed(base: TopicSettings, settings: Mapping[str, Any]) -> TopicSettings:
    """Return ``base`` with other settings in their place; long ones are read in a thread."""
    is_long = any(len(str(value)) > _LONG_CHARS for value in settings.values())
    return await asyncio.to_thread(base.changed, settings) if is_long else base.changed(settings)
