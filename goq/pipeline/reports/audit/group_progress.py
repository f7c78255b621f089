"""The progress of partitions and their groups: a few rows, collected before the audit.

Times are in microseconds since 1970.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

SLACK_US = 60_000_000
"""How far the clocks of node and exporter may differ."""


class Row(Protocol):
    """A row whose columns have names: one of Spark, or a dictionary."""

    def __getitem__(self, name: str, /) -> Any:
        """Return the value of a column."""
        ...


class GroupRow(NamedTuple):
    """A row of the table ``groups``."""

    time_us: int
    start_offset: int
    end_offset: int
    cursor: int
    leased: int
    unfinished: int
    """Messages that are not done, with those not due yet."""


class Restart(NamedTuple):
    """A group's last reset, or its last deletion before it was used again.

    The group gets nothing from ``end_offset`` on; None for no end.
    """

    sequence: int
    offset: int
    time_us: int
    is_gone: bool
    end_offset: int | None = None


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


class EventSummary(NamedTuple):
    """A summary of events for the progress of partitions: a few rows.

    ``logs`` have topic, partition, group (None for events about all), rows, first_sequence and
    last_us; ``ends`` topic, partition and gone_to; ``restarts`` topic, partition, group and last,
    the fields of a :class:`Restart`.
    """

    logs: Sequence[Row] = ()
    ends: Sequence[Row] = ()
    restarts: Sequence[Row] = ()


def progress_of(
    messages: Iterable[Row], events: EventSummary, group_rows: Iterable[Row]
) -> TableProgress:
    """Return where everything stands.

    ``messages`` have topic, partition and rows; ``group_rows`` topic, partition, group,
    least_start, most_start, most_end and last, the fields of a :class:`GroupRow`.
    """
    by_place: dict[tuple[str, int], LogProgress] = {}
    numbers: dict[str, int] = {}

    def log_of(row: Row) -> LogProgress:
        place = (row["topic"], row["partition"])
        return by_place.setdefault(place, LogProgress(len(by_place), *place))

    def group_of(row: Row) -> GroupProgress:
        name = row["group"]
        number = numbers.setdefault(name, len(numbers))
        return log_of(row).groups.setdefault(number, GroupProgress(number, name))

    message_count = 0
    for row in messages:
        log_of(row)
        message_count += row["rows"]
    event_count = 0
    for row in events.logs:
        log = log_of(row)
        if row["group"] is not None:
            group_of(row)
        log.first_sequence = _least(log.first_sequence, row["first_sequence"])
        log.last_event_us = _most(log.last_event_us, row["last_us"])
        event_count += row["rows"]
    for row in events.ends:
        log = log_of(row)
        log.gone_to = max(log.gone_to, row["gone_to"])
    for row in events.restarts:
        group, found = group_of(row), Restart(*row["last"])
        if group.restart is None or group.restart.sequence < found.sequence:
            group.restart = found
    read: dict[str, int] = defaultdict(int)
    for row in group_rows:
        log, group = log_of(row), group_of(row)
        log.gone_to = max(log.gone_to, row["most_start"])
        log.first_offset = _least(log.first_offset, row["least_start"])
        log.end_offset = _most(log.end_offset, row["most_end"])
        last = GroupRow(*row["last"])
        if group.row is None or group.row.time_us < last.time_us:
            group.row = last
        read[log.topic] = max(read[log.topic], last.time_us)
    for log in by_place.values():
        log.read_us = read.get(log.topic)
        for group in log.groups.values():
            if group.row is not None and group.row.time_us == log.read_us:
                group.newest_row = group.row
    logs = {log.number: log for log in by_place.values()}
    return TableProgress(logs, numbers, message_count, event_count)


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _most(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
