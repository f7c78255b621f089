"""States of a small cluster, as ``get_live_state`` returns them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from goq.client.results.live import (
    LatencyCounts,
    LiveGroup,
    LiveNode,
    LiveState,
    LiveTopic,
    LiveTotals,
)

BEGIN = datetime(2025, 1, 15, 10, 30, tzinfo=UTC)
BOUNDS_S = (0.001, 0.01, 0.1)


def node(name: str = "node-1", **fields: Any) -> LiveNode:
    return LiveNode(node=name, **{"started": "then", "version": "0.1.0", **fields})


def group(name: str = "billing", **fields: Any) -> LiveGroup:
    counts = (
        *("delivered_messages", "acked_messages", "nacked_messages", "expired_messages"),
        *("dead_messages", "lag", "ready", "leased", "retry", "blocked", "scheduled"),
        *("oldest_ready", "waiting_receives"),
    )
    return LiveGroup(group=name, **{**dict.fromkeys(counts, 0), **fields})


def topic(name: str = "orders", **fields: Any) -> LiveTopic:
    counts = (
        *("partitions", "offline", "messages", "bytes", "published_messages", "published_bytes"),
        *("delivered_messages", "acked_messages", "nacked_messages", "expired_messages"),
        *("last_append", "group_count"),
    )
    return LiveTopic(name=name, **{**dict.fromkeys(counts, 0), **fields})


def state(at_s: float, *topics: LiveTopic, **fields: Any) -> LiveState:
    found = {"node": "node-1", "nodes": (node(),), "bounds_s": BOUNDS_S, **fields}
    found.setdefault("totals", totals(*topics))
    return LiveState(time=BEGIN + timedelta(seconds=at_s), topics=topics, **found)


def totals(*topics: LiveTopic) -> LiveTotals:
    """Return the sums over topics, as a node tells them."""
    counters = ("published_messages", "delivered_messages", "acked_messages")
    return LiveTotals(
        topics=len(topics),
        lag=sum(group.lag for topic in topics for group in topic.groups),
        **{name: sum(getattr(topic, name) for topic in topics) for name in counters},
    )


def latencies(*counts: int) -> LatencyCounts:
    return LatencyCounts(counts=counts, sum_s=0.0)
