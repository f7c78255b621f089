"""Metadata of topics, groups, segments, tokens and schedules: the interface to the node's database.

The broker gets a :class:`MetadataStore`. That of a standalone node keeps everything in ``node.db``,
and topics in their folders too; one thread does the work, so the event loop never blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from goq.access.token_record import TokenRecord, check_change, with_token
from goq.errors import InvalidInput, NotFound
from goq.schedules.schedule_record import (
    ScheduleRecord,
    ScheduleRun,
    check_schedule_change,
    with_runs,
    with_schedule,
)
from goq.storage.catalog.rows import ArchiveRow, SegmentRow, TopicManifest, TopicRow
from goq.storage.catalog.topic_catalog import TopicCatalog
from goq.storage.disk import Disk
from goq.storage.disk_space import DiskSpace
from goq.storage.node_db import NodeDb

T = TypeVar("T")
SegmentKey = tuple[str, int, str, int]


class TopicReplication(NamedTuple):
    """Replicas of each partition, and how many must have a write before it is acknowledged.

    For a new topic None means the cluster's default, for an existing one no change.
    """

    replication_factor: int | None = None
    min_insync: int | None = None


DEFAULT_REPLICATION = TopicReplication()


class TopicVersion(NamedTuple):
    """A topic's settings as a cluster has them now: a change is decided on them."""

    number: int
    settings: Mapping[str, str]


class MetadataStore(Protocol):
    """The store of topics, groups and segments; a change is durable on return."""

    async def next_epoch(self) -> int:
        """Count a start of the node."""
        ...

    @property
    def problems(self) -> Sequence[str]:
        """Damage that the start found in the store, and could do without."""
        ...

    @property
    def may_audit(self) -> bool:
        """Whether all nodes know the topic of the audit trail."""
        ...

    async def topics(self) -> list[TopicRow]:
        """Return all topics; called once, at the start."""
        ...

    def check_replication(self, asked: TopicReplication, topic: str | None = None) -> None:
        """Raise ``InvalidInput`` if a topic, by default a new one, cannot have a replication."""
        ...

    def replication_of(self, topic: str) -> TopicReplication:
        """Return what a topic has of its own; None where it has the cluster's default."""
        ...

    async def create_topic(
        self, topic: TopicRow, replication: TopicReplication = DEFAULT_REPLICATION
    ) -> TopicRow:
        """Insert a topic; return it with the id that it got. Raises ``TopicExists``."""
        ...

    async def adopt_topic(
        self, topic: TopicRow, groups: Mapping[str, Mapping[str, str]], epoch: int
    ) -> None:
        """Insert a topic whose files are in their place, with its groups.

        No epoch in its logs exceeds ``epoch``. Raises ``TopicExists``.
        """
        ...

    def version_of(self, topic: str, topic_id: int) -> TopicVersion | None:
        """Return a topic's version; None where only this node changes it.

        The node may not have taken it up yet.
        """
        ...

    async def put_topic(
        self,
        topic: TopicRow,
        replication: TopicReplication = DEFAULT_REPLICATION,
        since: TopicVersion | None = None,
    ) -> None:
        """Replace a topic. Raises ``Conflict`` if another node changed it after ``since``."""
        ...

    async def delete_topic(self, name: str, topic_id: int) -> None:
        """Forget a topic."""
        ...

    async def groups(self, topic: str) -> dict[str, dict[str, str]]:
        """Return a topic's groups, each with its own settings."""
        ...

    async def put_group(self, topic: str, name: str, settings: Mapping[str, str]) -> None:
        """Insert or replace a group."""
        ...

    async def delete_group(self, topic: str, name: str) -> None:
        """Forget a group."""
        ...

    async def put_segment(self, segment: SegmentRow) -> None:
        """Add a sealed segment to the manifest."""
        ...

    async def put_merged_segment(self, segment: SegmentRow) -> None:
        """Put a segment into the manifest, in place of those whose offsets it holds."""
        ...

    async def add_segments(self, segments: Sequence[SegmentRow]) -> None:
        """Add sealed segments to the manifest; what it says of them already stays."""
        ...

    async def delete_segments(self, keys: Sequence[SegmentKey]) -> None:
        """Take deleted segments out of the manifest."""
        ...

    async def manifest_of(self, topic: str) -> TopicManifest:
        """Return the logs that a topic has on this node, by the name of its folder."""
        ...

    async def put_partitions(self, topic: str, count: int) -> None:
        """Record how many partitions of a topic have existed on this node."""
        ...

    async def delete_segments_of(self, topic: str, partition: int, log: str) -> None:
        """Take all segments of one log out of the manifest."""
        ...

    async def put_archived(self, rows: Sequence[ArchiveRow]) -> None:
        """Add segments to the manifest of the archive, or replace them there."""
        ...

    async def delete_archived(self, keys: Sequence[SegmentKey]) -> None:
        """Take expired segments out of the manifest of the archive."""
        ...

    async def archived(self) -> list[ArchiveRow]:
        """Return the manifest of the archive."""
        ...

    @property
    def tokens(self) -> Mapping[str, TokenRecord]:
        """The tokens by id: another object after each change."""
        ...

    async def put_token(self, record: TokenRecord) -> None:
        """Insert or replace a token; raise ``Conflict`` if it was changed meanwhile."""
        ...

    @property
    def schedules(self) -> Mapping[str, ScheduleRecord]:
        """The schedules by name: another object after each change."""
        ...

    async def put_schedule(self, record: ScheduleRecord) -> None:
        """Insert or replace a schedule; raise ``Conflict`` if it was changed meanwhile."""
        ...

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule. Raises ``NotFound``."""
        ...

    async def record_runs(self, runs: Mapping[str, ScheduleRun]) -> None:
        """Record the times that schedules have published for."""
        ...

    async def close(self) -> None:
        """Finish pending changes."""
        ...


class LocalMetadata:
    """The store of a standalone node; ``disk`` has the topics' folders."""

    def __init__(self, data_dir: Path, disk: Disk, space: DiskSpace | None = None) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="goq-node-db")
        self._db = self._thread.submit(partial(NodeDb, data_dir, space=space)).result()
        self._catalog = TopicCatalog(self._db, disk, data_dir / "topics")
        self._tokens: Mapping[str, TokenRecord] = self._thread.submit(self._db.tokens).result()
        self._token_change = asyncio.Lock()
        self._schedules: Mapping[str, ScheduleRecord]
        self._schedules = self._thread.submit(self._db.schedules).result()
        self._schedule_change = asyncio.Lock()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def next_epoch(self) -> int:
        """Count a start of the node."""
        return await self._run(self._db.next_epoch)

    @property
    def problems(self) -> Sequence[str]:
        """Damage that the start found in the store, and could do without."""
        return self._catalog.problems

    @property
    def may_audit(self) -> bool:
        """Return True: there is one node."""
        return True

    async def topics(self) -> list[TopicRow]:
        """Return all topics, with the doubts about them; see ``TopicCatalog``."""
        return await self._run(self._catalog.recover)

    def check_replication(self, asked: TopicReplication, topic: str | None = None) -> None:
        """Raise ``InvalidInput`` for more than one replica."""
        for name, value in asked._asdict().items():
            if value not in (None, 1):
                raise InvalidInput(
                    f"{name} can only be 1, not {value}: this node is on its own;"
                    " docs/cluster.md says how to start a cluster",
                    field=name,
                )

    def replication_of(self, topic: str) -> TopicReplication:
        """Return the default: a standalone node has no other."""
        return DEFAULT_REPLICATION

    async def create_topic(
        self, topic: TopicRow, replication: TopicReplication = DEFAULT_REPLICATION
    ) -> TopicRow:
        """Insert a topic."""
        await self.put_topic(topic)
        return topic

    async def adopt_topic(
        self, topic: TopicRow, groups: Mapping[str, Mapping[str, str]], epoch: int
    ) -> None:
        """Insert a topic whose files are in their place; their topic file has its groups."""
        await self.put_partitions(topic.folder, topic.partitions)
        await self.put_topic(topic)

    def version_of(self, topic: str, topic_id: int) -> TopicVersion | None:
        """Return none: only this node changes its topics."""
        return None

    async def put_topic(
        self,
        topic: TopicRow,
        replication: TopicReplication = DEFAULT_REPLICATION,
        since: TopicVersion | None = None,
    ) -> None:
        """Insert or replace a topic."""
        await self._run(lambda: self._catalog.put_topic(topic))

    async def delete_topic(self, name: str, topic_id: int) -> None:
        """Forget a topic."""
        await self._run(lambda: self._catalog.delete_topic(name, topic_id))

    async def groups(self, topic: str) -> dict[str, dict[str, str]]:
        """Return a topic's groups, each with its own settings."""
        return await self._run(lambda: self._catalog.groups(topic))

    async def put_group(self, topic: str, name: str, settings: Mapping[str, str]) -> None:
        """Insert or replace a group."""
        await self._run(lambda: self._catalog.put_group(topic, name, settings))

    async def delete_group(self, topic: str, name: str) -> None:
        """Forget a group."""
        await self._run(lambda: self._catalog.delete_group(topic, name))

    async def put_segment(self, segment: SegmentRow) -> None:
        """Add a sealed segment to the manifest."""
        await self._run(lambda: self._db.put_segment(segment))

    async def put_merged_segment(self, segment: SegmentRow) -> None:
        """Put a segment into the manifest, in place of those whose offsets it holds."""
        await self._run(lambda: self._db.put_merged_segment(segment))

    async def add_segments(self, segments: Sequence[SegmentRow]) -> None:
        """Add sealed segments to the manifest; what it says of them already stays."""
        await self._run(lambda: self._db.add_segments(segments))

    async def delete_segments_of(self, topic: str, partition: int, log: str) -> None:
        """Take all segments of one log out of the manifest."""
        await self._run(lambda: self._db.delete_segments_of(topic, partition, log))

    async def delete_segments(self, keys: Sequence[SegmentKey]) -> None:
        """Take deleted segments out of the manifest."""
        await self._run(lambda: self._db.delete_segments(keys))

    async def manifest_of(self, topic: str) -> TopicManifest:
        """Return the logs that a topic has on this node, by the name of its folder."""
        return await self._run(lambda: self._db.manifest_of(topic))

    async def put_partitions(self, topic: str, count: int) -> None:
        """Record how many partitions of a topic have existed on this node."""
        await self._run(lambda: self._db.put_partitions(topic, count))

    async def put_archived(self, rows: Sequence[ArchiveRow]) -> None:
        """Add segments to the manifest of the archive, or replace them there."""
        await self._run(lambda: self._db.put_archived(rows))

    async def delete_archived(self, keys: Sequence[SegmentKey]) -> None:
        """Take expired segments out of the manifest of the archive."""
        await self._run(lambda: self._db.delete_archived(keys))

    async def archived(self) -> list[ArchiveRow]:
        """Return the manifest of the archive."""
        return await self._run(self._db.archived)

    @property
    def tokens(self) -> Mapping[str, TokenRecord]:
        """The tokens by id: another object after each change."""
        return self._tokens

    async def put_token(self, record: TokenRecord) -> None:
        """Insert or replace a token; raise ``Conflict`` if it was changed meanwhile."""
        async with self._token_change:
            check_change(self._tokens, record)
            tokens, removed = with_token(self._tokens, record)
            await self._run(lambda: self._db.put_token(record, removed))
            self._tokens = tokens

    @property
    def schedules(self) -> Mapping[str, ScheduleRecord]:
        """The schedules by name: another object after each change."""
        return self._schedules

    async def put_schedule(self, record: ScheduleRecord) -> None:
        """Insert or replace a schedule; raise ``Conflict`` if it was changed meanwhile."""
        async with self._schedule_change:
            check_schedule_change(self._schedules, record)
            schedules = with_schedule(self._schedules, record)
            await self._run(lambda: self._db.put_schedules([schedules[record.name]]))
            self._schedules = schedules

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule. Raises ``NotFound``."""
        async with self._schedule_change:
            if name not in self._schedules:
                raise NotFound(f"there is no schedule {name!r}")
            await self._run(lambda: self._db.delete_schedule(name))
            kept = {each: self._schedules[each] for each in self._schedules if each != name}
            self._schedules = kept

    async def record_runs(self, runs: Mapping[str, ScheduleRun]) -> None:
        """Record the times that schedules have published for."""
        async with self._schedule_change:
            schedules = with_runs(self._schedules, runs)
            changed = [schedules[name] for name in runs if name in schedules]
            await self._run(lambda: self._db.put_schedules(changed))
            self._schedules = schedules

    async def close(self) -> None:
        """Finish pending changes and close the database."""
        await self._run(self._db.close)
        self._thread.shutdown()
