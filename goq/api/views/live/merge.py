"""The samples of several nodes as one sample: sums of topics and of groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from goq import limits
from goq.api.schemas.live import (
    LiveGroupOut,
    LiveNodeOut,
    LiveQueueOut,
    LiveTopicOut,
    LiveTotalsOut,
)
from goq.api.views.live.board import LiveSample
from goq.clock import TimeSlice

_TOPIC_SUMS: Final = tuple(
    name for name in LiveTotalsOut.__struct_fields__ if name not in ("topics", "group_count")
)
_GROUP_SUMS: Final = tuple(
    name
    for name in LiveGroupOut.__struct_fields__
    if name not in ("group", "oldest_ready", "lanes", "tenants")
)


async def merge_live(samples: Sequence[LiveSample], nodes: list[LiveNodeOut]) -> LiveSample:
    """Return one sample of those of several nodes; ``nodes`` are all nodes, told once."""
    topics: dict[str, LiveTopicOut] = {}
    time_slice = TimeSlice()
    for sample in samples:
        for name, topic in sample.topics.items():
            known = topics.get(name)
            topics[name] = topic if known is None else _merge_topic(known, topic)
            if time_slice.is_over:
                await time_slice.next()
    return LiveSample(nodes, dict(sorted(topics.items())))


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
        lanes=_merge_queues([*first.lanes, *second.lanes]),
        tenants=sorted(
            _merge_queues([*first.tenants, *second.tenants]),
            key=lambda each: (-each.waiting, -each.leased),
        )[: limits.LIVE_TENANTS_MAX],
    )


def _earlier(first_ms: int, second_ms: int) -> int:
    """Return the earlier of two times; 0 is none."""
    return min(first_ms, second_ms) or max(first_ms, second_ms)


def _summed(first: object, second: object, fields: Iterable[str]) -> dict[str, int]:
    return {name: getattr(first, name) + getattr(second, name) for name in fields}


def _merge_queues(queues: Iterable[LiveQueueOut]) -> list[LiveQueueOut]:
    found: dict[str, LiveQueueOut] = {}
    for queue in queues:
        known = found.setdefault(queue.name, LiveQueueOut(queue.name, 0))
        known.waiting += queue.waiting
        known.leased += queue.leased
    return list(found.values())
