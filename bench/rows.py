"""What a row of the table is: a work, its target, and how it is measured on either server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from bench.servers import GoqNode, RedisServer


class Skipped(Exception):  # noqa: N818 - not an error: a tool is missing
    """A row cannot be measured on this machine; the text says why."""


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


Measure = Callable[[Place], float]


@dataclass(frozen=True, slots=True)
class Row:
    """One work.

    ``target`` is in the figure's unit, or a share of the row ``target_of``. Where less is better
    (``at_most``), the ratios are turned round, so that 1 and more is good in every row.
    ``prepare`` runs once, before the repetitions.
    """

    name: str
    work: str
    unit: str
    goq: Measure
    redis: Measure | None = None
    target: float | None = None
    target_of: str | None = None
    at_most: bool = False
    prepare: Callable[[Place], None] = lambda _place: None
    prepare_redis: Callable[[Place], None] = lambda _place: None


@dataclass(slots=True)
class Result:
    """What the repetitions of a row came to."""

    row: Row
    goq: list[float] = field(default_factory=list)
    redis: list[float] = field(default_factory=list)
    target: float | None = None
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
    def to_target(self) -> float | None:
        """Figure by target."""
        if self.figure is None or self.target is None:
            return None
        return self._ratio(self.figure, self.target)

    @property
    def to_redis(self) -> float | None:
        """The median of the ratios of the pairs: a machine that drifts drifts in both."""
        if not self.goq or not self.redis:
            return None
        return median(self._ratio(ours, theirs) for ours, theirs in zip(self.goq, self.redis))

    def _ratio(self, ours: float, other: float) -> float:
        return other / ours if self.row.at_most else ours / other


Direction = Literal["goq", "redis"]


def measure(row: Row, folder: Path, *, scale: float, repetitions: int, redis: bool) -> Result:
    """Measure a row on fresh servers, goq and Redis in turn."""
    result = Result(row)
    try:
        with _place(folder, scale, redis and row.redis is not None) as place:
            row.prepare(place)
            if place.redis is not None:
                row.prepare_redis(place)
            for _ in range(repetitions):
                result.goq.append(row.goq(place))
                if place.redis is not None and row.redis is not None:
                    result.redis.append(row.redis(place))
    except Skipped as reason:
        result.note = str(reason)
    return result


@contextmanager
def _place(folder: Path, scale: float, with_redis: bool) -> Iterator[Place]:
    folder.mkdir()
    with GoqNode(folder / "goq") as node:
        if not with_redis:
            yield Place(folder, scale, node, None)
            return
        with RedisServer(folder / "redis") as redis:
            yield Place(folder, scale, node, redis)
