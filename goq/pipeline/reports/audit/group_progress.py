"""The progress of partitions and their groups: a few rows, collected before the audit.

Times are in microseconds since 1970.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

SLACK_US = 60_000_000
"""How far the clocks of node and exporter may differ."""

_LOG = ["topic", "partition"]


class GroupRow(NamedTuple):
    """A row of the table ``groups``."""

    time_us: int
    start_offset: int
    end_offset: int
    cursor: int
    leased: int


class Restart(NamedTuple):
    """A group's last reset, or its last deletion before it was used again."""

    sequence: int
    offset: int
    time_us: int
    is_gone: bool


@dataclass(slots=True)
class GroupProgress:
    """A group in a partition: its last row, that of the topic's last export, its last restart."""

    number: int
    name: str
    row: GroupRow | None = None
    newest_row: GroupRow | None = None
    restart: Restart | None = None

    def is_there(self) -> bool:
        """Whether the group has a row, and was not deleted after it."""
        if self.row is None:
            return False
        gone = self.restart is not None and self.restart.is_gone
        return not gone or (self.restart is not None and self.row.time_us > self.restart.time_us)


@dataclass(slots=True)
class LogProgress:
    """A partition: its groups by number, and what its events and the groups' rows say of it.

    ``gone_to`` is the offset up to which compaction and retention have worked, ``read_us`` when the
    topic's groups were last read. The rest is None for a log without events or messages.
    """

    number: int
    topic: str
    partition: int
    groups: dict[int, GroupProgress] = field(default_factory=dict)
    first_sequence: int | None = None
    last_event_us: int | None = None
    gone_to: int = 0
    first_offset: int | None = None
    end_offset: int | None = None
    read_us: int | None = None


class TableProgress(NamedTuple):
    """All partitions by number, the numbers of groups' names, and how many rows the tables have."""

    logs: dict[int, LogProgress]
    group_numbers: dict[str, int]
    message_count: int
    event_count: int


def progress_of(messages: DataFrame, events: DataFrame, groups: DataFrame) -> TableProgress:
    """Return where everything stands. Reads each table once, and few of its columns."""
    by_place: dict[tuple[str, int], LogProgress] = {}
    numbers: dict[str, int] = {}

    def log_of(row: Any) -> LogProgress:
        place = (row["topic"], row["partition"])
        return by_place.setdefault(place, LogProgress(len(by_place), *place))

    def group_of(row: Any) -> GroupProgress:
        name = row["group"]
        number = numbers.setdefault(name, len(numbers))
        return log_of(row).groups.setdefault(number, GroupProgress(number, name))

    message_count = 0
    for row in _messages(messages):
        log_of(row)
        message_count += row["rows"]
    event_count = 0
    for row in _events(events):
        log = log_of(row)
        if row["group"] is not None:
            group_of(row)
        log.first_sequence = _least(log.first_sequence, row["first_sequence"])
        log.last_event_us = _most(log.last_event_us, row["last_us"])
        event_count += row["rows"]
    for row in _ends_of_space(events):
        log = log_of(row)
        log.gone_to = max(log.gone_to, row["gone_to"])
    for row in _restarts(events):
        found = row["last"]
        group_of(row).restart = Restart(*found)
    read: dict[str, int] = defaultdict(int)
    for row in _group_rows(groups):
        log, group = log_of(row), group_of(row)
        log.gone_to = max(log.gone_to, row["most_start"])
        log.first_offset = _least(log.first_offset, row["least_start"])
        log.end_offset = _most(log.end_offset, row["most_end"])
        group.row = GroupRow(*row["last"])
        read[log.topic] = max(read[log.topic], group.row.time_us)
    for log in by_place.values():
        log.read_us = read.get(log.topic)
        for group in log.groups.values():
            if group.row is not None and group.row.time_us == log.read_us:
                group.newest_row = group.row
    logs = {log.number: log for log in by_place.values()}
    return TableProgress(logs, numbers, message_count, event_count)


def _messages(messages: DataFrame) -> list[Any]:
    return messages.groupBy(*_LOG).agg(f.count("*").alias("rows")).collect()


def _events(events: DataFrame) -> list[Any]:
    found = events.groupBy(*_LOG, "group").agg(
        f.count("*").alias("rows"),
        f.min("sequence").alias("first_sequence"),
        f.max(f.unix_micros("time")).alias("last_us"),
    )
    return found.collect()


def _ends_of_space(events: DataFrame) -> list[Any]:
    gone_to = f.when(f.col("event") == "COMPACTED", f.col("reason").cast("bigint")).otherwise(
        f.col("offset")
    )
    found = events.where("event in ('COMPACTED', 'TRIMMED')").groupBy(*_LOG)
    return found.agg(f.max(gone_to).alias("gone_to")).collect()


def _restarts(events: DataFrame) -> list[Any]:
    is_gone = f.col("event") == "GROUP_DELETED"
    offset = f.when(is_gone, f.lit(0)).otherwise(f.col("offset"))
    last = f.struct(
        f.col("sequence"),
        offset.cast("bigint").alias("offset"),
        f.unix_micros("time").alias("time_us"),
        is_gone.alias("is_gone"),
    )
    found = events.where("event in ('RESET', 'GROUP_DELETED')").groupBy(*_LOG, "group")
    return found.agg(f.max_by(last, "sequence").alias("last")).collect()


def _group_rows(groups: DataFrame) -> list[Any]:
    last = f.struct(
        f.unix_micros("time").alias("time_us"),
        *("start_offset", "end_offset", "cursor", "leased"),
    )
    found = groups.groupBy(*_LOG, "group").agg(
        f.min("start_offset").alias("least_start"),
        f.max("start_offset").alias("most_start"),
        f.max("end_offset").alias("most_end"),
        f.max_by(last, "time").alias("last"),
    )
    return found.collect()


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _most(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
