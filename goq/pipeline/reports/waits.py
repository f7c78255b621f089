"""Waits of messages: until their first delivery, and until their ack.

A wait begins with the publish; for a delayed message with its latest delivery time. A message
counts in the lane of its delivery. A clock that was set back between two events makes the wait 0,
never negative.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from goq.pipeline.reports.report import Course, Report, Spread, scope_of, section_of
from goq.pipeline.reports.retries import without_undone

_ACCURACY = 10_000
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_STEPS = (
    (1, "second"),
    (10, "10 seconds"),
    (60, "minute"),
    (600, "10 minutes"),
    (3_600, "hour"),
    (86_400, "day"),
)
_POINTS_MAX = 120
_NOTHING = "No message was handed out to a group."


def lives_of(messages: DataFrame, events: DataFrame) -> DataFrame:
    """Return a row for each message and group that received it.

    Columns: topic, lane, tenant, key, ready (a time), is_delayed, group, delivered and acked (times
    of the first of each, acked null where there is none).
    """
    is_delivery, is_ack = f.col("event") == "DELIVERED", f.col("event") == "ACKNOWLEDGED"
    times = (
        without_undone(events.where("event in ('DELIVERED', 'ACKNOWLEDGED', 'NACKED')"))
        .groupBy("message_id", "group")
        .agg(
            f.min_by("time", f.when(is_delivery, f.col("sequence"))).alias("delivered"),
            f.min(f.when(is_delivery, f.col("sequence"))).alias("delivered_at"),
            f.min_by("time", f.when(is_ack, f.col("sequence"))).alias("acked"),
        )
        .where("delivered_at is not null")
    )
    moves = events.where("event in ('MOVED', 'RESCHEDULED')").select(
        "message_id",
        "sequence",
        f.when(f.col("event") == "RESCHEDULED", f.col("due")).alias("new_due"),
        f.regexp_extract("reason", r"^lane (\d+)$", 1).try_cast("smallint").alias("new_lane"),
    )
    arranged = (
        times.select("message_id", "group", "delivered_at")
        .join(moves, "message_id")
        .where("sequence < delivered_at")
        .groupBy("message_id", "group")
        .agg(
            _newest("new_due").alias("new_due"),
            _newest("new_lane").alias("new_lane"),
        )
    )
    due = f.coalesce("new_due", "deliver_at")
    return (
        times.drop("delivered_at")
        .join(messages, "message_id")
        .join(arranged, ["message_id", "group"], "left")
        .select(
            "message_id",
            "topic",
            f.coalesce("new_lane", "lane").alias("lane"),
            "tenant",
            "key",
            f.greatest("timestamp", due).alias("ready"),
            f.col("deliver_at").isNotNull().alias("is_delayed"),
            "group",
            "delivered",
            "acked",
        )
    )


def latency(messages: DataFrame, events: DataFrame, slo_ms: float | None = None) -> Report:
    """Report the waits of messages, by topic, group and lane, and over time.

    With ``slo_ms`` also the share of the messages that waited longer.
    """
    lives = lives_of(messages, events).cache()
    step_s, step = _step_of(lives)
    acked = lives.where("acked is not null")
    by, timed = ["topic", "group", "lane"], ["topic", "group", "time"]
    time = f.timestamp_seconds(f.floor(f.unix_seconds("ready") / step_s) * step_s).alias("time")
    wholes, courses = [], []
    for title, some, until, nothing in (
        ("Until first delivered", lives, "delivered", _NOTHING),
        ("Until acknowledged", acked, "acked", "No message was acknowledged."),
    ):
        whole = wait_summary(some, by, until, slo_ms).orderBy(*by)
        wholes.append(section_of(title, whole, Spread(by, "wait"), nothing))
        course = wait_summary(some, ["topic", "group", time], until, slo_ms).orderBy(*timed)
        chart = Course(timed[:2], "time", ("p50_ms", "p99_ms"), "wait")
        courses.append(section_of(f"{title}, every {step}", course, chart, nothing))
    lives.unpersist()
    return Report(
        "latency",
        "How long did messages take to their first delivery, and to their ack?",
        wholes + courses,
        scope=scope_of(messages),
    )


def lateness(messages: DataFrame, events: DataFrame, slo_ms: float | None = None) -> Report:
    """Report the lateness of delayed messages at their first delivery.

    ``early`` counts messages delivered before their time: 0, unless the node's clock was set back.
    """
    late = lives_of(messages, events).where("is_delayed")
    by = ["topic", "group", "lane"]
    early = f.sum((f.col("delivered") < f.col("ready")).cast("bigint")).alias("early")
    found = wait_summary(late, by, "delivered", slo_ms, early).orderBy(*by)
    section = section_of(
        "After their time", found, Spread(by, "lateness"), "No scheduled message was handed out."
    )
    return Report(
        "lateness", "How late did scheduled messages come?", [section], scope=scope_of(messages)
    )


def fairness(messages: DataFrame, events: DataFrame, slo_ms: float | None = None) -> Report:
    """Report the waits of each tenant and lane."""
    lives = lives_of(messages, events).cache()
    sections = [
        section_of(
            f"By {name}",
            wait_summary(lives, by, "delivered", slo_ms).orderBy(*by),
            Spread(by, "wait until first delivered"),
            _NOTHING,
        )
        for name, by in (
            ("tenant", ["topic", "group", "tenant"]),
            ("lane", ["topic", "group", "lane"]),
        )
    ]
    lives.unpersist()
    return Report(
        "fairness",
        "Whose messages waited longer than those of others?",
        sections,
        scope=scope_of(messages),
    )


def _newest(name: str) -> Column:
    return f.max_by(name, f.when(f.col(name).isNotNull(), f.col("sequence")))


def _step_of(lives: DataFrame) -> tuple[int, str]:
    """Return a step in seconds, and its name, for a course of at most 120 points."""
    row = lives.agg(f.unix_seconds(f.max("ready")) - f.unix_seconds(f.min("ready"))).first()
    return step_of((row and row[0]) or 0)


def step_of(span_s: int) -> tuple[int, str]:
    """Return the step in seconds, and its name, for a course of at most 120 points."""
    return next((step for step in _STEPS if span_s <= step[0] * _POINTS_MAX), _STEPS[-1])


def wait_summary(
    lives: DataFrame,
    by: Sequence[str | Column],
    until: str,
    slo_ms: float | None,
    *others: Column,
) -> DataFrame:
    """Return count, quantiles and maximum of the wait in milliseconds, by some columns.

    With ``slo_ms`` also the share of longer waits.
    """
    micros = f.unix_micros(until) - f.unix_micros("ready")
    waited = lives.withColumn("wait_ms", f.greatest(micros, f.lit(0)) / 1000)
    quantiles = [
        f.percentile_approx("wait_ms", share, _ACCURACY).alias(f"{name}_ms")
        for name, share in _QUANTILES.items()
    ]
    over = []
    if slo_ms is not None:
        is_over = (f.col("wait_ms") > slo_ms).cast("double")
        over = [(100 * f.avg(is_over)).alias("over_slo_percent")]
    return waited.groupBy(*by).agg(
        f.count("*").alias("messages"),
        *quantiles,
        f.max("wait_ms").alias("max_ms"),
        *over,
        *others,
    )
