"""Traffic: rates, what waited and for how long, and the service time of consumers, over time.

A message arrives at its publish, or at its latest due time. It is over for a group with the first
ack, dead letter, drop, skip or end of its ttl, with its cancellation, when a reset passes over it
or when retention deletes it. In between it is in the group's backlog.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from goq.pipeline.reports.report import (
    ROWS_MAX,
    Chart,
    Course,
    Report,
    Section,
    Spread,
    scope_of,
    section_of,
)
from goq.pipeline.reports.retries import without_undone
from goq.pipeline.reports.waits import step_of, wait_summary

_RATES = {"DELIVERED": "delivered", "ACKNOWLEDGED": "acknowledged", "DEAD_LETTERED": "dead"}
_ENDS = ("ACKNOWLEDGED", "DEAD_LETTERED", "DROPPED", "SKIPPED")
_NO_GROUP = "No group has come for a message."
_Group = tuple[str, str | None]
_BacklogRow = tuple[str, int, float]
"""A time, the messages in the backlog, and the age of the oldest in milliseconds."""


class _Steps(NamedTuple):
    """The steps of the time axis: their starts, in seconds since 1970."""

    size_s: int
    name: str
    starts: range

    def column(self, time: str) -> Column:
        """Return the start of the step of a time."""
        return (f.floor(f.unix_seconds(time) / self.size_s) * self.size_s).cast("bigint")


def traffic(messages: DataFrame, events: DataFrame, slo_ms: float | None = None) -> Report:
    """Report rates, backlog and service times, by topic and group.

    With ``slo_ms`` also the share of the deliveries whose service took longer.
    """
    steps = _steps(messages, events)
    ready = _ready(messages, events)
    published = _counts(messages, "topic", steps.column("timestamp"))
    arrived = _counts(ready, "topic", steps.column("ready"))
    happened = _counts(
        without_undone(events.where(f.col("event").isin(*_RATES))),
        *("topic", "group", "event", steps.column("time")),
    )
    groups = _groups(messages, events)
    over: defaultdict[_Group, Counter[tuple[int, int]]] = defaultdict(Counter)
    ended = _ended(ready, events, steps).select(
        "topic", "group", steps.column("ready").alias("ready"), steps.column("time").alias("time")
    )
    for topic, group, arrival, end, count in _counts(ended, "topic", "group", "ready", "time"):
        over[topic, group][arrival, max(arrival, end)] += count
    backlogs: dict[_Group, list[_BacklogRow]] = {
        (topic, group): list(
            _backlog(steps, {at: n for name, at, n in arrived if name == topic}, over[topic, group])
        )
        for topic, group in groups
        if group is not None
    }
    service = wait_summary(_served(events), ["topic", "group", "consumer"], "acked", slo_ms)
    by, every = ("topic", "group"), f"every {steps.name}"
    return Report(
        "traffic",
        "How much came, was delivered and acknowledged, and what waited?",
        [
            Section(
                "In all",
                (*by, "published", "delivered", "acknowledged", "dead", "most_backlog"),
                list(_totals(groups, published, happened, backlogs)),
            ),
            _over_time(
                f"Messages a second, {every}",
                (*by, "time", "published", *_RATES.values()),
                _rates(steps, groups, published, happened),
                Course(by, "time", ("published", "acknowledged"), "messages a second"),
            ),
            _over_time(
                f"Backlog at the end, {every}",
                (*by, "time", "backlog"),
                ((*name, *row[:2]) for name, rows in backlogs.items() for row in rows),
                Course(by, "time", ("backlog",), "messages"),
            ),
            _over_time(
                f"Age of the oldest message of the backlog, {every}",
                (*by, "time", "oldest_ms"),
                ((*name, row[0], row[2]) for name, rows in backlogs.items() for row in rows),
                Course(by, "time", ("oldest_ms",), "age"),
            ),
            section_of(
                "From the delivery to its ack",
                service.orderBy("topic", "group", "consumer"),
                Spread((*by, "consumer"), "service"),
                "No message was acknowledged.",
            ),
        ],
        scope=scope_of(messages),
    )


def _steps(messages: DataFrame, events: DataFrame) -> _Steps:
    bounds = []
    for frame, name in ((messages, "timestamp"), (events, "time")):
        row = frame.agg(f.min(f.unix_seconds(name)), f.max(f.unix_seconds(name))).first()
        bounds += [each for each in row or () if each is not None]
    if not bounds:
        return _Steps(1, "second", range(0))
    size_s, name = step_of(max(bounds) - min(bounds))
    first = min(bounds) // size_s * size_s
    return _Steps(size_s, name, range(first, max(bounds) + 1, size_s))


def _counts(frame: DataFrame, *by: str | Column) -> list[Any]:
    """Return the number of rows of each combination, behind it."""
    return frame.groupBy(*by).agg(f.count("*").alias("n")).collect()


def _groups(messages: DataFrame, events: DataFrame) -> list[_Group]:
    """Return the groups of each topic; None for a topic without one."""
    found = events.where("`group` is not null").select("topic", "group").distinct().collect()
    with_groups = {row.topic for row in found}
    topics = {row.topic for row in messages.select("topic").distinct().collect()}
    named = [(row.topic, row.group) for row in found]
    return sorted(named) + [(topic, None) for topic in sorted(topics - with_groups)]


def _ready(messages: DataFrame, events: DataFrame) -> DataFrame:
    """Return the messages with a column ``ready``, the time when each arrives."""
    changed = events.where("event = 'RESCHEDULED'").groupBy("message_id")
    due = changed.agg(f.max_by("due", "sequence").alias("new_due"))
    ready = f.greatest("timestamp", f.coalesce("new_due", "deliver_at"))
    return messages.join(due, "message_id", "left").withColumn("ready", ready)


def _ended(ready: DataFrame, events: DataFrame, steps: _Steps) -> DataFrame:
    """Return when each message was over for each group: topic, group, ready, time."""
    is_ttl = (f.col("event") == "EXPIRED") & f.col("lease").isNull()
    of_group = events.where(f.col("event").isin(*_ENDS) | is_ttl)
    groups = events.where("`group` is not null").select("topic", "group").distinct()
    cancelled = events.where("event = 'CANCELLED'").drop("group").join(f.broadcast(groups), "topic")
    resets = events.where("event = 'RESET'").select(
        "topic", "partition", "group", "time", f.col("offset").alias("continued_at")
    )
    places = ready.select("message_id", "topic", "partition", "offset")
    passed = places.join(f.broadcast(resets), ["topic", "partition"])
    deleted = _deleted(places, events, steps).join(f.broadcast(groups), "topic")
    columns = ["message_id", "group", "time"]
    ends = of_group.select(*columns).union(cancelled.select(*columns))
    ends = ends.union(passed.where("offset < continued_at").select(*columns))
    ends = ends.union(deleted.select(*columns))
    first = ends.groupBy("message_id", "group").agg(f.min("time").alias("time"))
    return first.join(ready.select("message_id", "topic", "ready"), "message_id")


def _deleted(places: DataFrame, events: DataFrame, steps: _Steps) -> DataFrame:
    """Return the messages that retention deleted, with the step in which it did: a row each.

    The deletions of a partition are one row, with one entry for each step that has any: so many
    messages, deleted by however many events, are not multiplied.
    """
    by_step = events.where("event = 'TRIMMED'").groupBy(
        "topic", "partition", f.timestamp_seconds(steps.column("time")).alias("time")
    )
    trims = (
        by_step.agg(f.max("offset").alias("end"))
        .groupBy("topic", "partition")
        .agg(f.collect_list(f.struct("end", "time")).alias("trims"))
    )
    beyond = f.filter("trims", lambda trim: trim["end"] > f.col("offset"))
    time = f.array_min(f.transform(beyond, lambda trim: trim["time"]))
    found = places.join(f.broadcast(trims), ["topic", "partition"]).withColumn("time", time)
    return found.where("time is not null").drop("trims")


def _served(events: DataFrame) -> DataFrame:
    """Return the deliveries that were acknowledged: topic, group, consumer, ready, acked."""
    lease = ["message_id", "group", "lease"]
    acks = events.where("event = 'ACKNOWLEDGED'").select(*lease, f.col("time").alias("acked"))
    handed = events.where("event = 'DELIVERED'").select(
        *lease, "topic", "consumer", f.col("time").alias("ready")
    )
    return handed.join(acks, lease)


def _backlog(
    steps: _Steps, arrived: dict[int, int], over: Counter[tuple[int, int]]
) -> Iterator[_BacklogRow]:
    """Yield, for each step, the backlog at its end and the age of the oldest message in it."""
    open_by_arrival: Counter[int] = Counter()
    ends: dict[int, Counter[int]] = defaultdict(Counter)
    for (arrival, end), count in over.items():
        ends[end][arrival] += count
    for start in steps.starts:
        open_by_arrival[start] += arrived.get(start, 0)
        open_by_arrival.subtract(ends.get(start, {}))
        waiting = [arrival for arrival, count in open_by_arrival.items() if count > 0]
        oldest_s = start + steps.size_s - min(waiting) if waiting else 0
        yield _time(start), sum(open_by_arrival.values()), oldest_s * 1000.0


def _rates(
    steps: _Steps, groups: Sequence[_Group], published: Sequence[Any], happened: Sequence[Any]
) -> Iterator[tuple[Any, ...]]:
    came = {(topic, at): count for topic, at, count in published}
    done = {(topic, group, event, at): count for topic, group, event, at, count in happened}
    for topic, group in groups:
        for start in steps.starts:
            counts = [
                came.get((topic, start), 0),
                *(done.get((topic, group, event, start), 0) for event in _RATES),
            ]
            yield topic, group, _time(start), *(round(n / steps.size_s, 3) for n in counts)


def _totals(
    groups: Sequence[_Group],
    published: Sequence[Any],
    happened: Sequence[Any],
    backlogs: dict[_Group, list[_BacklogRow]],
) -> Iterator[tuple[Any, ...]]:
    came: Counter[str] = Counter()
    done: Counter[tuple[str, str | None, str]] = Counter()
    for topic, _, count in published:
        came[topic] += count
    for topic, group, event, _, count in happened:
        done[topic, group, event] += count
    for topic, group in groups:
        most = max((row[1] for row in backlogs.get((topic, group), ())), default=came[topic])
        yield topic, group, came[topic], *(done[topic, group, event] for event in _RATES), most


def _over_time(
    title: str, columns: Sequence[str], rows: Iterable[tuple[Any, ...]], chart: Chart
) -> Section:
    found = list(rows)
    return Section(title, columns, found[:ROWS_MAX], chart, _NO_GROUP, len(found) > ROWS_MAX)


def _time(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
