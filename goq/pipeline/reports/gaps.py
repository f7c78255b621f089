"""Offsets that an export should have and has not."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

_LOG = ["topic", "partition"]


def missing_offsets(messages: DataFrame, events: DataFrame, groups: DataFrame) -> DataFrame:
    """Return runs of offsets that no row has, though nothing says why.

    They lie between others, or between the bounds that ``groups`` names. Right is that offsets are
    missing where a frame is damaged, where compaction has been, and what retention deleted.

    Columns: topic, partition, start_offset, end_offset.
    """
    known = (
        messages.select(*_LOG, "offset")
        .union(events.where("event = 'CORRUPTED'").select(*_LOG, "offset"))
        .distinct()
    )
    bounds = groups.groupBy(*_LOG).agg(
        f.min("start_offset").alias("first"), f.max("end_offset").alias("end")
    )
    tops = known.groupBy(*_LOG).agg(f.max("offset").alias("top"))
    ends = (
        bounds.join(tops, _LOG, "left")
        .where("end > coalesce(top + 1, first)")
        .select(*_LOG, f.col("end").alias("offset"))
    )
    order = Window.partitionBy(*_LOG).orderBy("offset")
    runs = (
        known.union(ends)
        .join(bounds, _LOG, "left")
        .withColumn("start", f.coalesce(f.lag("offset").over(order) + 1, "first", "offset"))
    )
    return (
        runs.join(_rightly_gone(events, groups), _LOG, "left")
        .withColumn("start_offset", f.greatest("start", "gone_to"))
        .where("start_offset < offset")
        .select(*_LOG, "start_offset", f.col("offset").alias("end_offset"))
        .orderBy(*_LOG, "start_offset")
    )


def _rightly_gone(events: DataFrame, groups: DataFrame) -> DataFrame:
    """Return, by partition, the offset before which compaction and retention have been."""
    gone_to = f.when(f.col("event") == "COMPACTED", f.col("reason").cast("bigint")).otherwise(
        f.col("offset")
    )
    return (
        events.where("event in ('COMPACTED', 'TRIMMED')")
        .select(*_LOG, gone_to.alias("gone_to"))
        .union(groups.select(*_LOG, "start_offset"))
        .groupBy(*_LOG)
        .agg(f.max("gone_to").alias("gone_to"))
    )
