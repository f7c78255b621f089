"""The result of an analysis: sections with tables, charts, and values with units.

Programs get values in the units of the column names. People get ``p50_ms`` as ``p50`` with
``1.25 s`` below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from goq.units import round_size_bytes

ROWS_MAX = 1_000


class Bars(NamedTuple):
    """A chart of a table: a bar for each row, ``label`` columns beside it, ``value`` its length.

    ``axis`` is the name of the length.
    """

    label: Sequence[str]
    value: str
    axis: str


class Spread(NamedTuple):
    """A chart of quantiles: a line for each row from ``p50_ms`` to ``max_ms``, on a log scale."""

    label: Sequence[str]
    axis: str


class Course(NamedTuple):
    """A chart of columns over the times in another column.

    Each combination of the ``panel`` columns has its own panel. Columns in milliseconds have a
    logarithmic axis.
    """

    panel: Sequence[str]
    time: str
    values: Sequence[str]
    axis: str


Chart = Bars | Spread | Course


@dataclass(frozen=True, slots=True)
class Section:
    """One table of a report. ``nothing`` is the text for a table without rows.

    ``is_cut``: the table had more than :data:`ROWS_MAX` rows.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    chart: Chart | None = None
    nothing: str = "Nothing."
    is_cut: bool = False


class Scope(NamedTuple):
    """The messages that a report covers; times are null if there are none."""

    topics: Sequence[str]
    messages: int
    first: str | None
    last: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to one question. ``failed``: something is wrong with the data.

    ``verdict`` is the answer in one sentence, if it has one.
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


def with_lane_names(report: Report, names: Mapping[str, Sequence[str]]) -> Report:
    """Return a report that calls lanes by their names; ``names`` are those of each topic."""
    return replace(report, sections=[_named(section, names) for section in report.sections])


def _named(section: Section, names: Mapping[str, Sequence[str]]) -> Section:
    columns = list(section.columns)
    if "lane" not in columns or "topic" not in columns:
        return section
    topic, lane = columns.index("topic"), columns.index("lane")

    def named(row: Sequence[Any]) -> tuple[Any, ...]:
        of_topic = names.get(row[topic], ())
        name = of_topic[row[lane]] if row[lane] < len(of_topic) else row[lane]
        return (*row[:lane], name, *row[lane + 1 :])

    return replace(section, rows=[named(row) for row in section.rows])


def section_of(
    title: str, frame: DataFrame, chart: Chart | None = None, nothing: str = "Nothing."
) -> Section:
    """Return the first rows of a small frame as a section."""
    rows = [tuple(map(_plain, row)) for row in frame.limit(ROWS_MAX + 1).collect()]
    return Section(title, frame.columns, rows[:ROWS_MAX], chart, nothing, len(rows) > ROWS_MAX)


def scope_of(messages: DataFrame) -> Scope:
    """Return the scope of the messages of a frame."""
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
    """Return a value for JSON: times in UTC, floats to a thousandth."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, datetime):  # naive, in the zone of this process
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return round(value, 3) if isinstance(value, float) else value


TEXT_MAX = 40
_MINUTES, _SECONDS = slice(5, 16), slice(5, 19)  # of a full time: the scope line has the year
_NAMES = {
    "to_mean": "to mean",
    "percent": "share",
    "again_percent": "again",
    "dead_percent": "dead",
    "over_slo_percent": "over SLO",
}
_NUMBERED = ("lane", "partition")


def headings(columns: tuple[str, ...] | list[str]) -> list[str]:
    """Return the headings of columns; two that would be equal keep their unit."""
    found = [_NAMES.get(name, name.removesuffix("_ms").replace("_", " ")) for name in columns]
    return [
        f"{shown} %" if found.count(shown) > 1 and name.endswith("_percent") else shown
        for name, shown in zip(columns, found, strict=True)
    ]


def is_number(column: str, value: Any) -> bool:
    """Whether a value is right-aligned in its column."""
    return isinstance(value, int | float) and not isinstance(value, bool) and column != "lane"


def shown(column: str, value: Any, text_max: int = TEXT_MAX) -> str:
    """Return a value as text, shortened to a number of characters."""
    if value is None or value == "":
        return "-"
    if column == "time":
        part = _MINUTES if str(value)[16:19] == ":00" else _SECONDS
        return str(value)[part].replace("T", " ")
    if isinstance(value, str):
        return shortened(value, text_max)
    if column.endswith("_ms"):
        return duration(value)
    if column.endswith("percent"):
        return f"{value:.1f} %" if value >= 1 else f"{value:.2g} %"
    if column == "bytes":
        return round_size_bytes(value)
    if column == "to_mean":
        return f"{value:.2f}"
    return f"{value:,.12g}"


def label(column: str, value: Any) -> str:
    """Return a value as the label of a bar, with its unit."""
    if column in _NUMBERED:
        return f"{column} {value}"
    if column == "tenant" and value is None:
        return "no tenant"
    return str(value) if isinstance(value, str) and value else shown(column, value)


def shortened(text: str, characters_max: int) -> str:
    """Return a text without control characters; the middle of a long one is cut out."""
    text = "".join(c if c.isprintable() else "·" for c in text)
    if len(text) <= characters_max:
        return text
    tail = (characters_max - 1) // 2
    return f"{text[: characters_max - 1 - tail]}…{text[len(text) - tail :]}"


def duration(value_ms: float) -> str:
    """Return milliseconds in a fitting unit, to three digits or two units."""
    if value_ms < 0:
        return f"-{duration(-value_ms)}"
    if value_ms < 999.5:
        return f"{value_ms:.3g} ms"
    if value_ms < 59_950:
        return f"{value_ms / 1000:.3g} s"
    for name, size_ms, small, small_ms in (
        ("m", 60_000, "s", 1000),
        ("h", 3_600_000, "m", 60_000),
        ("d", 86_400_000, "h", 3_600_000),
    ):
        smalls = round(value_ms / small_ms)
        whole, rest = divmod(smalls, size_ms // small_ms)
        if whole < {"m": 60, "h": 24}.get(name, smalls + 1):
            return f"{whole:,}{name}{rest}{small}" if rest else f"{whole:,}{name}"
    raise AssertionError(value_ms)


def span(first: str, last: str) -> str:
    """Return a span of time, both ends as RFC 3339 in UTC."""
    begin, end = (text[:19].replace("T", " ") for text in (first, last))
    if begin == end:
        return f"{begin} UTC"
    return f"{begin} to {end[11:] if begin[:10] == end[:10] else end} UTC"
