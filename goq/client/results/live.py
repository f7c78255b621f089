"""The current work of a cluster: its nodes, its topics and their groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import msgspec

from goq.client.results.result import Result, decode
from goq.errors import Unavailable

LiveOrder = Literal["name", "publish", "deliver", "ack", "lag", "bytes", "messages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyCounts:
    """The numbers of durations below each bound; the last count has no bound."""

    counts: tuple[int, ...]
    sum_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNode:
    """The load of a node, and its totals since it ``started``; ``problem`` says why there are none.

    ``cpu_s`` and ``rss_bytes`` are what its process uses. ``commit`` are writes with their syncs.
    """

    node: str
    status: str = "up"
    problem: str | None = None
    version: str = ""
    python: str = ""
    started: str = ""
    cpu_s: float = 0.0
    rss_bytes: int = 0
    disk_free_bytes: int | None = None
    disk: str = ""
    connections: int = 0
    requests: int = 0
    partitions: int = 0
    publish: LatencyCounts | None = None
    receive: LatencyCounts | None = None
    settle: LatencyCounts | None = None
    commit: LatencyCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingMessages:
    """The messages of a lane or a tenant that wait for their first delivery, or are leased."""

    name: str
    waiting: int
    leased: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGroup:
    """A group: totals since the nodes started, and its messages by state.

    ``oldest_ready`` is in Unix milliseconds, 0 for none. ``lanes`` and ``tenants`` are there for
    topics that were named, None where they are not known.
    """

    group: str
    delivered_messages: int
    acked_messages: int
    nacked_messages: int
    expired_messages: int
    dead_messages: int
    lag: int
    ready: int
    leased: int
    retry: int
    blocked: int
    scheduled: int
    oldest_ready: int
    waiting_receives: int
    lanes: tuple[WaitingMessages, ...] | None = ()
    tenants: tuple[WaitingMessages, ...] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTopic:
    """A topic: totals since the nodes started, what it holds, and its groups with the most lag.

    ``lag``, ``leased``, ``scheduled`` and ``oldest_ready`` are of all its groups.
    """

    name: str
    partitions: int
    offline: int
    messages: int
    bytes: int
    published_messages: int
    published_bytes: int
    delivered_messages: int
    acked_messages: int
    nacked_messages: int
    expired_messages: int
    last_append: int
    group_count: int
    groups: tuple[LiveGroup, ...] = ()
    lag: int = 0
    leased: int = 0
    scheduled: int = 0
    oldest_ready: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWait:
    """A group whose oldest message has been ready for long: since when, in Unix milliseconds."""

    topic: str
    group: str
    oldest_ready: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTotals:
    """The sums over all topics that match, also those that are not told of."""

    topics: int = 0
    messages: int = 0
    bytes: int = 0
    published_messages: int = 0
    published_bytes: int = 0
    delivered_messages: int = 0
    acked_messages: int = 0
    nacked_messages: int = 0
    expired_messages: int = 0
    offline: int = 0
    group_count: int = 0
    lag: int = 0
    leased: int = 0
    scheduled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState(Result):
    """The work of nodes and topics at a ``time``. Rates are the differences of two of these.

    ``is_partial`` says that more topics match than are told of; ``totals`` are of all that match.
    ``waits`` and ``offline`` name the groups that have waited longest, and topics with offline
    partitions, at most 10 each. ``bounds_s`` are the bounds of the latencies.
    """

    time: datetime
    node: str
    nodes: tuple[LiveNode, ...] = ()
    totals: LiveTotals = field(default_factory=LiveTotals)
    topics: tuple[LiveTopic, ...] = ()
    waits: tuple[LiveWait, ...] = ()
    offline: tuple[str, ...] = ()
    is_partial: bool = False
    bounds_s: tuple[float, ...] = ()


def decode_live(body: bytes) -> LiveState:
    """Return the state that lines of one moment tell. Raises ``Unavailable``."""
    try:
        lines = [msgspec.json.decode(line) for line in body.splitlines() if line]
        first = {**lines[0], "topics": [topic for line in lines for topic in line["topics"]]}
    except (msgspec.DecodeError, LookupError, TypeError):
        raise Unavailable("the node's answer cannot be read") from None
    return decode(LiveState, first)


def names_of(topics: Sequence[str]) -> str | None:
    """Return the names of topics as a query has them."""
    return ",".join(topics) or None
