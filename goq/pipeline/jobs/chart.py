"""Charts of a report's tables as SVG: no script, no font and no file from elsewhere.

Colours are classes, which the page or :func:`alone` gives. What differs is told by shape and place
too, never by colour only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape
from typing import Any, NamedTuple

from goq.pipeline.jobs.axes import Axis, linear, logarithmic_ms, time_label, time_ticks
from goq.pipeline.jobs.report import Bars, Course, Section, Spread
from goq.pipeline.jobs.shown import duration, label, shortened, shown

ROWS_MAX = 40
PANELS_MAX = 12
WIDTH = 760
_LABEL_CHARACTERS, _CHARACTER_WIDTH = 48, 6.9
_WHOLE_MAX = 1_000  # characters of a name where the pointer rests on it
_VALUE_WIDTH, _LINE = 90, 24
_PANEL_HEIGHT, _PANEL_LEFT = 110, 70
_X_GAP, _Y_GAP = 58, 24  # between labels of an axis, so that they never touch
_MARKS = ("p50_ms", "p90_ms", "p99_ms", "max_ms")

STYLE = """
.goq-chart { --ink: #1c2430; --faint: #5b6672; --grid: #dfe4ea; --mark: #0b62a8; --soft: #a9cbe8;
             --other: #b34700; --back: #fff; }
@media (prefers-color-scheme: dark) {
  .goq-chart { --ink: #e3e8ee; --faint: #9ba7b4; --grid: #313a45; --mark: #7ab8f0; --soft: #2f567c;
               --other: #ffb070; --back: #14181d; } }
.goq-chart text { font: 12px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif;
                  fill: var(--ink); }
.goq-chart .faint { fill: var(--faint); } .goq-chart .grid { stroke: var(--grid); }
.goq-chart .mark { fill: var(--mark); } .goq-chart .soft { fill: var(--soft); }
.goq-chart .line { stroke: var(--mark); stroke-width: 2; fill: none; }
.goq-chart .thin { stroke: var(--mark); stroke-width: 1; fill: none; }
.goq-chart .hollow { stroke: var(--mark); stroke-width: 1.5; fill: var(--back); }
.goq-chart .other { stroke: var(--other); stroke-width: 2; fill: none; stroke-dasharray: 5 3; }
.goq-chart .dot { fill: var(--other); } .goq-chart .back { fill: var(--back); }
.goq-chart .title { font-weight: 600; }
"""


def chart_of(section: Section, *, title: str = "", alone: bool = False) -> str:
    """Return the chart of a section, which has one and has rows; ``alone`` for a file of its own.

    Rows without a value are left out, and those beyond :data:`ROWS_MAX`; "" if none is left.
    """
    chart = section.chart
    top = 30 if title else 0
    if isinstance(chart, Bars):
        height, body = _bars(section, chart, top)
    elif isinstance(chart, Spread):
        height, body = _spread(section, chart, top)
    elif isinstance(chart, Course):
        height, body = _course(section, chart, top)
    else:
        return ""
    if not body:
        return ""
    if title:
        body = _text(8, 20, title, "title") + body
    described = escape(shortened(title or section.title, _WHOLE_MAX))
    space = f' xmlns="http://www.w3.org/2000/svg" style="max-width:{WIDTH}px"' if alone else ""
    style = f'<style>{STYLE}</style><rect class="back" width="100%" height="100%"/>'
    return (
        f'<svg{space} class="goq-chart" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img"><title>{described}</title>{style if alone else ""}'
        f"{body}</svg>"
    )


def note_of(section: Section) -> str:
    """Return what the chart does not show of its section; "" if it shows all."""
    if isinstance(section.chart, Course):
        panels = len(_panels(section, section.chart))
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
            + _text(plot.left + width + 6, y + 16, shown(chart.value, row[at]))
        )
    return plot.height, "".join(parts)


def _spread(section: Section, chart: Spread, top: int) -> tuple[int, str]:
    places = [section.columns.index(name) for name in _MARKS]
    rows = section.rows[:ROWS_MAX]
    names = _labels(section, rows, chart.label)
    axis = logarithmic_ms([float(row[place]) for row in rows for place in places])
    plot = _Plot(_left_of(names), top + _LINE, len(rows), axis)
    parts = [_spread_key(plot.left, top + 12), plot.frame(chart.axis, duration)]
    right = WIDTH - _VALUE_WIDTH + 14
    for number, (row, name) in enumerate(zip(rows, names, strict=True)):
        y = plot.top + number * _LINE
        parts.append(
            plot.label(name, y)
            + _range([plot.x_of(row[place]) for place in places], y + _LINE // 2)
            + _text(right, y + 16, duration(row[places[2]]))
        )
    parts.append(_text(right, plot.top - 8, "p99", "faint"))
    return plot.height, "".join(parts)


def _range(places: Sequence[float], y: float) -> str:
    """Return a thick bar from p50 to p90, a line on to p99 and a thin one to the maximum."""
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
        + _text(x + 14, y + 4, "p50", "faint")
        + f'<rect class="soft" x="{x + 52}" y="{y - 5}" width="24" height="10"/>'
        + _text(x + 80, y + 4, "to p90", "faint")
        + f'<line class="line" x1="{x + 134}" x2="{x + 152}" y1="{y}" y2="{y}"/>'
        f'<circle class="hollow" cx="{x + 152}" cy="{y}" r="4"/>'
        + _text(x + 161, y + 4, "to p99", "faint")
        + f'<line class="thin" x1="{x + 214}" x2="{x + 232}" y1="{y}" y2="{y}"/>'
        f'<line class="thin" x1="{x + 232}" x2="{x + 232}" y1="{y - 5}" y2="{y + 5}"/>'
        + _text(x + 238, y + 4, "to the longest", "faint")
    )


class _Plot(NamedTuple):
    """Where the rows of a chart lie: labels at the left of ``left``, the axis below."""

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
        """How wide the axis is."""
        return WIDTH - _VALUE_WIDTH - self.left

    def x_of(self, value: float) -> float:
        """Return where a value lies."""
        return self.left + self.width * self.axis.at(float(value))

    def label(self, name: str, y: float) -> str:
        """Return what stands beside a row; the whole of it where it is too long."""
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
            parts.append(_grid(x, x, self.top, bottom + 4))
            if x >= free:
                parts.append(_text(x, bottom + 18, said(tick), "faint", "middle"))
                free = x + _X_GAP
        parts.append(_text(self.left + self.width / 2, bottom + 36, name, "faint", "middle"))
        return "".join(parts)


def _left_of(names: Sequence[str]) -> int:
    longest = max(len(shortened(name, _LABEL_CHARACTERS)) for name in names)
    return round(20 + max(8, longest) * _CHARACTER_WIDTH)


def _course(section: Section, chart: Course, top: int) -> tuple[int, str]:
    panels = _panels(section, chart)
    time_at = section.columns.index(chart.time)
    places = [section.columns.index(name) for name in chart.values]
    moments = [_moment(row[time_at]) for row in section.rows]
    first, last = min(moments), max(moments)
    axis = logarithmic_ms([float(row[place]) for row in section.rows for place in places])
    x_span = (last - first).total_seconds() or 1.0
    right = WIDTH - _VALUE_WIDTH

    def x_of(moment: datetime) -> float:
        if first == last:
            return (_PANEL_LEFT + right) / 2
        return _PANEL_LEFT + (right - _PANEL_LEFT) * (moment - first).total_seconds() / x_span

    parts = []
    for number, (name, rows) in enumerate(list(panels.items())[:PANELS_MAX]):
        y = top + number * (_PANEL_HEIGHT + 56)
        parts.append(_text(_PANEL_LEFT, y + 14, shortened(name, 90), "title"))
        parts.append(_panel_frame(axis, y + 26, [(m, x_of(m)) for m in time_ticks(first, last, 9)]))
        points = sorted(
            (x_of(_moment(row[time_at])), [float(row[place]) for place in places]) for row in rows
        )
        for index, said in enumerate(chart.values):
            parts.append(_line(axis, points, index, said, y + 26))
    height = top + min(len(panels), PANELS_MAX) * (_PANEL_HEIGHT + 56) + 16
    said = f"{chart.axis}, by when it began (UTC)"
    return height, "".join(parts) + _text(
        (_PANEL_LEFT + right) / 2, height - 6, said, "faint", "middle"
    )


def _panel_frame(axis: Axis, top: int, times: Sequence[tuple[datetime, float]]) -> str:
    right, bottom = WIDTH - _VALUE_WIDTH, top + _PANEL_HEIGHT
    parts, free = [], float(bottom + 99)
    for tick in axis.ticks:
        y = bottom - _PANEL_HEIGHT * axis.at(tick)
        parts.append(_grid(_PANEL_LEFT, right, y, y))
        if y <= free:
            parts.append(_text(_PANEL_LEFT - 8, y + 4, duration(tick), "faint", "end"))
            free = y - _Y_GAP
    for moment, x in times:
        parts.append(_grid(x, x, top, bottom + 4))
        parts.append(_text(x, bottom + 17, time_label(moment), "faint", "middle"))
    return "".join(parts)


def _line(
    axis: Axis, points: Sequence[tuple[float, list[float]]], index: int, name: str, top: int
) -> str:
    """Return one value's line, its points marked where they are few, and its name at its end."""
    found = [(x, top + _PANEL_HEIGHT * (1 - axis.at(values[index]))) for x, values in points]
    kind, dot = ("line", "mark") if index == 0 else ("other", "dot")
    parts = []
    if len(found) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in found)
        parts.append(f'<polyline class="{kind}" points="{path}"/>')
    if len(found) <= 60:
        parts += [f'<circle class="{dot}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in found]
    x, y = found[-1]
    others = [top + _PANEL_HEIGHT * (1 - axis.at(v)) for v in points[-1][1]]
    if index and abs(y - others[0]) < 13:
        y = others[0] - 13
    parts.append(_text(x + 8, y + 4, name.removesuffix("_ms"), "faint"))
    return "".join(parts)


def _panels(section: Section, chart: Course) -> dict[str, list[Sequence[Any]]]:
    places = [section.columns.index(name) for name in chart.panel]
    found: dict[str, list[Sequence[Any]]] = {}
    for row in section.rows:
        name = " · ".join(label(section.columns[place], row[place]) for place in places)
        found.setdefault(name, []).append(row)
    return found


def _labels(section: Section, rows: Sequence[Sequence[Any]], columns: Sequence[str]) -> list[str]:
    """Return what rows are called.

    A column that is the same in all of them says nothing, nor does a topic that the rest tells.
    """
    places = [section.columns.index(name) for name in columns]
    used = [p for p in places if len({row[p] for row in rows}) > 1] or places[-1:]
    if columns[0] == "topic" and used[0] == places[0]:
        rest = {tuple(row[p] for p in used[1:]) for row in rows}
        if len(rest) == len({tuple(row[p] for p in used) for row in rows}):
            used = used[1:]
    return [" · ".join(label(section.columns[place], row[place]) for place in used) for row in rows]


def _grid(x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    anchored = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{of_kind}{anchored}>{escape(text)}</text>'


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
