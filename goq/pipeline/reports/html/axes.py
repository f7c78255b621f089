"""Axes: which round values to mark, and where a value lies between the ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

_LOG_STEPS = (
    *(10.0**power for power in range(-3, 1)),
    *(10.0, 100.0, 1_000.0, 10_000.0, 60_000.0, 600_000.0),
    *(3_600_000.0, 6 * 3_600_000.0, 86_400_000.0, 10 * 86_400_000.0),
    *(100 * 86_400_000.0, 1_000 * 86_400_000.0, 10_000 * 86_400_000.0),
)
_HOURS = timedelta(hours=1)
_TIME_STEPS = (
    *(timedelta(minutes=n) for n in (1, 2, 5, 10, 20, 30)),
    *(n * _HOURS for n in (1, 2, 3, 6, 12, 24, 48)),
    *(timedelta(days=n) for n in (5, 10, 30, 60, 180, 360)),
)


@dataclass(frozen=True, slots=True)
class Axis:
    """Values that are marked, and ``at``, which gives a value's place from 0 to 1."""

    ticks: Sequence[float]
    at: Callable[[float], float]


def linear(most: float) -> Axis:
    """Return an axis from 0 to a round value that no value exceeds; about five ticks."""
    most = most or 1.0
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough * 0.999_999)
    count = max(1, math.ceil(most / step - 1e-9))
    end = step * count
    ticks = [round(step * n, 12) for n in range(count + 1)]
    return Axis(ticks, lambda value: value / end)


def logarithmic_ms(values: Sequence[float]) -> Axis:
    """Return an axis of durations between two of the steps that people count time in.

    What is below its start, such as 0, lies at the start.
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
    """Return round moments from ``first`` to ``last``: full minutes, hours, or days."""
    step = next((s for s in _TIME_STEPS if (last - first) / s < ticks_max), _TIME_STEPS[-1])
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    at = midnight + math.ceil((first - midnight) / step) * step
    found = []
    while at <= last:
        found.append(at)
        at += step
    return found


def time_label(moment: datetime) -> str:
    """Return a moment as an axis says it: a day at midnight, else the time."""
    if moment.hour == moment.minute == 0:
        return f"{moment.day} {moment:%b}"
    return f"{moment:%H:%M}"
