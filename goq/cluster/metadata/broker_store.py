"""The broker's metadata store in a cluster: topics and groups are replicated by Raft.

Data of this node alone, such as its segments and its start count, stays in its own ``node.db``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from goq import limits
from goq.access.token_record import TokenRecord
from goq.broker.metadata import (
    DEFAULT_REPLICATION,
    LocalMetadata,
    SegmentKey,
    TopicReplication,
    TopicVersion,
)
from goq.cluster.metadata import commands
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.features import (
    has_audit_topic,
    has_optional_settings,
    has_topic_ids,
    has_total_retention,
)
from goq.cluster.metadata.results import Accepted
from goq.cluster.metadata.state import GroupMetadata, MetadataState, TopicMetadata
from goq.config.topic import OPTIONAL, TOTAL_RETENTION
from goq.errors import (
    Conflict,
    GoqError,
    InvalidInput,
    TimedOut,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from goq.schedules.schedule_record import ScheduleRecord, ScheduleRun
from goq.storage.catalog.rows import ArchiveRow, SegmentRow, TopicManifest, TopicRow

_CONFLICT_TIMEOUT_S = 3.0
_CONFLICT_RETRY_S = 0.02


class ReplicatedMetadataStore:
    """A ``MetadataStore``: a change is committed, and applied here, when a method returns."""

    def __init__(
        self,
        local: LocalMetadata,
        metadata: MetadataClient,
        node: str = "",
        reserved: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """``node`` is this node. No other topic gets one of the ``reserved`` names."""
        self._local = local
        self._metadata = metadata
        self._node = node
        self._reserved = reserved

    @property
    def _state(self) -> MetadataState:
        return self._metadata.state

    async def next_epoch(self) -> int:
        """Count a start of this node."""
        return await self._local.next_epoch()

    @property
    def problems(self) -> Sequence[str]:
        """Return none: topics are not in this node's own database."""
        return ()

    @property
    def may_audit(self) -> bool:
        """Whether all nodes know the topic of the audit trail."""
        return has_audit_topic(self._state)

    async def topics(self) -> list[TopicRow]:
        """Return all topics that are not being deleted."""
        return topic_rows(self._state)

    def check_replication(self, asked: TopicReplication, topic: str | None = None) -> None:
        """Raise ``InvalidInput`` if the cluster cannot give a topic a replication."""
        check_replication(self._state, asked, topic)

    def replication_of(self, topic: str) -> TopicReplication:
        """Return what a topic has of its own; None where it has the cluster's default."""
        known = self._state.topics.get(topic)
        if known is None:
            return DEFAULT_REPLICATION
        factor = known.replication_factor
        is_default = factor == self._state.settings.replication_factor
        return TopicReplication(None if is_default else factor, known.min_insync)

    async def create_topic(
        self, topic: TopicRow, replication: TopicReplication = DEFAULT_REPLICATION
    ) -> TopicRow:
        """Create a topic; return it with the id that it has in the cluster.

        Raises ``TopicExists`` if it is new to this node's broker, but not to the cluster.
        """
        check_optional(self._state, topic.settings)
        self._check_free(topic.name)
        factor, min_insync = replication
        fields = (topic.name, topic.partitions, dict(topic.settings), factor)
        command = (
            commands.CreateTopicWithId(*fields, min_insync, topic.id)
            if has_topic_ids(self._state)
            else commands.CreateTopic(*fields)
            if min_insync is None
            else commands.CreateTopicWithMinInsync(*fields, min_insync)
        )
        return topic._replace(id=(await self._propose(command)).value)

    def _check_free(self, name: str) -> None:
        existing = self._state.topics.get(name)
        if existing is not None:
            reason = "is being deleted; try again" if existing.deleting else "exists already"
            raise TopicExists(f"topic {name} {reason}", field="name")
        if name in self._reserved():
            raise Unavailable(f"topic {name} is being restored; try again", retry_after_ms=1000)

    async def adopt_topic(
        self, topic: TopicRow, groups: Mapping[str, Mapping[str, str]], epoch: int
    ) -> None:
        """Create a topic with its groups; this node has its messages.

        The controller adds replicas. Raises ``TopicExists``, and ``TooLarge`` for very many groups.
        """
        check_optional(self._state, topic.settings)
        await self._local.put_partitions(topic.folder, topic.partitions)
        written = {name: dict(own) for name, own in groups.items()}
        fields = (topic.name, topic.partitions, dict(topic.settings), None, None, topic.id)
        await self._propose(commands.AdoptTopic(*fields, self._node, epoch + 1, written))

    def version_of(self, topic: str, topic_id: int) -> TopicVersion | None:
        """Return a topic's version, which this node may not have taken up yet."""
        known = self._state.topics.get(topic)
        if known is None or known.topic_id != topic_id:
            return None
        return TopicVersion(known.version, known.settings)

    async def put_topic(
        self,
        topic: TopicRow,
        replication: TopicReplication = DEFAULT_REPLICATION,
        since: TopicVersion | None = None,
    ) -> None:
        """Change a topic to match ``topic``.

        Raises ``TopicNotFound`` if another has its name, ``Conflict`` if changed after ``since``.
        """
        existing = self._state.topics.get(topic.name)
        if existing is None or existing.topic_id != topic.id:
            raise TopicNotFound(f"topic {topic.name} was deleted", field="topic")
        if topic.deleting and has_topic_ids(self._state):
            await self._propose(commands.DeleteTopicAtOnce(topic.name, topic.id))
        elif topic.deleting:
            await self._propose(commands.DeleteTopic(topic.name, topic.id))
        else:
            check_optional(self._state, topic.settings)
            since = since or TopicVersion(existing.version, existing.settings)
            await self._alter(existing, topic, replication, since)

    async def _alter(
        self,
        existing: TopicMetadata,
        topic: TopicRow,
        replication: TopicReplication,
        since: TopicVersion,
    ) -> None:
        """Propose up to three commands; the version of each comes from the one before."""
        changed: dict[str, str | None] = {
            key: value for key, value in topic.settings.items() if since.settings.get(key) != value
        }
        changed |= dict.fromkeys(since.settings.keys() - topic.settings.keys())
        where = topic.name, existing.topic_id
        steps: dict[str, Callable[[int], commands.AnyCommand]] = {}
        if replication != DEFAULT_REPLICATION:
            steps["replication"] = lambda version: commands.AlterTopicReplication(
                *where, version, *replication
            )
        if changed:
            steps["settings"] = lambda version: commands.AlterTopic(*where, version, changed)
        if topic.partitions > len(existing.partitions):
            steps["partitions"] = lambda version: commands.AddPartitions(
                *where, version, topic.partitions
            )
        version = since.number
        done: list[str] = []
        for what, command in steps.items():
            try:
                version = (await self._propose(command(version))).value
            except GoqError as error:
                if done:
                    raise TimedOut(
                        f"changed: {', '.join(done)}; not changed: {what}: {error.detail}"
                    ) from error
                raise
            done.append(what)

    async def delete_topic(self, name: str, topic_id: int) -> None:
        """Forget what this node's own database holds of a topic."""
        await self._local.delete_topic(name, topic_id)

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
        """Propose a change; raise ``Unavailable`` at once on a node that is cut off.

        There a proposal would wait for its timeout, and its outcome would be unknown.
        """
        if self._metadata.is_cut_off:
            raise Unavailable(
                "this node does not hear the Raft group of the cluster, and changes nothing; ask"
                " another one",
                retry_after_ms=500,
            )
        return await self._metadata.propose(command)

    async def put_segment(self, segment: SegmentRow) -> None:
        """Add a sealed segment of this node to its manifest."""
        await self._local.put_segment(segment)

    async def put_merged_segment(self, segment: SegmentRow) -> None:
        """Put a segment of this node into its manifest, in place of those that it holds."""
        await self._local.put_merged_segment(segment)

    async def add_segments(self, segments: Sequence[SegmentRow]) -> None:
        """Add sealed segments of this node to its manifest; existing entries stay."""
        await self._local.add_segments(segments)

    async def delete_segments_of(self, topic: str, partition: int, log: str) -> None:
        """Remove all segments of one log of this node from its manifest."""
        await self._local.delete_segments_of(topic, partition, log)

    async def delete_segments(self, keys: Sequence[SegmentKey]) -> None:
        """Remove deleted segments of this node from its manifest."""
        await self._local.delete_segments(keys)

    async def manifest_of(self, topic: str) -> TopicManifest:
        """Return the logs that a topic has on this node, by the name of its folder."""
        return await self._local.manifest_of(topic)

    async def put_partitions(self, topic: str, count: int) -> None:
        """Record how many partitions of a topic have existed on this node."""
        await self._local.put_partitions(topic, count)

    async def put_archived(self, rows: Sequence[ArchiveRow]) -> None:
        """Add segments to the manifest of this node's archive, or replace them there."""
        await self._local.put_archived(rows)

    async def delete_archived(self, keys: Sequence[SegmentKey]) -> None:
        """Take expired segments out of the manifest of this node's archive."""
        await self._local.delete_archived(keys)

    async def archived(self) -> list[ArchiveRow]:
        """Return the manifest of this node's archive."""
        return await self._local.archived()

    @property
    def tokens(self) -> Mapping[str, TokenRecord]:
        """The tokens of the cluster by id: another object after each change."""
        return self._state.tokens

    async def put_token(self, record: TokenRecord) -> None:
        """Insert or replace a token; raise ``Conflict`` if it was changed meanwhile."""
        await self._propose(commands.PutToken(record))

    @property
    def schedules(self) -> Mapping[str, ScheduleRecord]:
        """The schedules of the cluster by name: another object after each change."""
        return self._state.schedules

    async def put_schedule(self, record: ScheduleRecord) -> None:
        """Insert or replace a schedule; raise ``Conflict`` if it was changed meanwhile."""
        await self._propose(commands.PutSchedule(record))

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule. Raises ``NotFound``."""
        await self._propose(commands.DeleteSchedule(name))

    async def record_runs(self, runs: Mapping[str, ScheduleRun]) -> None:
        """Record the times that schedules have published for."""
        await self._propose(commands.RecordScheduleRuns(dict(runs)))

    async def close(self) -> None:
        """Finish pending writes."""
        await self._local.close()


def topic_rows(state: MetadataState) -> list[TopicRow]:
    """Return all topics that are not being deleted, by name."""
    return [
        TopicRow(name, len(topic.partitions), dict(topic.settings), id=topic.topic_id)
        for name, topic in sorted(state.topics.items())
        if not topic.deleting
    ]


def group_settings(state: MetadataState, topic: str) -> dict[str, dict[str, str]]:
    """Return a topic's groups, each with its own settings."""
    groups = state.groups.get(topic, {})
    return {name: dict(group.settings) for name, group in groups.items()}


def check_optional(state: MetadataState, settings: Mapping[str, str]) -> None:
    """Raise ``Unavailable`` for a setting that some node does not know."""
    newest = TOTAL_RETENTION if has_optional_settings(state) else OPTIONAL
    unknown = newest.intersection(settings)
    if unknown and not has_total_retention(state):
        raise Unavailable(
            f"a node of the cluster runs an earlier goq and does not know {min(unknown)}:"
            " upgrade all nodes first",
            field=f"settings.{min(unknown)}",
        )


def check_replication(
    state: MetadataState, asked: TopicReplication, topic: str | None = None
) -> None:
    """Raise ``InvalidInput`` if a topic, by default a new one, cannot have a replication.

    More replicas than nodes are refused, unless the topic wants as many already.
    """
    factor, min_insync = asked
    known = None if topic is None else state.topics.get(topic)
    present = state.settings.replication_factor if known is None else known.replication_factor
    nodes = sorted(node.id for node in state.nodes.values() if not node.leaving)
    if factor is not None and not 1 <= factor <= limits.REPLICAS_MAX:
        raise InvalidInput(
            f"replication_factor is 1 to {limits.REPLICAS_MAX}, not {factor}",
            field="replication_factor",
        )
    if factor is not None and factor > len(nodes) and (known is None or factor > present):
        raise InvalidInput(
            f"replication_factor {factor} needs {factor} nodes; there are {len(nodes)}:"
            f" {', '.join(nodes)}",
            field="replication_factor",
        )
    factor = present if factor is None else factor
    if min_insync is not None and not 1 <= min_insync <= factor:
        raise InvalidInput(
            f"min_insync is 1 to the replication factor, {factor}, not {min_insync}",
            field="min_insync",
        )
    if min_insync is None and known is not None and (known.min_insync or 0) > factor:
        raise InvalidInput(
            f"the min_insync of topic {topic} is {known.min_insync}: lower it too, to at most"
            f" {factor}",
            field="min_insync",
        )
