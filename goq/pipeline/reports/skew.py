"""Skew: the distribution of messages over partitions and keys."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from goq.pipeline.reports.report import Bars, Report, scope_of, section_of

_TOP = 20


def skew(messages: DataFrame, groups: DataFrame) -> Report:
    """Report the load of each partition against the mean, and the keys with the most messages.

    Partitions without messages count: higher partition numbers or ``groups`` reveal them.
    """
    size = f.coalesce(f.octet_length("value"), f.lit(0)) + f.coalesce(
        f.octet_length("key"), f.lit(0)
    )
    loads = messages.groupBy("topic", "partition").agg(
        f.count("*").alias("messages"), f.sum(size).alias("bytes")
    )
    known = loads.select("topic", "partition").union(groups.select("topic", "partition"))
    highest = known.groupBy("topic").agg(f.max("partition").alias("highest"))
    all_of_them = highest.select(
        "topic", f.explode(f.sequence(f.lit(0), "highest")).alias("partition")
    )
    means = messages.groupBy("topic").agg(f.count("*").alias("total")).join(highest, "topic")
    partitions = (
        all_of_them.join(loads, ["topic", "partition"], "left")
        .fillna(0, ["messages", "bytes"])
        .join(means, "topic")
        .withColumn("to_mean", f.col("messages") * (f.col("highest") + 1) / f.col("total"))
        .drop("total", "highest")
        .orderBy("topic", "partition")
    )
    totals = messages.groupBy("topic").agg(f.count("*").alias("total"))
    keys = (
        messages.where("key is not null")
        .groupBy("topic", "key")
        .agg(f.count("*").alias("messages"), f.sum(size).alias("bytes"))
        .join(totals, "topic")
        .withColumn("percent", 100 * f.col("messages") / f.col("total"))
        .drop("total")
        .orderBy(f.desc("messages"), "topic", "key")
        .limit(_TOP)
    )
    return Report(
        "skew",
        "Do some partitions or keys carry more than others?",
        [
            section_of(
                "Partitions", partitions, Bars(["topic", "partition"], "messages", "messages")
            ),
            section_of(
                "Largest keys",
                keys,
                Bars(["topic", "key"], "messages", "messages"),
                "No message has a key.",
            ),
        ],
        scope=scope_of(messages),
    )
