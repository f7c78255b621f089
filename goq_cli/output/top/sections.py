"""The tables of ``goq top``: nodes, topics and groups, as titles, columns and rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from goq.units import round_size_bytes
from goq_cli.output.text import escaped, shorten, shown_age
from goq_cli.output.top.rates import GroupRate, Moment, NodeLoad, TopicRate

_NEVER: Final = "never"
_NOT_KNOWN: Final = "(not known)"
_DAY_S: Final = 86_400
_DRAIN_DAYS_MAX: Final = 1000
"""A time to drain beyond this is no end."""


@dataclass(frozen=True, slots=True)
class TopSection:
    """A table; columns in ``right`` are right-aligned."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    right: Collection[str]


def summary(moment: Moment) -> str:
    """Return the sums over all topics that match in one line."""
    totals = moment.totals
    parts = [
        f"{moment.time:%H:%M:%S}Z",
        _counted(len(moment.nodes), "node"),
        _counted(totals.topics, "topic"),
    ]
    for verb, rate in (
        ("published", totals.published_per_s),
        ("delivered", totals.delivered_per_s),
        ("acked", totals.acked_per_s),
    ):
        if rate is not None:
            parts.append(f"{verb} {shown_rate(rate)}/s")
    parts.append(f"lag {totals.lag:,}")
    return ", ".join(parts)


def node_section(nodes: Sequence[NodeLoad]) -> TopSection:
    """Return the table of nodes."""
    percentiles = ("publish p99", "ack p99", "sync p99")
    numbers = ("cpu", "memory", "disk free", *percentiles, "requests/s", "connections")
    rows = [
        (
            node.node,
            _status(node),
            "" if node.cpu_percent is None else f"{node.cpu_percent:.1f}%",
            _shown_size(node.rss_bytes),
            _shown_size(node.disk_free_bytes),
            _shown_percentile(node.publish_p99_ms),
            _shown_percentile(node.settle_p99_ms),
            _shown_percentile(node.commit_p99_ms),
            shown_rate(node.requests_per_s),
            "" if node.problem else node.connections,
            node.version,
        )
        for node in nodes
    ]
    return TopSection("nodes", ("node", "status", *numbers, "version"), rows, numbers)


def topic_section(topics: Iterable[TopicRate], name_columns: int | None = None) -> TopSection:
    """Return the table of topics; names are shortened to ``name_columns``."""
    rates = ("publish/s", "deliver/s", "ack/s")
    rows = [
        (
            _name(topic.name, name_columns),
            shown_rate(topic.published_per_s),
            shown_rate(topic.delivered_per_s),
            shown_rate(topic.acked_per_s),
            topic.lag,
            topic.bytes,
            topic.oldest_ready_ms,
            topic.messages,
            topic.group_count,
            topic.offline or "",
        )
        for topic in topics
    ]
    counts = ("lag", "bytes", "oldest_ready_ms", "messages", "groups", "offline")
    return TopSection("topics", ("topic", *rates, *counts), rows, rates)


def group_section(
    groups: Iterable[GroupRate], name_columns: int | None = None, *, has_topics: bool = True
) -> TopSection:
    """Return the table of groups, with the names of their topics if it ``has_topics``."""
    changes = ("trend/s", "drains in", "deliver/s", "ack/s")
    rows = []
    for group in groups:
        topic = (_name(group.topic, name_columns),) if has_topics else ()
        rows.append(
            (
                *topic,
                _name(group.group, name_columns),
                group.lag,
                shown_trend(group.lag_per_s),
                shown_drain(group),
                shown_rate(group.delivered_per_s),
                shown_rate(group.acked_per_s),
                group.ready,
                group.leased,
                group.retry,
                group.dead_messages,
                group.oldest_ready_ms,
                group.scheduled,
                group.blocked,
            )
        )
    states = ("ready", "leased", "retry", "dead", "oldest_ready_ms", "scheduled", "blocked")
    names = ("topic", "group") if has_topics else ("group",)
    return TopSection("groups", (*names, "lag", *changes, *states), rows, changes)


def waiting_section(groups: Iterable[GroupRate]) -> TopSection:
    """Return the table of lanes and tenants: messages before their first delivery, and leased."""
    rows: list[tuple[object, ...]] = []
    for group in groups:
        for kind, queues in (("lane", group.lanes), ("tenant", group.tenants)):
            if queues is None:
                rows.append((group.group, kind, _NOT_KNOWN, None, None))
                continue
            rows.extend(
                (group.group, kind, each.name, each.waiting, each.leased)
                for each in queues
                if each.waiting or each.leased
            )
    numbers = ("waiting", "leased")
    return TopSection("waiting", ("group", "by", "name", *numbers), rows, numbers)


def shown_rate(rate: float | None) -> str:
    """Return a rate for people; nothing where it is not known."""
    if rate is None:
        return ""
    return f"{rate:.1f}" if 0 < rate < 9.95 else f"{rate:.0f}"


def shown_trend(rate: float | None) -> str:
    """Return a rate with its sign; nothing where it is not known."""
    if rate is None:
        return ""
    sign = "+" if rate > 0 else "-" if rate < 0 else ""
    return sign + shown_rate(abs(rate))


def shown_drain(group: GroupRate) -> str:
    """Return when a group will have caught up, if it has to; nothing where that is not known."""
    if not group.lag or group.lag_per_s is None:
        return ""
    if group.drain_s is None or group.drain_s > _DRAIN_DAYS_MAX * _DAY_S:
        return _NEVER
    return shown_age(max(1, round(group.drain_s)) * 1000)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _status(node: NodeLoad) -> str:
    status = f"{node.status}, disk {node.disk}" if node.disk else node.status
    return f"{status}: {node.problem}" if node.problem else status


def _name(name: str, columns: int | None) -> str:
    return name if columns is None else shorten(escaped(name), columns)


def _shown_size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else round_size_bytes(size_bytes)


def _shown_percentile(percentile_ms: float | None) -> str:
    if percentile_ms is None:
        return ""
    return "very slow" if math.isinf(percentile_ms) else f"{percentile_ms:g} ms"
