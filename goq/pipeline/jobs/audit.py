"""Is every message accounted for? The invariant of the whole system, checked from outside.

For each group and each message that the group has taken (all before its cursor) there must be an
event that says what became of it. What a group has not come to yet is waiting. A message of which
nothing of this holds was lost on the way: there must be none.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from goq.pipeline.jobs.report import Bars, Report, section_of

_SHOWN = 100
_FATES = (
    ("acknowledged", ("ACKNOWLEDGED",)),
    ("dead", ("DEAD_LETTERED",)),
    ("expired", ("SKIPPED", "DROPPED")),
    ("cancelled", ("CANCELLED", "REDRIVEN")),
    ("damaged", ("CORRUPTED",)),
)
_UNACCOUNTED = ("unaccounted", "missing")


def audit(messages: DataFrame, events: DataFrame, groups: DataFrame) -> Report:
    """Return what became of every message, by group; failed if any is not accounted for."""
    fates = fates_of(messages, events, groups)
    counts = (
        fates.groupBy("topic", "group", "fate")
        .agg(f.count("*").alias("messages"))
        .orderBy("topic", "group", "fate")
    )
    gaps = missing_offsets(messages, events)
    lost = fates.where(f.col("fate").isin(*_UNACCOUNTED)).select("message_id", "group")
    summary = section_of("What became of them", counts, Bars(("group", "fate"), "messages", ""))
    unaccounted = section_of(
        "Messages that nothing is known of", lost.orderBy("message_id", "group").limit(_SHOWN)
    )
    holes = section_of("Offsets that are in no file", gaps.limit(_SHOWN))
    failed = bool(unaccounted.rows or holes.rows)
    return Report(
        "audit",
        "Is every published message accounted for?",
        [summary, unaccounted, holes],
        failed=failed,
    )


def fates_of(messages: DataFrame, events: DataFrame, groups: DataFrame) -> DataFrame:
    """Return a row for each message and group, with its ``fate``.

    Columns: topic, partition, offset, message_id, group, fate.
    """
    newest = Window.partitionBy("topic", "group", "partition").orderBy(f.desc("time"))
    standing = (
        groups.withColumn("rank", f.row_number().over(newest))
        .where("rank = 1")
        .select("topic", "group", "partition", "cursor", "start_offset", "end_offset")
    )
    about = events.groupBy("message_id", "group").agg(
        f.collect_set("event").alias("events"), f.max("time").alias("last")
    )
    of_group = about.where("group is not null")
    of_all = about.where("group is null").select("message_id", f.col("events").alias("of_all"))
    passed = (
        events.where("event = 'RESET'")
        .groupBy("topic", "group", "partition")
        .agg(f.max("offset").alias("reset_to"))
    )
    told = (
        messages.select("topic", "partition", "offset", "message_id")
        .join(standing, ["topic", "partition"])
        .where("offset < end_offset")
        .join(of_group, ["message_id", "group"], "left")
        .join(of_all, "message_id", "left")
        .join(passed, ["topic", "group", "partition"], "left")
    )
    none = f.array().cast("array<string>")
    seen = f.concat(f.coalesce("events", none), f.coalesce("of_all", none))
    fate = f.when(f.lit(False), f.lit(""))
    for name, kinds in _FATES:
        fate = fate.when(f.arrays_overlap(seen, f.array(*map(f.lit, kinds))), f.lit(name))
    fate = (
        fate.when(f.array_contains(seen, "DELIVERED"), f.lit("outstanding"))
        .when(f.array_contains(seen, "EXPIRED"), f.lit("expired"))
        .when(f.col("offset") >= f.col("cursor"), f.lit("waiting"))
        .when(f.col("offset") < f.col("reset_to"), f.lit("passed over"))
        .when(f.col("offset") < f.col("start_offset"), f.lit("deleted"))
        .otherwise(f.lit("unaccounted"))
    )
    return told.select("topic", "partition", "offset", "message_id", "group", fate.alias("fate"))


def missing_offsets(messages: DataFrame, events: DataFrame) -> DataFrame:
    """Return runs of offsets between others that no row has and no event calls damaged.

    Where compaction has been, offsets are missing rightly.

    Columns: topic, partition, start_offset, end_offset.
    """
    known = messages.select("topic", "partition", "offset").union(
        events.where("event = 'CORRUPTED'").select("topic", "partition", "offset")
    )
    compacted = (
        events.where("event = 'COMPACTED'")
        .groupBy("topic", "partition")
        .agg(f.max(f.col("reason").cast("bigint")).alias("compacted_to"))
    )
    order = Window.partitionBy("topic", "partition").orderBy("offset")
    before = f.lag("offset").over(order)
    return (
        known.distinct()
        .withColumn("start_offset", before + 1)
        .where("start_offset < offset")
        .join(compacted, ["topic", "partition"], "left")
        .where("compacted_to is null or offset > compacted_to")
        .select("topic", "partition", "start_offset", f.col("offset").alias("end_offset"))
        .orderBy("topic", "partition", "start_offset")
    )
