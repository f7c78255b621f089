"""Rates of topics, groups and nodes, made of two states of the cluster. Pure.

Counters begin at 0 when a node starts, and are sums over nodes. So there are no rates between two
states whose nodes differ, or of a counter that fell; and none between the clocks of two nodes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from goq.client.results.live import (
        LatencyCounts,
        LiveGroup,
        LiveNode,
        LiveState,
        LiveTopic,
        LiveTotals,
        WaitingMessages,
    )

TREND_S_MAX: Final = 30.0
"""The time over which the trend of a lag is measured."""


class _Delivered(Protocol):
    @property
    def delivered_messages(self) -> int: ...
    @property
    def acked_messages(self) -> int: ...
    @property
    def nacked_messages(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRate:
    """A group: its messages by state, and what it does a second; None where that is not known.

    ``lag_per_s`` is how fast the lag grows. ``drain_s`` is the time until it is 0 at that rate,
    None if there is no end. ``dead_messages`` is the total ever.
    """

    topic: str
    group: str
    lag: int
    lag_per_s: float | None
    drain_s: float | None
    delivered_per_s: float | None
    acked_per_s: float | None
    nacked_per_s: float | None
    ready: int
    leased: int
    retry: int
    blocked: int
    scheduled: int
    dead_messages: int
    oldest_ready_ms: int | None
    lanes: tuple[WaitingMessages, ...] | None
    tenants: tuple[WaitingMessages, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRate:
    """A topic: what it holds, and what happens a second; ``lag`` is the sum of its groups'."""

    name: str
    published_per_s: float | None
    published_bytes_per_s: float | None
    delivered_per_s: float | None
    acked_per_s: float | None
    nacked_per_s: float | None
    lag: int
    oldest_ready_ms: int | None
    messages: int
    bytes: int
    partitions: int
    offline: int
    group_count: int
    groups: tuple[GroupRate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """A node: its load, and the 99th percentile of what it did between the states.

    A percentile is the upper bound of the durations in its class; infinite above all bounds.
    """

    node: str
    status: str
    problem: str | None
    version: str
    cpu_percent: float | None
    rss_bytes: int | None
    disk_free_bytes: int | None
    disk: str
    connections: int
    partitions: int
    requests_per_s: float | None
    publish_p99_ms: float | None
    settle_p99_ms: float | None
    commit_p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalRate:
    """The sums over all topics that match, also those that are not listed."""

    topics: int
    published_per_s: float | None
    delivered_per_s: float | None
    acked_per_s: float | None
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The cluster at a time, with the rates of the last ``interval_s``; None without rates.

    ``is_partial`` says that more topics match than are listed.
    """

    time: datetime
    node: str
    interval_s: float | None
    is_partial: bool
    totals: TotalRate
    nodes: tuple[NodeLoad, ...]
    topics: tuple[TopicRate, ...]

    @property
    def groups(self) -> list[GroupRate]:
        """The groups of all topics."""
        return [group for topic in self.topics for group in topic.groups]


class RateMeter:
    """Makes a moment of each state, with the rates since the state before."""

    def __init__(self) -> None:
        self._before: LiveState | None = None
        self._lags: dict[tuple[str, str], deque[tuple[float, int]]] = {}

    def moment(self, state: LiveState) -> Moment:
        """Return a state with its rates."""
        step = _Step(self._before, state)
        if step.interval_s is None:
            self._lags = {}
        lags: dict[tuple[str, str], deque[tuple[float, int]]] = {}
        known = {topic.name: topic for topic in step.before.topics} if step.before else {}
        topics = [self._topic(topic, known.get(topic.name), step, lags) for topic in state.topics]
        self._before, self._lags = state, lags
        nodes = {node.node: node for node in step.before.nodes} if step.before else {}
        return Moment(
            time=state.time,
            node=state.node,
            interval_s=step.interval_s,
            is_partial=state.is_partial,
            totals=_totals(state.totals, step),
            nodes=tuple(_node(node, nodes.get(node.node), step) for node in state.nodes),
            topics=tuple(topics),
        )

    def _topic(
        self,
        topic: LiveTopic,
        before: LiveTopic | None,
        step: _Step,
        lags: dict[tuple[str, str], deque[tuple[float, int]]],
    ) -> TopicRate:
        known = {group.group: group for group in before.groups} if before else {}
        groups = []
        for group in topic.groups:
            name = (topic.name, group.group)
            lags[name] = history = self._lags.get(name) or deque()
            history.append((step.now_s, group.lag))
            while step.now_s - history[0][0] > TREND_S_MAX:
                history.popleft()
            groups.append(_group(topic.name, group, known.get(group.group), history, step))
        ages = [group.oldest_ready_ms for group in groups if group.oldest_ready_ms is not None]
        last_bytes = before.published_bytes if before else None
        last_published = before.published_messages if before else None
        return TopicRate(
            name=topic.name,
            published_per_s=step.rate(last_published, topic.published_messages),
            published_bytes_per_s=step.rate(last_bytes, topic.published_bytes),
            delivered_per_s=_delivered_per_s(before, topic, step),
            acked_per_s=_acked_per_s(before, topic, step),
            nacked_per_s=_nacked_per_s(before, topic, step),
            lag=sum(group.lag for group in groups),
            oldest_ready_ms=max(ages, default=None),
            messages=topic.messages,
            bytes=topic.bytes,
            partitions=topic.partitions,
            offline=topic.offline,
            group_count=topic.group_count,
            groups=tuple(groups),
        )


class _Step:
    """The step between two states of one clock; without rates if anything was counted anew."""

    def __init__(self, before: LiveState | None, state: LiveState) -> None:
        self.now_s = state.time.timestamp()
        self.now_ms = round(self.now_s * 1000)
        self.bounds_s = state.bounds_s
        self.before: LiveState | None = None
        self.interval_s: float | None = None
        if before is None or before.node != state.node or _counted(before) != _counted(state):
            return
        seconds = (state.time - before.time).total_seconds()
        if seconds > 0:
            self.before, self.interval_s = before, seconds

    def rate(self, before: float | None, after: float) -> float | None:
        """Return how much a counter rose a second; None if it is new or fell."""
        if self.interval_s is None or before is None or after < before:
            return None
        return (after - before) / self.interval_s


def percentile(
    before: Sequence[int], after: Sequence[int], bounds_s: Sequence[float], share: float
) -> float | None:
    """Return the bound below which ``share`` of the durations between two counts lie.

    None without durations; infinite above the last bound.
    """
    counts = [new - old for old, new in zip(before, after, strict=False)]
    total = sum(counts)
    if total <= 0 or min(counts) < 0:
        return None
    sums = list(accumulate(counts))
    place = next(number for number, count in enumerate(sums) if count >= total * share)
    return bounds_s[place] if place < len(bounds_s) else math.inf


def _totals(totals: LiveTotals, step: _Step) -> TotalRate:
    before = step.before.totals if step.before is not None else None
    last = before.published_messages if before else None
    return TotalRate(
        topics=totals.topics,
        published_per_s=step.rate(last, totals.published_messages),
        delivered_per_s=_delivered_per_s(before, totals, step),
        acked_per_s=_acked_per_s(before, totals, step),
        lag=totals.lag,
    )


def _counted(state: LiveState) -> set[tuple[str, str]]:
    """Return the runs of nodes whose counts are in the sums."""
    return {(node.node, node.started) for node in state.nodes if node.problem is None}


def _group(
    topic: str,
    group: LiveGroup,
    before: LiveGroup | None,
    history: Sequence[tuple[float, int]],
    step: _Step,
) -> GroupRate:
    (first_s, first_lag), (last_s, last_lag) = history[0], history[-1]
    lag_per_s = (last_lag - first_lag) / (last_s - first_s) if last_s > first_s else None
    drain_s = None
    if group.lag == 0:
        drain_s = 0.0
    elif lag_per_s is not None and lag_per_s < 0:
        drain_s = group.lag / -lag_per_s
    return GroupRate(
        topic=topic,
        group=group.group,
        lag=group.lag,
        lag_per_s=lag_per_s,
        drain_s=drain_s,
        delivered_per_s=_delivered_per_s(before, group, step),
        acked_per_s=_acked_per_s(before, group, step),
        nacked_per_s=_nacked_per_s(before, group, step),
        ready=group.ready,
        leased=group.leased,
        retry=group.retry,
        blocked=group.blocked,
        scheduled=group.scheduled,
        dead_messages=group.dead_messages,
        oldest_ready_ms=max(0, step.now_ms - group.oldest_ready) if group.oldest_ready else None,
        lanes=group.lanes,
        tenants=group.tenants,
    )


def _delivered_per_s(before: _Delivered | None, after: _Delivered, step: _Step) -> float | None:
    return step.rate(before.delivered_messages if before else None, after.delivered_messages)


def _acked_per_s(before: _Delivered | None, after: _Delivered, step: _Step) -> float | None:
    return step.rate(before.acked_messages if before else None, after.acked_messages)


def _nacked_per_s(before: _Delivered | None, after: _Delivered, step: _Step) -> float | None:
    return step.rate(before.nacked_messages if before else None, after.nacked_messages)


def _node(node: LiveNode, before: LiveNode | None, step: _Step) -> NodeLoad:
    is_told = node.problem is None
    last = before if before is not None and before.problem is None else None
    bounds_s = step.bounds_s
    busy = step.rate(last.cpu_s if last else None, node.cpu_s) if is_told else None

    def p99_ms(old: LatencyCounts | None, new: LatencyCounts | None) -> float | None:
        if old is None or new is None:
            return None
        found_s = percentile(old.counts, new.counts, bounds_s, 0.99)
        return None if found_s is None else found_s * 1000

    return NodeLoad(
        node=node.node,
        status=node.status,
        problem=node.problem,
        version=node.version,
        cpu_percent=None if busy is None else busy * 100,
        rss_bytes=node.rss_bytes if is_told else None,
        disk_free_bytes=node.disk_free_bytes,
        disk=node.disk,
        connections=node.connections,
        partitions=node.partitions,
        requests_per_s=step.rate(last.requests if last else None, node.requests),
        publish_p99_ms=p99_ms(last.publish if last else None, node.publish),
        settle_p99_ms=p99_ms(last.settle if last else None, node.settle),
        commit_p99_ms=p99_ms(last.commit if last else None, node.commit),
    )
