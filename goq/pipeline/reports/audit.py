"""Audit: every published message is accounted for, in each group.

Each message before a group's cursor must have an event with its outcome, and each lease that is
over must have an end. Messages behind the cursor are waiting. Any other message was lost: there
must be none. Rows must not contradict each other, and the files must be those that were exported.

The tables are of different times: ``groups`` is read first, then messages, then events. So a
cursor never refers to messages or events that the export lacks.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from goq.pipeline.reports.contradictions import SLACK, contradictions, restarts
from goq.pipeline.reports.report import Bars, Report, Section, scope_of, section_of

_LOG = ["topic", "partition"]


def missing_offsets(messages: DataFrame, events: DataFrame, groups: DataFrame) -> DataFrame:
    """Return ranges of offsets that no row has, without a known cause.

    They lie between other offsets, or within the bounds in ``groups``. Known causes are damaged
    frames, compaction and retention.

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
    """Return, by partition, the offset up to which compaction and retention have worked."""
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


_SHOWN = 100
_FILES = ("file", "fault")
_PLACE = ["topic", "group", "partition"]
_FATES = (
    ("acknowledged", ("ACKNOWLEDGED",)),
    ("dead", ("DEAD_LETTERED",)),
    ("given up", ("DROPPED",)),
    ("expired", ("TTL",)),
    ("skipped", ("SKIPPED",)),
    ("redriven", ("REDRIVEN",)),
    ("cancelled", ("CANCELLED",)),
    ("damaged", ("CORRUPTED",)),
)
_IN_HAND = ("DELIVERED", "EXTENDED", "NACKED", "EXPIRED")
_UNACCOUNTED = ("unaccounted", "overdue")


def audit(
    messages: DataFrame,
    events: DataFrame,
    groups: DataFrame,
    changed_files: Sequence[tuple[str, str]] = (),
) -> Report:
    """Report the outcome of every message, by group; failed if one is not accounted for.

    Failed, too, if rows contradict each other, or there are ``changed_files``.
    """
    fates = fates_of(messages, events, groups).cache()
    counts = (
        fates.groupBy("topic", "group", "fate")
        .agg(f.count("*").alias("messages"))
        .orderBy("topic", "group", "fate")
    )
    lost = fates.where(f.col("fate").isin(*_UNACCOUNTED))
    gaps = missing_offsets(messages, events, groups).cache()
    faults = contradictions(messages, events, groups).cache()
    fault_count = faults.count()
    lost_count = lost.select("message_id").distinct().count()
    row = gaps.agg(f.sum(f.col("end_offset") - f.col("start_offset"))).first()
    missing_count = (row and row[0]) or 0
    sections = [
        section_of(
            "What became of them",
            counts,
            Bars(["topic", "group", "fate"], "messages", "messages"),
            "There are no messages.",
        ),
        section_of(
            "Messages that nothing is known of",
            lost.select("message_id", "group", "fate").orderBy("message_id", "group").limit(_SHOWN),
            nothing="None.",
        ),
        section_of("Offsets that are in no file", gaps.limit(_SHOWN), nothing="None."),
        section_of(
            "Rows that contradict each other",
            faults.orderBy(*faults.columns).limit(_SHOWN),
            nothing="None.",
        ),
        Section(
            "Files that are not as exported", _FILES, list(changed_files[:_SHOWN]), nothing="None."
        ),
    ]
    fates.unpersist()
    gaps.unpersist()
    faults.unpersist()
    return Report(
        "audit",
        "Is every published message accounted for?",
        sections,
        failed=bool(lost_count or missing_count or fault_count or changed_files),
        verdict=_verdict(lost_count, missing_count, fault_count, len(changed_files)),
        scope=scope_of(messages),
    )


def _verdict(lost: int, missing: int, faults: int, files: int) -> str:
    if not (lost or missing or faults or files):
        return "Yes: every message is accounted for."
    said = [f"of {lost:,} messages nothing is known, and {missing:,} offsets are in no file"]
    if faults:
        said.append(f"{faults:,} rows contradict others")
    if files:
        said.append(f"{files:,} files are not as exported")
    return f"No: {'; '.join(said)}."


def fates_of(messages: DataFrame, events: DataFrame, groups: DataFrame) -> DataFrame:
    """Return a row for each message and group, with its ``fate``.

    Columns: topic, partition, offset, message_id, group, fate. A message of a topic without groups
    has one row, without a group.
    """
    told = (
        messages.select("topic", "partition", "offset", "message_id")
        .join(_standing(events, groups), ["topic", "partition"], "left")
        .where("end_offset is null or offset < end_offset")
        .join(_of_groups(events), ["message_id", "group"], "left")
        .join(_of_all(events), "message_id", "left")
    )
    is_before = f.col("offset") < f.col("restart_offset")
    none = f.array().cast("array<string>")
    seen = f.concat(
        f.coalesce("since", none),
        f.when(is_before, f.coalesce("before", none)).otherwise(none),
        f.coalesce("of_all", none),
    )
    fate = f.when(f.col("group").isNull(), "no group")
    for name, kinds in _FATES:
        fate = fate.when(f.arrays_overlap(seen, f.array(*map(f.lit, kinds))), name)
    is_deleted = f.col("offset") < f.col("start_offset")
    fate = (
        fate.when(is_before & f.col("in_hand").isNull(), "passed over")
        .when(f.col("in_hand").isNotNull() & is_deleted, "deleted")
        .when(_is_overdue(), "overdue")
        .when(f.col("in_hand").isNotNull(), "outstanding")
        .when(f.col("offset") >= f.col("cursor"), "waiting")
        .when(f.col("time") < f.col("restarted") + f.expr(SLACK), "waiting")
        .when(is_deleted, "deleted")
        .otherwise("unaccounted")
    )
    return told.select("topic", "partition", "offset", "message_id", "group", fate.alias("fate"))


def _is_overdue() -> Column:
    """Whether a lease ended well before the group was read, and the log or the group goes on."""
    is_leased = f.col("in_hand.event").isin("DELIVERED", "EXTENDED")
    ended = f.col("in_hand.due") + f.expr(SLACK)
    is_behind = (ended < f.col("log_time")) | (f.col("leased") == 0)
    return is_leased & (ended < f.col("time")) & is_behind


def _standing(events: DataFrame, groups: DataFrame) -> DataFrame:
    """Return the latest progress of each existing group, by partition.

    Columns besides those of ``groups``: offset and time of its last reset, if any, and the time of
    the partition's last event.
    """
    newest = Window.partitionBy(*_PLACE).orderBy(f.desc("time"))
    ends = events.groupBy("topic", "partition").agg(f.max("time").alias("log_time"))
    begun = restarts(events).drop("restart_sequence")
    return (
        groups.withColumn("rank", f.row_number().over(newest))
        .where("rank = 1")
        .select(*_PLACE, "time", "cursor", "start_offset", "end_offset", "leased")
        .join(ends, ["topic", "partition"], "left")
        .join(begun, _PLACE, "left")
        .where("is_gone is null or not is_gone or time > restarted")
        .drop("is_gone")
    )


def _of_groups(events: DataFrame) -> DataFrame:
    """Return, by message and group, the kinds of events since the group's last restart, and before.

    ``in_hand`` is the last event since then that decides whether the message is leased. An EXPIRED
    without a lease is called TTL: it ends the message, not a lease.
    """
    is_since = f.col("sequence") > f.coalesce("restart_sequence", f.lit(-1))
    kind = f.when((f.col("event") == "EXPIRED") & f.col("lease").isNull(), "TTL").otherwise(
        f.col("event")
    )
    in_hand = f.when(is_since & kind.isin(*_IN_HAND), f.col("sequence"))
    return (
        events.where("group is not null")
        .join(restarts(events).select(*_PLACE, "restart_sequence"), _PLACE, "left")
        .groupBy("message_id", "group")
        .agg(
            f.collect_set(f.when(is_since, kind)).alias("since"),
            f.collect_set(f.when(~is_since, kind)).alias("before"),
            f.max_by(f.struct("event", "due"), in_hand).alias("in_hand"),
        )
    )


def _of_all(events: DataFrame) -> DataFrame:
    """Return, by message, the kinds of events that apply to every group."""
    found = events.where("group is null").groupBy("message_id")
    return found.agg(f.collect_set("event").alias("of_all"))
