"""What an analysis found: tables for people and programs, and what to draw of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

ROWS_MAX = 1_000


class Bars(NamedTuple):
    """A chart of a table: a bar for each row, ``label`` columns beside it, ``value`` as its length.

    ``unit`` stands behind the numbers.
    """

    label: Sequence[str]
    value: str
    unit: str


@dataclass(frozen=True, slots=True)
class Section:
    """One table of a report."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    bars: Bars | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to one question. ``failed`` says that something is wrong with the data."""

    name: str
    question: str
    sections: Sequence[Section] = field(default=())
    failed: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        return {
            "report": self.name,
            "failed": self.failed,
            "sections": [
                {
                    "title": section.title,
                    "rows": [dict(zip(section.columns, row, strict=True)) for row in section.rows],
                }
                for section in self.sections
            ],
        }


def section_of(title: str, frame: DataFrame, bars: Bars | None = None) -> Section:
    """Return the first rows of a frame, which are few, as a section."""
    rows = [tuple(map(_plain, row)) for row in frame.limit(ROWS_MAX).collect()]
    return Section(title, frame.columns, rows, bars)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return round(value, 3) if isinstance(value, float) else value
