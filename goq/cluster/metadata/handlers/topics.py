"""Handlers of commands on topics: create, alter, add partitions, delete, remove."""

from __future__ import annotations

from msgspec.structs import replace

from goq import limits
from goq.cluster.metadata.commands import (
    AddPartitions,
    AdoptTopic,
    AlterTopic,
    AlterTopicReplication,
    CreateTopic,
    CreateTopicWithId,
    CreateTopicWithMinInsync,
    DeleteTopic,
    DeleteTopicAtOnce,
    RemoveTopic,
)
from goq.cluster.metadata.handlers.groups import check_new_groups
from goq.cluster.metadata.handlers.partitions import require_topic
from goq.cluster.metadata.handlers.replica_placement import assignable_nodes, place_replicas
from goq.cluster.metadata.results import Accepted, Applied, CommandRejected
from goq.cluster.metadata.state import (
    DeletedTopic,
    GroupMetadata,
    MetadataState,
    PartitionMetadata,
    TopicMetadata,
    partition_count,
)
from goq.errors import InvalidInput
from goq.model import NATIVE_TOPIC_IDS, check_name, format_topic_id


def create_topic(state: MetadataState, command: CreateTopic) -> Applied:
    """Create a topic and place its replicas."""
    topic_id = _check_new(state, command)
    factor = _requested_factor(state, command)
    min_insync = None
    if isinstance(command, CreateTopicWithMinInsync | CreateTopicWithId):
        min_insync = command.min_insync
    _check_replication(factor, min_insync)
    partitions = _new_partitions(state, None, command.partitions, factor, min_insync)
    topic = _new_topic(command, topic_id, partitions, min_insync)
    return _accepted(state, topic, f"topic {topic.name} created", topic.topic_id)


def adopt_topic(state: MetadataState, command: AdoptTopic) -> Applied:
    """Create a topic with its groups on the node that has its messages."""
    topic_id = _check_new(state, command)
    node, factor = state.nodes.get(command.node), _requested_factor(state, command)
    if node is None or not node.takes_replicas:
        raise CommandRejected(
            "not_enough_nodes", f"node {command.node!r} is not up, not healthy, or leaving"
        )
    if command.leader_epoch < 1:
        raise CommandRejected("invalid_epoch", "the first leader epoch is 1")
    _check_replication(factor, command.min_insync)
    check_new_groups(command.groups)
    alone = PartitionMetadata(
        replicas=(node.id,),
        leader=node.id,
        in_sync=(node.id,),
        leader_epoch=command.leader_epoch,
        replication_factor=factor,
    )
    topic = _new_topic(command, topic_id, (alone,) * command.partitions, command.min_insync)
    if command.groups:
        groups = {name: GroupMetadata(dict(own)) for name, own in command.groups.items()}
        state = replace(state, groups={**state.groups, topic.name: groups})
    return _accepted(state, topic, f"topic {topic.name} adopted", topic.topic_id)


def _check_new(state: MetadataState, command: CreateTopic) -> int:
    """Return the id of a new topic."""
    name = command.name
    try:
        check_name(name, "topic")
    except InvalidInput as error:
        raise CommandRejected("invalid_name", error.detail) from None
    if name in state.topics:
        if state.topics[name].deleting:
            raise CommandRejected(
                "topic_deleting", f"topic {name!r} is still being deleted; try again"
            )
        raise CommandRejected("topic_exists", f"topic {name!r} already exists")
    if len(state.topics) + len(state.deleted_topics) >= limits.TOPICS_MAX:
        raise CommandRejected(
            "too_many_topics",
            f"there are at most {limits.TOPICS_MAX} topics; deleted ones count until all nodes have"
            " deleted their files",
        )
    topic_id = _requested_id(state, command)
    _check_count(state, command.partitions, command.partitions)
    return topic_id


def _new_topic(
    command: CreateTopic,
    topic_id: int,
    partitions: tuple[PartitionMetadata, ...],
    min_insync: int | None,
) -> TopicMetadata:
    settings = dict(command.settings)
    return TopicMetadata(command.name, topic_id, settings, partitions, min_insync=min_insync)


def alter_topic(state: MetadataState, command: AlterTopic) -> Applied:
    """Set settings, or reset them to their defaults."""
    topic = _require_version(state, command.name, command.topic_id, command.version)
    merged = {**topic.settings, **command.settings}
    settings = {key: value for key, value in merged.items() if value is not None}
    topic = replace(topic, settings=settings, version=topic.version + 1)
    return _accepted(state, topic, f"topic {topic.name} altered", topic.version)


def alter_topic_replication(state: MetadataState, command: AlterTopicReplication) -> Applied:
    """Set the replication factor of all partitions, and how many replicas must be in sync.

    A reassignment under way goes on, without the last word on the factor. Every partition gets a
    new version: so no leader shrinks an in-sync set below the new ``min_insync`` by the old one.
    """
    topic = _require_version(state, command.name, command.topic_id, command.version)
    factor, min_insync = command.replication_factor, command.min_insync
    min_insync = topic.min_insync if min_insync is None else min_insync
    _check_replication(topic.replication_factor if factor is None else factor, min_insync)
    partitions = tuple(
        replace(
            partition,
            replication_factor=partition.replication_factor if factor is None else factor,
            is_manual=partition.is_manual and factor is None,
            version=partition.version + 1,
        )
        for partition in topic.partitions
    )
    topic = replace(topic, partitions=partitions, min_insync=min_insync, version=topic.version + 1)
    text = f"topic {topic.name} has replication factor {topic.replication_factor}"
    return _accepted(state, topic, text, topic.version)


def add_partitions(state: MetadataState, command: AddPartitions) -> Applied:
    """Add partitions, with the largest replication factor of the topic's other partitions."""
    topic = _require_version(state, command.name, command.topic_id, command.version)
    added = command.partitions - len(topic.partitions)
    if added <= 0:
        raise CommandRejected(
            "fewer_partitions",
            f"topic {topic.name!r} has {len(topic.partitions)} partitions; only more are possible",
        )
    _check_count(state, command.partitions, added)
    planned = (len(p.target) for p in topic.partitions if p.is_manual)
    factor = max(topic.replication_factor, *planned, 1)
    partitions = topic.partitions + _new_partitions(state, topic, added, factor, topic.min_insync)
    topic = replace(topic, partitions=partitions, version=topic.version + 1)
    return _accepted(
        state, topic, f"topic {topic.name} has {len(partitions)} partitions", topic.version
    )


def delete_topic(state: MetadataState, command: DeleteTopic) -> Applied:
    """Mark a topic as being deleted, and delete its groups."""
    topic = require_topic(state, command.name, command.topic_id)
    partitions = tuple(_without_leader(partition) for partition in topic.partitions)
    topic = replace(topic, partitions=partitions, deleting=True, version=topic.version + 1)
    groups = {name: of for name, of in state.groups.items() if name != topic.name}
    return _accepted(
        replace(state, groups=groups), topic, f"topic {topic.name} is being deleted", topic.version
    )


def delete_topic_at_once(state: MetadataState, command: DeleteTopicAtOnce) -> Applied:
    """Delete a topic and its groups, and remember which nodes have files of it."""
    topic = require_topic(state, command.name, command.topic_id)
    nodes = {node for partition in topic.partitions for node in partition.holders}
    deleted = DeletedTopic(topic.name, topic.topic_id, tuple(sorted(nodes)))
    after = replace(
        state,
        topics={name: other for name, other in state.topics.items() if name != topic.name},
        groups={name: of for name, of in state.groups.items() if name != topic.name},
        deleted_topics={**state.deleted_topics, format_topic_id(topic.topic_id): deleted},
    )
    return Applied(after, Accepted(state.version, f"topic {topic.name} deleted", topic.version))


def remove_topic(state: MetadataState, command: RemoveTopic) -> Applied:
    """Forget a deleted topic."""
    text = format_topic_id(command.topic_id)
    if text in state.deleted_topics:
        rest = {known: one for known, one in state.deleted_topics.items() if known != text}
        return Applied(
            replace(state, deleted_topics=rest),
            Accepted(state.version, f"topic {command.name} removed"),
        )
    topic = state.topics.get(command.name)
    if topic is None or topic.topic_id != command.topic_id:
        raise CommandRejected("topic_not_found", f"topic {command.name!r} does not exist any more")
    if not topic.deleting:
        raise CommandRejected("not_deleting", f"topic {topic.name!r} is not being deleted")
    topics = {name: other for name, other in state.topics.items() if name != topic.name}
    return Applied(
        replace(state, topics=topics), Accepted(state.version, f"topic {topic.name} removed")
    )


def _without_leader(partition: PartitionMetadata) -> PartitionMetadata:
    """Return the partition without leader and reassignment; all nodes with any files are listed."""
    return replace(
        partition,
        replicas=partition.holders,
        leader=None,
        leader_epoch=partition.leader_epoch + (partition.leader is not None),
        target=(),
        is_reassigning=False,
        is_manual=False,
        unclean=False,
        version=partition.version + 1,
    )


def _requested_id(state: MetadataState, command: CreateTopic) -> int:
    """Return the id of a new topic: drawn by the proposer, or the index of the command."""
    if not isinstance(command, CreateTopicWithId):
        return state.version
    topic_id = command.topic_id
    if (
        topic_id < NATIVE_TOPIC_IDS
        or format_topic_id(topic_id) in state.deleted_topics
        or any(topic.topic_id == topic_id for topic in state.topics.values())
    ):
        raise CommandRejected("invalid_topic_id", "the id of a new topic is drawn, and is not used")
    return topic_id


def _requested_factor(state: MetadataState, command: CreateTopic) -> int:
    factor = command.replication_factor
    return state.settings.replication_factor if factor is None else factor


def _check_replication(factor: int, min_insync: int | None) -> None:
    if not 1 <= factor <= limits.REPLICAS_MAX:
        raise CommandRejected(
            "invalid_replicas", f"a partition has 1 to {limits.REPLICAS_MAX} replicas"
        )
    if min_insync is not None and not 1 <= min_insync <= factor:
        raise CommandRejected(
            "invalid_min_insync",
            f"min_insync is 1 to the replication factor, {factor}, not {min_insync}",
        )


def _new_partitions(
    state: MetadataState,
    topic: TopicMetadata | None,
    count: int,
    factor: int,
    min_insync: int | None,
) -> tuple[PartitionMetadata, ...]:
    """Return new partitions, with fewer replicas than ``factor`` while there are too few nodes.

    They have at least as many as an acknowledgement needs, if that many nodes exist: a node that is
    down for a moment must not make messages less safe.
    """
    available = len(assignable_nodes(state.nodes))
    remaining = sum(not node.leaving for node in state.nodes.values())
    min_insync = state.settings.min_insync if min_insync is None else min_insync
    needed = min(factor, min_insync, max(remaining, 1))
    if available < needed:
        raise CommandRejected(
            "not_enough_nodes",
            f"{needed} replicas need as many nodes that are up, healthy and not leaving; there are"
            f" {available}",
        )
    rows = place_replicas(state, topic, count, min(factor, available))
    return tuple(
        PartitionMetadata(replicas=row, leader=row[0], in_sync=row, replication_factor=factor)
        for row in rows
    )


def _check_count(state: MetadataState, total: int, added: int) -> None:
    if not 1 <= total <= limits.PARTITIONS_PER_TOPIC_MAX:
        raise CommandRejected(
            "invalid_partitions",
            f"a topic has 1 to {limits.PARTITIONS_PER_TOPIC_MAX} partitions, not {total}",
        )
    if partition_count(state) + added > limits.CLUSTER_PARTITIONS_MAX:
        raise CommandRejected(
            "too_many_partitions",
            f"a cluster has at most {limits.CLUSTER_PARTITIONS_MAX} partitions; delete a topic or"
            " use fewer",
        )


def _require_version(state: MetadataState, name: str, topic_id: int, version: int) -> TopicMetadata:
    topic = require_topic(state, name, topic_id)
    if topic.version != version:
        raise CommandRejected(
            "stale_version", f"topic {name!r} is at version {topic.version}, not {version}"
        )
    return topic


def _accepted(state: MetadataState, topic: TopicMetadata, text: str, value: int) -> Applied:
    topics = {**state.topics, topic.name: topic}
    return Applied(replace(state, topics=topics), Accepted(state.version, text, value))
