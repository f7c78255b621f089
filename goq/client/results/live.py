"""The current work of a cluster: its nodes, its topics and their groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from goq.client.results.result import Result, decode
from goq.errors import Unavailable


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
    """The messages of a lane or a tenant that wait for their first delivery."""

    name: str
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGroup:
    """A group: totals since the nodes started, and its messages by state.

    ``oldest_ready`` is in Unix milliseconds, 0 for none. ``lanes`` and ``tenants`` are there for
    topics that were named.
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
    lanes: tuple[WaitingMessages, ...] = ()
    tenants: tuple[WaitingMessages, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTopic:
    """A topic: totals since the nodes started, what it holds, and its groups."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState(Result):
    """The work of nodes and topics at a ``time``. Rates are the differences of two of these.

    ``is_partial`` says that there are more topics than are told of. ``bounds_s`` are the bounds of
    the latencies.
    """

    time: datetime
    node: str
    nodes: tuple[LiveNode, ...] = ()
    topics: tuple[LiveTopic, ...] = ()
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
