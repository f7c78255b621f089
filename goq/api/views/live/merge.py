"""The parts of a topic on several nodes as one: sums of its counts and of its groups'."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Final

import msgspec

from goq import limits
from goq.api.schemas.live import (
    LiveGroupOut,
    LiveQueueOut,
    LiveTopicOut,
    LiveTotalsOut,
)

_TOPIC_SUMS: Final = tuple(
    name for name in LiveTotalsOut.__struct_fields__ if name not in ("topics", "group_count")
)
_GROUP_SUMS: Final = tuple(
    name
    for name in LiveGroupOut.__struct_fields__
    if name not in ("group", "oldest_ready", "lanes", "tenants")
)


def merge_topics(parts: Sequence[LiveTopicOut]) -> LiveTopicOut:
    """Return the sums of a topic over the nodes that lead parts of it."""
    return reduce(_merge_topic, parts)


def _merge_topic(first: LiveTopicOut, second: LiveTopicOut) -> LiveTopicOut:
    groups = {group.group: group for group in first.groups}
    for group in second.groups:
        known = groups.get(group.group)
        groups[group.group] = group if known is None else _merge_group(known, group)
    return msgspec.structs.replace(
        first,
        **_summed(first, second, _TOPIC_SUMS),
        last_append=max(first.last_append, second.last_append),
        partitions=max(first.partitions, second.partitions),
        group_count=max(first.group_count, second.group_count),
        groups=[groups[name] for name in sorted(groups)],
        oldest_ready=_earlier(first.oldest_ready, second.oldest_ready),
    )


def _merge_group(first: LiveGroupOut, second: LiveGroupOut) -> LiveGroupOut:
    return msgspec.structs.replace(
        first,
        **_summed(first, second, _GROUP_SUMS),
        oldest_ready=_earlier(first.oldest_ready, second.oldest_ready),
        lanes=_merge_queues(first.lanes, second.lanes),
        tenants=_most(_merge_queues(first.tenants, second.tenants)),
    )


def _earlier(first_ms: int, second_ms: int) -> int:
    """Return the earlier of two times; 0 is none."""
    return min(first_ms, second_ms) or max(first_ms, second_ms)


def _summed(first: object, second: object, fields: Iterable[str]) -> dict[str, int]:
    return {name: getattr(first, name) + getattr(second, name) for name in fields}


def _merge_queues(
    first: Sequence[LiveQueueOut] | None, second: Sequence[LiveQueueOut] | None
) -> list[LiveQueueOut] | None:
    if first is None or second is None:
        return None  # of the sum as little is known
    found: dict[str, LiveQueueOut] = {}
    for queue in (*first, *second):
        known = found.setdefault(queue.name, LiveQueueOut(queue.name, 0))
        known.waiting += queue.waiting
        known.leased += queue.leased
    return list(found.values())


def _most(tenants: list[LiveQueueOut] | None) -> list[LiveQueueOut] | None:
    if tenants is None:
        return None
    return sorted(tenants, key=lambda each: (-each.waiting, -each.leased))[
        : limits.LIVE_TENANTS_MAX
    ]
