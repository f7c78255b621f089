"""The use of rates by principals on this node, for the other nodes of a cluster.

Each node fills the bucket of a rate by itself, and takes from it what is used on any node. So all
nodes together give the rate, and pass it only by what they have not told each other yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from goq import limits

SpentKey = tuple[str, str, str]
"""A principal, a quota and a tenant, which is empty for rates of no tenant."""


class SpentAmount(NamedTuple):
    """An amount that a principal used of a rate; ``tenant`` is empty for rates of no tenant."""

    principal: str
    quota: str
    tenant: str
    amount: float


class SpentAmounts:
    """Sums of amounts that were not taken yet; ``on_first`` is called when there are some again.

    Of more than ``limits.SPENT_AMOUNTS_MAX`` sums the newest are left out.
    """

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self._on_first = on_first
        self._sums: dict[SpentKey, float] = {}

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, key: SpentKey, amount: float) -> None:
        """Add an amount to its sum."""
        sums = self._sums
        if key in sums:
            sums[key] += amount
        elif len(sums) < limits.SPENT_AMOUNTS_MAX:
            sums[key] = amount
            if len(sums) == 1:
                self._on_first()

    def add_all(self, amounts: Iterable[SpentAmount]) -> None:
        """Add several amounts."""
        for spent in amounts:
            self.add(spent[:3], spent.amount)

    def take(self, count_max: int) -> list[SpentAmount]:
        """Return the oldest sums, which are not here any more then."""
        keys = [key for key, _ in zip(self._sums, range(count_max), strict=False)]
        return [SpentAmount(*key, self._sums.pop(key)) for key in keys]
