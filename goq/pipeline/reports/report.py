"""What an analysis found: tables for people and programs, and what to draw of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

ROWS_MAX = 1_000


class Bars(NamedTuple):
    """A chart of a table: a bar for each row, ``label`` columns beside it, ``value`` its length.

    ``axis`` says what the length is.
    """

    label: Sequence[str]
    value: str
    axis: str


class Spread(NamedTuple):
    """A chart of quantiles: a line for each row from ``p50_ms`` to ``max_ms``, on a log scale."""

    label: Sequence[str]
    axis: str


class Course(NamedTuple):
    """A chart of how columns in milliseconds change with the times in another one.

    What differs in the ``panel`` columns is drawn apart.
    """

    panel: Sequence[str]
    time: str
    values: Sequence[str]
    axis: str


Chart = Bars | Spread | Course


@dataclass(frozen=True, slots=True)
class Section:
    """One table of a report. ``nothing`` is what to say where it has no rows.

    ``is_cut`` says that there were more rows than :data:`ROWS_MAX`.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    chart: Chart | None = None
    nothing: str = "Nothing."
    is_cut: bool = False


class Scope(NamedTuple):
    """What a report speaks of; times are null where there are no messages."""

    topics: Sequence[str]
    messages: int
    first: str | None
    last: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to one question. ``failed`` says that something is wrong with the data.

    ``verdict`` is the answer in a sentence, where it can be given in one.
    """

    name: str
    question: str
    sections: Sequence[Section] = field(default=())
    failed: bool = False
    verdict: str = ""
    scope: Scope | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        return {
            "report": self.name,
            "failed": self.failed,
            **({} if self.scope is None else self.scope._asdict()),
            "sections": [
                {
                    "title": section.title,
                    "rows": [dict(zip(section.columns, row, strict=True)) for row in section.rows],
                    "complete": not section.is_cut,
                }
                for section in self.sections
            ],
        }


def section_of(
    title: str, frame: DataFrame, chart: Chart | None = None, nothing: str = "Nothing."
) -> Section:
    """Return the first rows of a frame, which are few, as a section."""
    rows = [tuple(map(_plain, row)) for row in frame.limit(ROWS_MAX + 1).collect()]
    return Section(title, frame.columns, rows[:ROWS_MAX], chart, nothing, len(rows) > ROWS_MAX)


def scope_of(messages: DataFrame) -> Scope:
    """Return which messages a report is about."""
    found = (
        messages.groupBy("topic")
        .agg(f.count("*").alias("n"), f.min("timestamp").alias("a"), f.max("timestamp").alias("b"))
        .orderBy("topic")
        .collect()
    )
    return Scope(
        [row.topic for row in found],
        sum(row.n for row in found),
        min((_plain(row.a) for row in found), default=None),
        max((_plain(row.b) for row in found), default=None),
    )


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: times in UTC, floats to a thousandth."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, datetime):  # Spark gives them in the zone of this process, without saying
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return round(value, 3) if isinstance(value, float) else value
