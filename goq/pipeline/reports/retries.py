"""Retries and dead letters: rates, causes, and the keys concerned.

A receive whose connection broke before the answer left the node is undone: the messages are nacked
with one attempt less. Neither half of that counts as a delivery or a failure.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from goq.pipeline.reports.report import Bars, Report, scope_of, section_of

_HANDED = ["message_id", "group", "lease"]


def without_undone(events: DataFrame) -> DataFrame:
    """Return the events without undone deliveries and without the nacks that undid them."""
    undone = (
        events.where("event in ('DELIVERED', 'NACKED')")
        .groupBy(*_HANDED)
        .agg(
            f.max(f.when(f.col("event") == "DELIVERED", f.col("attempt"))).alias("handed"),
            f.min(f.when(f.col("event") == "NACKED", f.col("attempt"))).alias("nacked"),
        )
        .where("nacked < handed")
        .select(*_HANDED, f.lit(True).alias("undone"))
    )
    is_of_it = f.col("event").isin("DELIVERED", "NACKED") & f.col("undone").isNotNull()
    return events.join(undone, _HANDED, "left").where(~is_of_it).drop("undone")


_FAILURES = ("NACKED", "EXPIRED", "DEAD_LETTERED", "DROPPED")
_TOP = 20


def retries(messages: DataFrame, events: DataFrame) -> Report:
    """Report redeliveries and dead letters, their causes, and the keys with most of them."""
    by = ["topic", "group"]
    happened = without_undone(events.where(f.col("event").isin("DELIVERED", *_FAILURES))).cache()
    rates = _rates(happened)
    failed = happened.where("event != 'DELIVERED'")
    told = f.when((f.col("event") == "EXPIRED") & f.col("lease").isNotNull(), "visibility_timeout")
    reasons = (
        failed.groupBy(*by, "event", f.coalesce("reason", told, f.lit("")).alias("reason"))
        .agg(f.count("*").alias("times"))
        .orderBy(f.desc("times"), *by, "event", "reason")
        .limit(_TOP)
    )
    poison = (
        failed.join(messages.select("message_id", "key"), "message_id")
        .where("key is not null")
        .groupBy(*by, "key")
        .agg(
            f.count("*").alias("failures"),
            f.count_distinct("message_id").alias("messages"),
            _count_if(f.col("event") == "DEAD_LETTERED").alias("dead"),
        )
        .orderBy(f.desc("failures"), *by, "key")
        .limit(_TOP)
    )
    nothing = "Nothing failed."
    sections = [
        section_of("Rates", rates, Bars(by, "again_percent", "deliveries that were not the first")),
        section_of("Reasons", reasons, Bars([*by, "event", "reason"], "times", "times"), nothing),
        section_of(
            "Keys that fail most", poison, Bars([*by, "key"], "failures", "failures"), nothing
        ),
    ]
    happened.unpersist()
    return Report(
        "retries",
        "What had to be delivered again, what was given up, and why?",
        sections,
        scope=scope_of(messages),
    )


def _rates(happened: DataFrame) -> DataFrame:
    """Return, by topic and group, the counts of deliveries, redeliveries and dead letters.

    A message that was never delivered can be a dead letter too, when its ttl has passed.
    """
    is_delivery = f.col("event") == "DELIVERED"
    is_death = f.col("event") == "DEAD_LETTERED"
    return (
        happened.where(is_delivery | is_death)
        .groupBy("topic", "group")
        .agg(
            _count_if(is_delivery).alias("deliveries"),
            f.count_distinct("message_id").alias("messages"),
            _count_if(is_delivery & (f.col("attempt") > 1)).alias("again"),
            f.count_distinct(f.when(is_death, f.col("message_id"))).alias("dead"),
        )
        .withColumn(
            "again_percent",
            f.coalesce(f.try_divide(100 * f.col("again"), "deliveries"), f.lit(0.0)),
        )
        .withColumn("dead_percent", 100 * f.col("dead") / f.col("messages"))
        .orderBy("topic", "group")
    )


def _count_if(condition: Column) -> Column:
    return f.sum(condition.cast("bigint"))
