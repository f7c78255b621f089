"""Rows of the state: the units that are stored in tables, and hashed into the digest.

A topic's partitions are rows of their own, so a command changes few rows of a large state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from goq.cluster.metadata.state import MetadataState, PartitionMetadata, TopicMetadata


class RowChange(NamedTuple):
    """A row before and after; None where it does not exist."""

    table: str
    key: dict[str, Any]
    before: msgspec.Struct | None
    after: msgspec.Struct | None


class RowField(NamedTuple):
    """A field of a row, its name in the tables, and its default."""

    name: str
    encoded: str
    default: Any


@cache
def row_fields(kind: type[msgspec.Struct]) -> tuple[RowField, ...]:
    """Return the fields of a kind of row; msgspec takes long to tell them."""
    return tuple(
        RowField(field.name, field.encode_name, field.default)
        for field in msgspec.structs.fields(kind)
    )


def changed_rows(before: MetadataState, after: MetadataState) -> Iterator[RowChange]:
    """Yield the rows that differ. Unchanged objects are recognized by identity."""
    for name, *node in _changes(before.nodes, after.nodes):
        yield RowChange("nodes", {"id": name}, *node)
    for name, old, new in _changes(before.topics, after.topics):
        topic = _without_partitions(old), _without_partitions(new)
        if topic[0] != topic[1]:
            yield RowChange("topics", {"name": name}, *topic)
        of_old, of_new = _numbered(old), _numbered(new)
        for number, *partition in _changes(of_old, of_new):
            yield RowChange("partitions", {"topic": name, "partition": number}, *partition)
    for topic_name, old, new in _changes(before.groups, after.groups):
        for name, *group in _changes(old or {}, new or {}):
            yield RowChange("groups", {"topic": topic_name, "name": name}, *group)
    for text, *deleted in _changes(before.deleted_topics, after.deleted_topics):
        yield RowChange("deleted_topics", {"id": text}, *deleted)
    for token_id, *token in _changes(before.tokens, after.tokens):
        yield RowChange("tokens", {"id": token_id}, *token)
    for name, *schedule in _changes(before.schedules, after.schedules):
        yield RowChange("schedules", {"name": name}, *schedule)
    if after.settings is not before.settings:
        yield RowChange("cluster", {"id": 1}, before.settings, after.settings)
    if after.features is not before.features:
        yield RowChange("features", {"id": 1}, before.features, after.features)


def _numbered(topic: TopicMetadata | None) -> dict[int, PartitionMetadata]:
    return {} if topic is None else dict(enumerate(topic.partitions))


def _without_partitions(topic: TopicMetadata | None) -> TopicMetadata | None:
    return None if topic is None else replace(topic, partitions=())


def _changes(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> Iterator[tuple[Any, Any, Any]]:
    if before is after:
        return
    for key, value in after.items():
        if (old := before.get(key)) is not value:
            yield key, old, value
    for key, old in before.items():
        if key not in after:
            yield key, old, None
