"""Lines of what goes on, each with what changed since the line before; and their merge over nodes.

A feed belongs to one looker. Nodes are sampled when the looker takes a line, so one that reads
slowly costs less, and gets the latest values.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from goq import limits
from goq.api.schemas.live import (
    LiveGroupOut,
    LiveNodeOut,
    LiveOut,
    LiveQueueOut,
    LiveTopicOut,
    LiveTotalsOut,
)
from goq.clock import Clock, TimeSlice
from goq.histogram import BUCKETS_S
from goq.units import format_time_us

_SUMS: Final = LiveTotalsOut.__struct_fields__[1:]
_TOPIC_SUMS: Final = (*_SUMS, "offline")
_GROUP_SUMS: Final = tuple(
    name
    for name in LiveGroupOut.__struct_fields__
    if name not in ("group", "oldest_ready", "lanes", "tenants")
)
_WORK_SHARE: Final = 10
"""A pause is at least so many times as long as the sample before it took."""


class LiveSample(NamedTuple):
    """Nodes and topics at a moment."""

    nodes: list[LiveNodeOut]
    topics: Mapping[str, LiveTopicOut]


class LiveAsked(NamedTuple):
    """The wishes of a looker: a line each so many seconds, and how many, None for no end."""

    interval_s: float
    limit: int | None


async def live_lines(
    sample: Callable[[], Awaitable[LiveSample]], node: str, clock: Clock, asked: LiveAsked
) -> AsyncGenerator[bytes, None]:
    """Yield lines until the looker goes."""
    loop = asyncio.get_running_loop()
    known: Mapping[str, LiveTopicOut] = {}
    left = asked.limit
    due_s = loop.time()
    while True:
        began_s = loop.time()
        found = await sample()
        line = await _line(found, known, node, clock, asked.interval_s)
        known = found.topics
        async for part in _parts(line):
            yield part
        if left is not None:
            left -= 1
            if not left:
                return
        now_s = loop.time()
        pause_s = max(due_s + asked.interval_s - now_s, _WORK_SHARE * (now_s - began_s))
        due_s = max(due_s + asked.interval_s, now_s)
        await asyncio.sleep(min(pause_s, limits.LIVE_INTERVAL_S_MAX))


async def _line(
    found: LiveSample,
    known: Mapping[str, LiveTopicOut],
    node: str,
    clock: Clock,
    interval_s: float,
) -> LiveOut:
    changed: list[LiveTopicOut] = []
    totals = dict.fromkeys(_SUMS, 0)
    time_slice = TimeSlice()
    for count, (name, topic) in enumerate(found.topics.items()):
        for field in _SUMS:
            totals[field] += getattr(topic, field)
        before = known.get(name)
        if count < limits.LIVE_TOPICS_MAX and before is not topic and before != topic:
            changed.append(topic)
        if time_slice.is_over:
            await time_slice.next()
    return LiveOut(
        format_time_us(clock.wall_us()),
        interval_s,
        node,
        found.nodes,
        LiveTotalsOut(len(found.topics), **totals),
        changed,
        [name for name in known if name not in found.topics],
        False,
        len(found.topics) > limits.LIVE_TOPICS_MAX,
        list(BUCKETS_S),
    )


async def _parts(line: LiveOut) -> AsyncGenerator[bytes, None]:
    """Yield a line in lines of a bounded number of topics."""
    topics, step = line.topics, limits.LIVE_LINE_TOPICS_MAX
    for start in range(0, max(len(topics), 1), step):
        line.topics = topics[start : start + step]
        line.more = start + step < len(topics)
        yield msgspec.json.encode(line) + b"\n"
        line.nodes, line.removed = [], []
        await asyncio.sleep(0)


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
        **_summed(first, second, _TOPIC_SUMS[1:]),
        messages=first.messages + second.messages,
        last_append=max(first.last_append, second.last_append),
        partitions=max(first.partitions, second.partitions),
        group_count=max(first.group_count, second.group_count),
        groups=[groups[name] for name in sorted(groups)][: limits.LIVE_GROUPS_MAX],
    )


def _merge_group(first: LiveGroupOut, second: LiveGroupOut) -> LiveGroupOut:
    return msgspec.structs.replace(
        first,
        **_summed(first, second, _GROUP_SUMS),
        oldest_ready=min(filter(None, (first.oldest_ready, second.oldest_ready)), default=0),
        lanes=_merge_queues([*first.lanes, *second.lanes]),
        tenants=sorted(
            _merge_queues([*first.tenants, *second.tenants]), key=lambda each: -each.waiting
        )[: limits.LIVE_TENANTS_MAX],
    )


def _summed(first: object, second: object, fields: Iterable[str]) -> dict[str, int]:
    return {name: getattr(first, name) + getattr(second, name) for name in fields}


def _merge_queues(queues: Iterable[LiveQueueOut]) -> list[LiveQueueOut]:
    counts: dict[str, int] = {}
    for queue in queues:
        counts[queue.name] = counts.get(queue.name, 0) + queue.waiting
    return [LiveQueueOut(name, waiting) for name, waiting in counts.items()]
