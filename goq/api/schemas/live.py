"""JSON lines of ``GET /v1/live``: what the nodes and topics of a cluster do now.

Counters begin at 0 when a node starts; clients make rates of two lines. Sums over nodes fall when a
node restarts or a partition moves.
"""

from __future__ import annotations

import msgspec

from goq.api.schemas.base import Output


class LiveLatencyOut(Output):
    """The durations of one kind of work, as a histogram.

    ``counts`` has a count for each bound of ``bounds_s`` of the line, and one for what took longer.
    """

    counts: list[int]
    sum_s: float


class LiveNodeOut(Output):
    """A node: its load and its totals.

    ``started`` is when its process started, ``cpu_s`` and ``rss_bytes`` what that uses.
    ``publish``, ``receive`` and ``settle`` are durations of requests, ``commit`` of writes with
    their syncs. ``receive`` has the wait for messages, too. ``problem`` says why a node has no
    values: then it has only ``node`` and ``status``.
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
    publish: LiveLatencyOut | None = None
    receive: LiveLatencyOut | None = None
    settle: LiveLatencyOut | None = None
    commit: LiveLatencyOut | None = None


class LiveQueueOut(Output):
    """The messages of a lane or a tenant that wait for their first delivery, or are leased."""

    name: str
    waiting: int
    leased: int = 0


class LiveGroupOut(msgspec.Struct):
    """A group: its totals since the start, and its messages by state.

    ``oldest_ready`` is since when its oldest ready message is ready: in Unix milliseconds, 0 where
    nothing is ready or that is not known. After a restart of the node it may be the restart.
    ``lanes`` and ``tenants`` are there for topics that the request names, null where they are not
    known; ``tenants`` has those with the most that wait.
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
    lanes: list[LiveQueueOut] | None = msgspec.field(default_factory=list)
    tenants: list[LiveQueueOut] | None = msgspec.field(default_factory=list)


class LiveTopicOut(msgspec.Struct):
    """A topic: its totals since the start, and what it holds.

    ``last_append`` is when the last message came, in Unix milliseconds, 0 if none has come since
    the start. ``group_count`` counts all groups, as ``lag``, ``leased``, ``scheduled`` and
    ``oldest_ready`` do; of many, ``groups`` has those with the most lag, and some that have waited
    longest. ``messages`` counts those that compaction removed too, as they keep their offsets.
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
    groups: list[LiveGroupOut]
    lag: int = 0
    leased: int = 0
    scheduled: int = 0
    oldest_ready: int = 0


class LiveWaitOut(Output):
    """A group whose oldest message has been ready for long: since when, in Unix milliseconds."""

    topic: str
    group: str
    oldest_ready: int


class LiveTotalsOut(Output):
    """The sums over all topics that match, also those that the line leaves out."""

    topics: int
    messages: int
    bytes: int
    published_messages: int
    published_bytes: int
    delivered_messages: int
    acked_messages: int
    nacked_messages: int
    expired_messages: int
    offline: int
    group_count: int
    lag: int
    leased: int
    scheduled: int


class LiveOut(msgspec.Struct):
    """A line: all nodes, and the topics that have changed since the line before.

    The first line has all topics that match, or the first ``top`` in their order: then
    ``is_partial`` is true. Many changed topics come in several lines; ``more`` says that another
    line of this moment follows. ``removed`` are topics that are gone, or no longer among the first.
    ``waits`` and ``offline`` name the groups that have waited longest, and topics with offline
    partitions, of all that match. ``bounds_s`` are the bounds of the latencies. A request that goes
    on after ``cursor`` within three intervals gets what has changed since; ``is_whole`` says that a
    line has all.
    """

    time: str
    interval_s: float
    node: str
    nodes: list[LiveNodeOut]
    totals: LiveTotalsOut
    topics: list[LiveTopicOut]
    removed: list[str]
    more: bool
    is_partial: bool
    bounds_s: list[float]
    waits: list[LiveWaitOut] = msgspec.field(default_factory=list)
    offline: list[str] = msgspec.field(default_factory=list)
    cursor: str = ""
    is_whole: bool = True
