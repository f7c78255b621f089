"""How long messages waited: until they were first handed out, and until they were done.

A message waits from when it is published; one with a delay from when it is due.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from goq.pipeline.jobs.report import Bars, Report, section_of

_ACCURACY = 10_000
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def lives_of(messages: DataFrame, events: DataFrame) -> DataFrame:
    """Return a row for each message and group that was handed it.

    Columns: topic, lane, tenant, key, ready (a time), is_delayed, group, delivered and acked (times
    of the first of each, acked null where there is none).
    """
    times = (
        events.where(f.col("event").isin("DELIVERED", "ACKNOWLEDGED"))
        .groupBy("message_id", "group")
        .agg(
            f.min(f.when(f.col("event") == "DELIVERED", f.col("time"))).alias("delivered"),
            f.min(f.when(f.col("event") == "ACKNOWLEDGED", f.col("time"))).alias("acked"),
        )
    )
    published = messages.select(
        "message_id",
        "topic",
        "lane",
        "tenant",
        "key",
        f.greatest("timestamp", f.coalesce("deliver_at", "timestamp")).alias("ready"),
        f.col("deliver_at").isNotNull().alias("is_delayed"),
    )
    return times.where(f.col("delivered").isNotNull()).join(published, "message_id")


def latency(messages: DataFrame, events: DataFrame) -> Report:
    """Return how long messages took, by topic, group, lane and hour."""
    lives = lives_of(messages, events).withColumn("hour", f.date_trunc("hour", f.col("ready")))
    by = ["topic", "group", "lane", "hour"]
    first = _summary(lives, by, f.col("delivered"))
    whole = _summary(lives.where(f.col("acked").isNotNull()), by, f.col("acked"))
    bars = Bars(("group", "lane", "hour"), "p99_ms", "ms")
    return Report(
        "latency",
        "How long did messages take to their first delivery, and to their ack?",
        [
            section_of("Until first delivered", first, bars),
            section_of("Until acknowledged", whole, bars),
        ],
    )


def lateness(messages: DataFrame, events: DataFrame) -> Report:
    """Return how long after their time delayed messages were first handed out."""
    late = lives_of(messages, events).where("is_delayed")
    found = _summary(late, ["topic", "group", "lane"], f.col("delivered"))
    return Report(
        "lateness",
        "How late did scheduled messages come?",
        [section_of("After their time", found, Bars(("group", "lane"), "p99_ms", "ms"))],
    )


def fairness(messages: DataFrame, events: DataFrame) -> Report:
    """Return how long the messages of each tenant and lane waited."""
    lives = lives_of(messages, events)
    tenants = _summary(lives, ["topic", "group", "tenant"], f.col("delivered"))
    lanes = _summary(lives, ["topic", "group", "lane"], f.col("delivered"))
    return Report(
        "fairness",
        "Whose messages waited longer than those of others?",
        [
            section_of("By tenant", tenants, Bars(("group", "tenant"), "p90_ms", "ms")),
            section_of("By lane", lanes, Bars(("group", "lane"), "p90_ms", "ms")),
        ],
    )


def _summary(lives: DataFrame, by: Sequence[str], until: Column) -> DataFrame:
    """Return count, quantiles and maximum of the wait in milliseconds, by some columns."""
    micros = f.unix_micros(until) - f.unix_micros("ready")
    waited = lives.withColumn("wait_ms", micros / 1000)
    quantiles = [
        f.percentile_approx("wait_ms", share, _ACCURACY).alias(f"{name}_ms")
        for name, share in _QUANTILES.items()
    ]
    return (
        waited.groupBy(*by)
        .agg(f.count("*").alias("messages"), *quantiles, f.max("wait_ms").alias("max_ms"))
        .orderBy(*by)
    )
