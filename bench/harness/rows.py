"""What is measured: a work, its rows in the table, and how it is done on either server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.harness.servers import GoqNode, RedisServer


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row is measured, and how much of it: ``scale`` 1 is the whole work."""

    folder: Path
    scale: float
    goq: GoqNode
    redis: RedisServer | None

    def scaled(self, count: int, least: int = 1) -> int:
        """Return a count of things to do, fewer in a quick run."""
        return max(least, round(count * self.scale))


Measure = Callable[[Place], float | Sequence[float]]
"""Measure once; return the figure of each row of the work, in their order."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    ``target`` is in the figure's unit, or a share of the row ``target_of`` of the same work.
    Where less is better (``at_most``), the ratios are turned round, so that 1 and more is good in
    every row.
    """

    name: str
    text: str
    unit: str
    target: float | None = None
    target_of: str | None = None
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured at once, on goq and, where there is a counterpart, on Redis.

    The ``prepare`` functions run once, before the repetitions.
    """

    rows: Sequence[Row]
    goq: Measure
    redis: Measure | None = None
    prepare: Callable[[Place], None] = lambda _place: None
    prepare_redis: Callable[[Place], None] = lambda _place: None


@dataclass(slots=True)
class Result:
    """What the repetitions of a row came to."""

    row: Row
    goq: list[float] = field(default_factory=list)
    redis: list[float] = field(default_factory=list)
    targets: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def figure(self) -> float | None:
        """The median."""
        return median(self.goq) if self.goq else None

    @property
    def redis_figure(self) -> float | None:
        """The median of Redis."""
        return median(self.redis) if self.redis else None

    @property
    def target(self) -> float | None:
        """The target, the median of it where it was measured too."""
        return median(self.targets) if self.targets else None

    @property
    def to_target(self) -> float | None:
        """Figure by target."""
        return self._to(self.targets)

    @property
    def to_redis(self) -> float | None:
        """Figure by that of Redis."""
        return self._to(self.redis)

    def _to(self, others: list[float]) -> float | None:
        """Return the median of the ratios of the pairs: a machine that drifts drifts in both."""
        pairs = list(zip(self.goq, others, strict=False))  # the last may lack its other half
        return median(self._ratio(ours, other) for ours, other in pairs) if pairs else None

    def _ratio(self, ours: float, other: float) -> float:
        above, below = (other, ours) if self.row.at_most else (ours, other)
        return above / below if below else math.inf


def measure(
    work: Work, folder: Path, *, scale: float, repetitions: int, redis: bool
) -> list[Result]:
    """Measure a work on fresh servers, goq and Redis in turn; a failure ends in the notes."""
    results = [Result(row) for row in work.rows]
    try:
        with _place(folder, scale, redis and work.redis is not None) as place:
            work.prepare(place)
            if place.redis is not None:
                work.prepare_redis(place)
            for _ in range(repetitions):
                for result, figure in zip(results, _figures(work.goq(place)), strict=True):
                    result.goq.append(figure)
                if place.redis is None or work.redis is None:
                    continue
                for result, figure in zip(results, _figures(work.redis(place)), strict=False):
                    result.redis.append(figure)
    except Exception as error:  # the other rows are worth having
        for result in results:
            result.note = f"failed: {type(error).__name__}: {error}"
    for result in results:
        result.targets = _targets(result, results)
    return results


def _targets(result: Result, results: list[Result]) -> list[float]:
    """Return the target at each repetition."""
    row = result.row
    if row.target is None:
        return []
    if row.target_of is None:
        return [row.target] * len(result.goq)
    other = next(found for found in results if found.row.name == row.target_of)
    return [row.target * figure for figure in other.goq]


def _figures(measured: float | Sequence[float]) -> Sequence[float]:
    return (measured,) if isinstance(measured, float) else measured


@contextmanager
def _place(folder: Path, scale: float, with_redis: bool) -> Iterator[Place]:
    folder.mkdir()
    with GoqNode(folder / "goq") as node:
        if not with_redis:
            yield Place(folder, scale, node, None)
            return
        with RedisServer(folder / "redis") as redis:
            yield Place(folder, scale, node, redis)
