"""Values over time, as lines in one small chart for each topic and group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from goq.pipeline.reports.html.axes import (
    VALUE_WIDTH,
    WIDTH,
    Axis,
    grid,
    linear,
    logarithmic_ms,
    text_at,
    time_label,
    time_ticks,
)
from goq.pipeline.reports.report import Course, Section, duration, label, shortened

PANELS_MAX = 12
_PANEL_HEIGHT, _PANEL_LEFT = 110, 70
_Y_GAP = 24  # pixels between labels of the axis


def draw_course(section: Section, chart: Course, top: int) -> tuple[int, str]:
    """Return the height of the drawing, and its elements."""
    panels = panels_of(section, chart)
    time_at = section.columns.index(chart.time)
    places = [section.columns.index(name) for name in chart.values]
    moments = [_moment(row[time_at]) for row in section.rows]
    first, last = min(moments), max(moments)
    values = [float(row[place]) for row in section.rows for place in places]
    is_time = all(name.endswith("_ms") for name in chart.values)
    axis = logarithmic_ms(values) if is_time else linear(max(values))
    said_of = duration if is_time else _number
    x_span = (last - first).total_seconds() or 1.0
    right = WIDTH - VALUE_WIDTH

    def x_of(moment: datetime) -> float:
        if first == last:
            return (_PANEL_LEFT + right) / 2
        return _PANEL_LEFT + (right - _PANEL_LEFT) * (moment - first).total_seconds() / x_span

    parts = []
    for number, (name, rows) in enumerate(list(panels.items())[:PANELS_MAX]):
        y = top + number * (_PANEL_HEIGHT + 56)
        parts.append(text_at(_PANEL_LEFT, y + 14, shortened(name, 90), "title"))
        parts.append(
            _panel_frame(axis, said_of, y + 26, [(m, x_of(m)) for m in time_ticks(first, last, 9)])
        )
        points = sorted(
            (x_of(_moment(row[time_at])), [float(row[place]) for place in places]) for row in rows
        )
        for index, said in enumerate(chart.values):
            parts.append(_line(axis, points, index, said, y + 26))
    height = top + min(len(panels), PANELS_MAX) * (_PANEL_HEIGHT + 56) + 16
    said = f"{chart.axis}, by when it began (UTC)"
    return height, "".join(parts) + text_at(
        (_PANEL_LEFT + right) / 2, height - 6, said, "faint", "middle"
    )


def _number(value: float) -> str:
    return f"{value:,.12g}"


def _panel_frame(
    axis: Axis,
    said_of: Callable[[float], str],
    top: int,
    times: Sequence[tuple[datetime, float]],
) -> str:
    right, bottom = WIDTH - VALUE_WIDTH, top + _PANEL_HEIGHT
    parts, free = [], float(bottom + 99)
    for tick in axis.ticks:
        y = bottom - _PANEL_HEIGHT * axis.at(tick)
        parts.append(grid(_PANEL_LEFT, right, y, y))
        if y <= free:
            parts.append(text_at(_PANEL_LEFT - 8, y + 4, said_of(tick), "faint", "end"))
            free = y - _Y_GAP
    for moment, x in times:
        parts.append(grid(x, x, top, bottom + 4))
        parts.append(text_at(x, bottom + 17, time_label(moment), "faint", "middle"))
    return "".join(parts)


def _line(
    axis: Axis, points: Sequence[tuple[float, list[float]]], index: int, name: str, top: int
) -> str:
    """Return one value's line, with markers if its points are few, and its name at the end."""
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
    parts.append(text_at(x + 8, y + 4, name.removesuffix("_ms"), "faint"))
    return "".join(parts)


def panels_of(section: Section, chart: Course) -> dict[str, list[Sequence[Any]]]:
    """Return the rows of each panel, by its name."""
    places = [section.columns.index(name) for name in chart.panel]
    found: dict[str, list[Sequence[Any]]] = {}
    for row in section.rows:
        name = " · ".join(label(section.columns[place], row[place]) for place in places)
        found.setdefault(name, []).append(row)
    return found


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
