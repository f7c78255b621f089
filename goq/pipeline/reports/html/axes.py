"""Axes of charts: round ticks, the position of a value, and the style of the drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape

_LOG_STEPS = (
    *(10.0**power for power in range(-3, 1)),
    *(10.0, 100.0, 1_000.0, 10_000.0, 60_000.0, 600_000.0),
    *(3_600_000.0, 6 * 3_600_000.0, 86_400_000.0, 10 * 86_400_000.0),
    *(100 * 86_400_000.0, 1_000 * 86_400_000.0, 10_000 * 86_400_000.0),
)
_HOURS = timedelta(hours=1)
_TIME_STEPS = (
    *(timedelta(seconds=n) for n in (1, 2, 5, 10, 20, 30)),
    *(timedelta(minutes=n) for n in (1, 2, 5, 10, 20, 30)),
    *(n * _HOURS for n in (1, 2, 3, 6, 12, 24, 48)),
    *(timedelta(days=n) for n in (5, 10, 30, 60, 180, 360)),
)


@dataclass(frozen=True, slots=True)
class Axis:
    """The ticks of an axis, and ``at``, a value's position from 0 to 1."""

    ticks: Sequence[float]
    at: Callable[[float], float]


def linear(most: float) -> Axis:
    """Return an axis from 0 to a round maximum, with about five ticks."""
    most = most or 1.0
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough * 0.999_999)
    count = max(1, math.ceil(most / step - 1e-9))
    end = step * count
    ticks = [round(step * n, 12) for n in range(count + 1)]
    return Axis(ticks, lambda value: value / end)


def logarithmic_ms(values: Sequence[float]) -> Axis:
    """Return a logarithmic axis of durations, with round steps at both ends.

    Values below its start, such as 0, are drawn at the start.
    """
    positive = [value for value in values if value > 0] or [1.0]
    first = max((n for n, step in enumerate(_LOG_STEPS) if step <= min(positive)), default=0)
    last = min(
        (n for n, step in enumerate(_LOG_STEPS) if step >= max(positive)),
        default=len(_LOG_STEPS) - 1,
    )
    last = max(last, first + 1)
    if last == len(_LOG_STEPS):
        first, last = first - 1, last - 1
    ticks = _LOG_STEPS[first : last + 1]
    low, high = math.log(ticks[0]), math.log(ticks[-1])

    def at(value: float) -> float:
        if value <= ticks[0]:
            return 0.0
        return min(1.0, (math.log(value) - low) / (high - low))

    return Axis(ticks, at)


def time_ticks(first: datetime, last: datetime, ticks_max: int) -> list[datetime]:
    """Return round times from ``first`` to ``last``: full seconds, minutes, hours or days."""
    step = next((s for s in _TIME_STEPS if (last - first) / s < ticks_max), _TIME_STEPS[-1])
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    at = midnight + math.ceil((first - midnight) / step) * step
    found = []
    while at <= last:
        found.append(at)
        at += step
    return found


def time_label(moment: datetime) -> str:
    """Return the label of a time: the day at midnight, else the time of day."""
    if moment.hour == moment.minute == moment.second == 0:
        return f"{moment.day} {moment:%b}"
    if moment.second:
        return f"{moment:%H:%M:%S}"
    return f"{moment:%H:%M}"


WIDTH = 760
VALUE_WIDTH = 90  # right of a chart

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


def grid(x1: float, x2: float, y1: float, y2: float) -> str:
    """Return a faint line."""
    return f'<line class="grid" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def text_at(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    """Return a text with a style class; ``x`` is its start, ``middle`` or ``end``."""
    of_kind = f' class="{kind}"' if kind else ""
    anchored = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{of_kind}{anchored}>{escape(text)}</text>'
