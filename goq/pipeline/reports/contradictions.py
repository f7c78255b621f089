"""Contradictions between the rows of an export: what no run of a node can write.

A row may be missing because it was written after a table was read, or trimmed. So each check
compares only rows that are older than the groups' rows by :data:`SLACK`, or that are of one log.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from goq.delivery.events.event import SEQUENCE_BITS

SLACK = "INTERVAL 1 MINUTE"
"""How far the clocks of node and exporter may differ."""

_LOG = ["topic", "partition"]
_PLACE = ["topic", "group", "partition"]
_NO_ROW = "a group without its row in groups"
_LEASED = ("DELIVERED", "EXTENDED")
_ENDED = ("ACKNOWLEDGED", "DEAD_LETTERED", "DROPPED")


def restarts(events: DataFrame) -> DataFrame:
    """Return the last restart of each group: a reset, or a deletion before it was used again."""
    is_gone = f.col("event") == "GROUP_DELETED"
    offset = f.when(is_gone, f.lit(0)).otherwise(f.col("offset"))
    return (
        events.where("event in ('RESET', 'GROUP_DELETED')")
        .groupBy(*_PLACE)
        .agg(
            f.max("sequence").alias("restart_sequence"),
            f.max_by(offset, "sequence").alias("restart_offset"),
            f.max_by("time", "sequence").alias("restarted"),
            f.max_by(is_gone, "sequence").alias("is_gone"),
        )
    )


def contradictions(messages: DataFrame, events: DataFrame, groups: DataFrame) -> DataFrame:
    """Return a row for each contradiction; ``offset`` is null for one of a whole partition.

    Columns: fault, topic, group, partition, offset.
    """
    lives = _lives(events).join(_newest(groups), _PLACE, "left")
    read = f.max("time").over(Window.partitionBy("topic"))
    lives = lives.withColumn("read", read).withColumn("is_held", _is_held())
    held = f.count(f.when(f.col("is_held"), 1)).over(Window.partitionBy(*_PLACE))
    faults = f.explode(f.array_compact(f.array(*_faults())))
    of_lives = (
        lives.withColumn("held", held)
        .select(faults.alias("fault"), "topic", "group", "partition", "offset")
        .withColumn("offset", f.when(f.col("fault") != _NO_ROW, f.col("offset")))
        .distinct()
    )
    twice = [
        _twice(messages, "offset").select(
            f.lit("a message is there twice").alias("fault"),
            "topic",
            f.lit(None).cast("string").alias("group"),
            "partition",
            "offset",
        ),
        _twice(events, "sequence", "offset", "event", "group").select(
            f.lit("an event is there twice").alias("fault"), "topic", "group", "partition", "offset"
        ),
    ]
    return of_lives.union(twice[0]).union(twice[1])


def _faults() -> Iterator[Column]:
    """Yield the fault of a message and group, or null, for each kind of fault."""
    is_stuck = (
        (f.col("offset") == f.col("cursor"))
        & (f.col("offset") >= f.col("start_offset"))
        & f.col("last_event.event").isin(*_ENDED)
        & _is_settled()
    )
    begun_before = f.col("first_time") + f.expr(SLACK)
    checks = {
        "an ack without its delivery": f.size("unknown_leases") > 0,
        "acknowledged twice": f.col("acks") > 1,
        "delivered after its ack": f.col("last_delivered") > f.col("first_ack"),
        "the cursor is stuck at a message that is done": is_stuck,
        "an event of a message that does not exist": (f.col("offset") >= f.col("end_offset"))
        & (begun_before < f.col("time")),
        _NO_ROW: f.col("time").isNull()
        & (begun_before < f.col("read"))
        & ~f.coalesce("is_gone", f.lit(False)),
        "the group lacks a lease that never ended": f.col("is_held")
        & (f.col("held") > f.col("leased")),
    }
    for fault, is_there in checks.items():
        yield f.when(is_there, fault)


def _is_settled() -> Column:
    """Whether the last event, and the group's last restart, are older than the group's row."""
    restarted = f.col("restarted") + f.expr(SLACK)
    is_old = f.col("last_event.time") + f.expr(SLACK) < f.col("time")
    return is_old & (restarted.isNull() | (restarted < f.col("time")))


def _is_held() -> Column:
    """Whether a lease has no end in the events."""
    is_there = ~f.col("is_cancelled") & (f.col("offset") >= f.col("start_offset"))
    return f.coalesce(
        f.col("last_event.event").isin(*_LEASED) & is_there & _is_settled(), f.lit(False)
    )


def _newest(groups: DataFrame) -> DataFrame:
    """Return the rows of each topic's last export."""
    last = f.max("time").over(Window.partitionBy("topic"))
    return groups.withColumn("last", last).where("time = last")


def _twice(rows: DataFrame, *by: str) -> DataFrame:
    return rows.groupBy(*_LOG, *by).agg(f.count("*").alias("times")).where("times > 1")


def _lives(events: DataFrame) -> DataFrame:
    """Return, by message and group, what its events since the group's last restart say."""
    firsts = events.groupBy(*_LOG).agg(f.min("sequence").alias("first_sequence"))
    is_since = f.col("sequence") > f.coalesce("restart_sequence", f.lit(-1))
    is_ack, is_delivery = f.col("event") == "ACKNOWLEDGED", f.col("event") == "DELIVERED"
    delivering = f.col("lease").bitwiseAND(2**SEQUENCE_BITS - 1)  # the sequence of the delivery
    is_known = delivering >= f.col("first_sequence")
    cancelled = events.where("event = 'CANCELLED'").select(*_LOG, "offset").distinct()
    return (
        events.where("group is not null and event not in ('RESET', 'GROUP_DELETED')")
        .join(restarts(events).drop("restart_offset"), _PLACE, "left")
        .join(firsts, _LOG)
        .join(cancelled.withColumn("cancelled", f.lit(True)), [*_LOG, "offset"], "left")
        .groupBy(*_PLACE, "offset")
        .agg(
            f.count(f.when(is_since & is_ack, 1)).alias("acks"),
            f.min(f.when(is_since & is_ack, f.col("sequence"))).alias("first_ack"),
            f.max(f.when(is_since & is_delivery, f.col("sequence"))).alias("last_delivered"),
            f.array_except(
                f.collect_set(f.when(is_ack & is_known, f.col("lease"))),
                f.collect_set(f.when(is_delivery, f.col("lease"))),
            ).alias("unknown_leases"),
            f.max_by(
                f.when(is_since, f.struct("event", f.col("time"))),
                f.when(is_since, f.col("sequence")),
            ).alias("last_event"),
            f.max("restarted").alias("restarted"),
            f.max("is_gone").alias("is_gone"),
            f.min("time").alias("first_time"),
            f.coalesce(f.max("cancelled"), f.lit(False)).alias("is_cancelled"),
        )
    )
