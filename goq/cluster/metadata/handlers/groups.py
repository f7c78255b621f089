"""Handlers of commands on groups, and on the settings of the cluster."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from goq import limits
from goq.cluster.metadata.commands import AlterClusterSettings, DeleteGroup, PutGroup
from goq.cluster.metadata.handlers.partitions import require_topic
from goq.cluster.metadata.results import Accepted, Applied, CommandRejected
from goq.cluster.metadata.state import GroupMetadata, MetadataState
from goq.errors import InvalidInput
from goq.model import check_name


def put_group(state: MetadataState, command: PutGroup) -> Applied:
    """Create a group, or replace its settings."""
    require_topic(state, command.topic, command.topic_id)
    groups = state.groups.get(command.topic, {})
    known = groups.get(command.group)
    version = 0 if known is None else known.version
    if version != command.version:
        raise CommandRejected(
            "stale_version",
            f"group {command.group!r} is at version {version}, not {command.version}",
        )
    if known is None:
        _check_new_group(command.group, len(groups))
        known = GroupMetadata({}, version=0)
    group = replace(known, settings=dict(command.settings), version=version + 1)
    return _with_group(state, command.topic, command.group, group, "set", group.version)


def delete_group(state: MetadataState, command: DeleteGroup) -> Applied:
    """Delete a group."""
    known = _require_group(state, command)
    if known.version != command.version:
        raise CommandRejected(
            "stale_version",
            f"group {command.group!r} is at version {known.version}, not {command.version}",
        )
    of_topic = state.groups[command.topic]
    left = {name: group for name, group in of_topic.items() if name != command.group}
    groups = {name: of for name, of in state.groups.items() if name != command.topic}
    if left:
        groups[command.topic] = left
    return Applied(
        replace(state, groups=groups), Accepted(state.version, f"group {command.group} deleted")
    )


def alter_cluster_settings(state: MetadataState, command: AlterClusterSettings) -> Applied:
    """Change the cluster's settings."""
    if command.version != state.settings.version:
        raise CommandRejected(
            "stale_version",
            f"the cluster settings are at version {state.settings.version}, not {command.version}",
        )
    given = {
        "replication_factor": command.replication_factor,
        "min_insync": command.min_insync,
        "moves_at_once": command.moves_at_once,
        "move_bytes_per_s": command.move_bytes_per_s,
    }
    settings = replace(
        state.settings,
        version=state.settings.version + 1,
        **{name: value for name, value in given.items() if value is not None},
    )
    for name, highest in (
        ("replication_factor", limits.REPLICAS_MAX),
        ("min_insync", limits.REPLICAS_MAX),
        ("moves_at_once", limits.REASSIGNMENTS_MAX),
    ):
        if not 1 <= getattr(settings, name) <= highest:
            raise CommandRejected("invalid_setting", f"{name} must be 1 to {highest}")
    return Applied(
        replace(state, settings=settings),
        Accepted(state.version, "cluster settings changed", settings.version),
    )


def _require_group(state: MetadataState, command: DeleteGroup) -> GroupMetadata:
    require_topic(state, command.topic, command.topic_id)
    known = state.groups.get(command.topic, {}).get(command.group)
    if known is None:
        raise CommandRejected(
            "group_not_found", f"topic {command.topic!r} has no group {command.group!r}"
        )
    return known


def check_new_groups(names: Iterable[str]) -> None:
    """Reject groups that a new topic cannot have."""
    for count, name in enumerate(names):
        _check_new_group(name, count)


def _check_new_group(name: str, count: int) -> None:
    try:
        check_name(name, "group")
    except InvalidInput as error:
        raise CommandRejected("invalid_name", error.detail) from None
    if count >= limits.GROUPS_PER_TOPIC_MAX:
        raise CommandRejected(
            "too_many_groups", f"a topic has at most {limits.GROUPS_PER_TOPIC_MAX} groups"
        )


def _with_group(
    state: MetadataState, topic: str, name: str, group: GroupMetadata, text: str, value: int
) -> Applied:
    groups = {**state.groups, topic: {**state.groups.get(topic, {}), name: group}}
    return Applied(
        replace(state, groups=groups), Accepted(state.version, f"group {name} {text}", value)
    )
