"""Charts of a report's tables as SVG: no script, no font, no external file.

Colours are style classes. Differences show in shape and position too, never in colour alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

from goq.pipeline.reports.html.axes import (
    STYLE,
    VALUE_WIDTH,
    WIDTH,
    Axis,
    grid,
    linear,
    logarithmic_ms,
    text_at,
)
from goq.pipeline.reports.html.small_multiples import PANELS_MAX, draw_course, panels_of
from goq.pipeline.reports.report import (
    Bars,
    Course,
    Section,
    Spread,
    duration,
    label,
    shortened,
    shown,
)

ROWS_MAX = 40
_LABEL_CHARACTERS, _CHARACTER_WIDTH = 48, 6.9
_WHOLE_MAX = 1_000  # characters of a tooltip
_LINE = 24
_X_GAP = 58  # pixels between labels of the axis
_MARKS = ("p50_ms", "p90_ms", "p99_ms", "max_ms")


def chart_of(section: Section, *, title: str = "", alone: bool = False) -> str:
    """Return the chart of a section with rows; ``alone`` for a file of its own.

    Rows without a value and rows beyond :data:`ROWS_MAX` are left out; "" if none is left.
    """
    chart = section.chart
    top = 30 if title else 0
    if isinstance(chart, Bars):
        height, body = _bars(section, chart, top)
    elif isinstance(chart, Spread):
        height, body = _spread(section, chart, top)
    elif isinstance(chart, Course):
        height, body = draw_course(section, chart, top)
    else:
        return ""
    if not body:
        return ""
    if title:
        body = text_at(8, 20, title, "title") + body
    described = escape(shortened(title or section.title, _WHOLE_MAX))
    space = f' xmlns="http://www.w3.org/2000/svg" style="max-width:{WIDTH}px"' if alone else ""
    style = f'<style>{STYLE}</style><rect class="back" width="100%" height="100%"/>'
    return (
        f'<svg{space} class="goq-chart" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img"><title>{described}</title>{style if alone else ""}'
        f"{body}</svg>"
    )


def note_of(section: Section) -> str:
    """Return a note on rows that the chart leaves out; "" if it shows all."""
    if isinstance(section.chart, Course):
        panels = len(panels_of(section, section.chart))
        if panels > PANELS_MAX:
            return f"The first {PANELS_MAX} of {panels}; all are in the table."
    elif section.chart is not None and len(section.rows) > ROWS_MAX:
        return f"The first {ROWS_MAX} rows of {len(section.rows):,}; all are in the table."
    return ""


def _bars(section: Section, chart: Bars, top: int) -> tuple[int, str]:
    at = section.columns.index(chart.value)
    rows = [row for row in section.rows if row[at] is not None][:ROWS_MAX]
    if not rows:
        return 0, ""
    names = _labels(section, rows, chart.label)
    plot = _Plot(_left_of(names), top, len(rows), linear(max(float(row[at]) for row in rows)))
    unit = " %" if chart.value.endswith("percent") else ""
    parts = [plot.frame(chart.axis, lambda value: f"{value:,.12g}{unit}")]
    for number, (row, name) in enumerate(zip(rows, names, strict=True)):
        y = top + number * _LINE
        width = max(1.0, plot.x_of(row[at]) - plot.left) if row[at] else 0.0
        parts.append(
            plot.label(name, y)
            + f'<rect class="mark" x="{plot.left}" y="{y + 5}" width="{width:.1f}"'
            f' height="{_LINE - 10}" rx="1"/>'
            + text_at(plot.left + width + 6, y + 16, shown(chart.value, row[at]))
        )
    return plot.height, "".join(parts)


def _spread(section: Section, chart: Spread, top: int) -> tuple[int, str]:
    places = [section.columns.index(name) for name in _MARKS]
    rows = section.rows[:ROWS_MAX]
    names = _labels(section, rows, chart.label)
    axis = logarithmic_ms([float(row[place]) for row in rows for place in places])
    plot = _Plot(_left_of(names), top + _LINE, len(rows), axis)
    parts = [_spread_key(plot.left, top + 12), plot.frame(chart.axis, duration)]
    right = WIDTH - VALUE_WIDTH + 14
    for number, (row, name) in enumerate(zip(rows, names, strict=True)):
        y = plot.top + number * _LINE
        parts.append(
            plot.label(name, y)
            + _range([plot.x_of(row[place]) for place in places], y + _LINE // 2)
            + text_at(right, y + 16, duration(row[places[2]]))
        )
    parts.append(text_at(right, plot.top - 8, "p99", "faint"))
    return plot.height, "".join(parts)


def _range(places: Sequence[float], y: float) -> str:
    """Return a thick bar from p50 to p90, a line to p99, and a thin line to the maximum."""
    x50, x90, x99, x100 = places
    return (
        f'<line class="thin" x1="{x99:.1f}" x2="{x100:.1f}" y1="{y}" y2="{y}"/>'
        f'<line class="thin" x1="{x100:.1f}" x2="{x100:.1f}" y1="{y - 5}" y2="{y + 5}"/>'
        f'<line class="line" x1="{x90:.1f}" x2="{x99:.1f}" y1="{y}" y2="{y}"/>'
        f'<rect class="soft" x="{x50:.1f}" y="{y - 5}" width="{x90 - x50:.1f}" height="10"/>'
        f'<circle class="hollow" cx="{x99:.1f}" cy="{y}" r="4"/>'
        f'<circle class="mark" cx="{x50:.1f}" cy="{y}" r="4.5"/>'
    )


def _spread_key(x: float, y: float) -> str:
    return (
        f'<circle class="mark" cx="{x + 5}" cy="{y}" r="4.5"/>'
        + text_at(x + 14, y + 4, "p50", "faint")
        + f'<rect class="soft" x="{x + 52}" y="{y - 5}" width="24" height="10"/>'
        + text_at(x + 80, y + 4, "to p90", "faint")
        + f'<line class="line" x1="{x + 134}" x2="{x + 152}" y1="{y}" y2="{y}"/>'
        f'<circle class="hollow" cx="{x + 152}" cy="{y}" r="4"/>'
        + text_at(x + 161, y + 4, "to p99", "faint")
        + f'<line class="thin" x1="{x + 214}" x2="{x + 232}" y1="{y}" y2="{y}"/>'
        f'<line class="thin" x1="{x + 232}" x2="{x + 232}" y1="{y - 5}" y2="{y + 5}"/>'
        + text_at(x + 238, y + 4, "to the longest", "faint")
    )


class _Plot(NamedTuple):
    """The layout of a chart's rows: labels left of ``left``, the axis below."""

    left: int
    top: int
    rows: int
    axis: Axis

    @property
    def height(self) -> int:
        """The height of the picture down to the name of the axis."""
        return self.top + self.rows * _LINE + 44

    @property
    def width(self) -> float:
        """The width of the axis."""
        return WIDTH - VALUE_WIDTH - self.left

    def x_of(self, value: float) -> float:
        """Return the x position of a value."""
        return self.left + self.width * self.axis.at(float(value))

    def label(self, name: str, y: float) -> str:
        """Return the label of a row; a tooltip has the whole of a long one."""
        short = shortened(name, _LABEL_CHARACTERS)
        return (
            f'<text x="{self.left - 10:.1f}" y="{y + 16}" text-anchor="end">'
            f"<title>{escape(shortened(name, _WHOLE_MAX))}</title>{escape(short)}</text>"
        )

    def frame(self, name: str, said: Callable[[float], str]) -> str:
        """Return grid lines, the labels below them and the name of the axis."""
        bottom = self.top + self.rows * _LINE
        parts, free = [], 0.0
        for tick in self.axis.ticks:
            x = self.x_of(tick)
            parts.append(grid(x, x, self.top, bottom + 4))
            if x >= free:
                parts.append(text_at(x, bottom + 18, said(tick), "faint", "middle"))
                free = x + _X_GAP
        parts.append(text_at(self.left + self.width / 2, bottom + 36, name, "faint", "middle"))
        return "".join(parts)


def _left_of(names: Sequence[str]) -> int:
    longest = max(len(shortened(name, _LABEL_CHARACTERS)) for name in names)
    return round(20 + max(8, longest) * _CHARACTER_WIDTH)


def _labels(section: Section, rows: Sequence[Sequence[Any]], columns: Sequence[str]) -> list[str]:
    """Return the labels of rows.

    A column that is equal in all rows is left out, and so is a topic that the others imply.
    """
    places = [section.columns.index(name) for name in columns]
    used = [p for p in places if len({row[p] for row in rows}) > 1] or places[-1:]
    if columns[0] == "topic" and used[0] == places[0]:
        rest = {tuple(row[p] for p in used[1:]) for row in rows}
        if len(rest) == len({tuple(row[p] for p in used) for row in rows}):
            used = used[1:]
    return [" · ".join(label(section.columns[place], row[place]) for place in used) for row in rows]
