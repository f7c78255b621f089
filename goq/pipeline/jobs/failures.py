"""What did not go well the first time: retries, dead letters, and the keys behind them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from goq.pipeline.jobs.report import Bars, Report, section_of

_FAILURES = ("NACKED", "EXPIRED", "DEAD_LETTERED", "DROPPED")
_TOP = 20


def retries(messages: DataFrame, events: DataFrame) -> Report:
    """Return how much was delivered again or became a dead letter, why, and of which keys."""
    by = ["topic", "group"]
    delivered = events.where("event = 'DELIVERED'").groupBy(*by)
    rates = delivered.agg(
        f.count("*").alias("deliveries"),
        f.count_distinct("message_id").alias("messages"),
        f.sum((f.col("attempt") > 1).cast("long")).alias("again"),
    )
    dead = (
        events.where("event = 'DEAD_LETTERED'")
        .groupBy(*by)
        .agg(f.count_distinct("message_id").alias("dead"))
    )
    rates = (
        rates.join(dead, by, "left")
        .fillna(0, ["dead"])
        .withColumn("again_percent", 100 * f.col("again") / f.col("deliveries"))
        .withColumn("dead_percent", 100 * f.col("dead") / f.col("messages"))
        .orderBy(*by)
    )
    failed = events.where(f.col("event").isin(*_FAILURES))
    reasons = (
        failed.groupBy(*by, "event", f.coalesce("reason", f.lit("")).alias("reason"))
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
            f.sum((f.col("event") == "DEAD_LETTERED").cast("long")).alias("dead"),
        )
        .orderBy(f.desc("failures"), *by, "key")
        .limit(_TOP)
    )
    return Report(
        "retries",
        "What had to be delivered again, what was given up, and why?",
        [
            section_of("Rates", rates, Bars(("topic", "group"), "again_percent", "%")),
            section_of("Reasons", reasons, Bars(("group", "event", "reason"), "times", "")),
            section_of("Keys that fail most", poison, Bars(("group", "key"), "failures", "")),
        ],
    )
