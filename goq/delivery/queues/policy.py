"""The scheduling policy of a topic, and the numbers that its tenants have in a partition."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

import msgspec

from goq import limits
from goq.errors import InvalidInput

NO_TENANT = 0


class SchedulingPolicy(msgspec.Struct, frozen=True):
    """The rules of :class:`~goq.delivery.queues.fair_scheduler.FairScheduler`.

    ``lane_weights``: None is strict priority. A lane beyond the end of the weights weighs 1.
    ``starvation_ms``: a fresh message that has been ready for longer goes next.
    ``tenant_weights``: messages in each round, by name; a tenant without a weight has 1. Precise to
    a thousandth.
    ``tenant_in_flight_max``: how many messages of one tenant a group may have in flight.
    Messages without a tenant share like those of one more tenant, but have no cap.

    Raises ``InvalidInput`` for a value out of bounds.
    """

    lane_weights: tuple[int, ...] | None = None
    starvation_ms: int | None = None
    tenant_weights: Mapping[str, float] = msgspec.field(default_factory=dict)
    tenant_in_flight_max: int | None = None

    def __post_init__(self) -> None:
        weights = self.lane_weights or ()
        if len(weights) > limits.LANES_MAX or not all(
            1 <= weight <= limits.LANE_WEIGHT_MAX for weight in weights
        ):
            raise InvalidInput(
                f"lanes have at most {limits.LANES_MAX} weights of 1 to {limits.LANE_WEIGHT_MAX}"
            )
        low, high = limits.TENANT_WEIGHT_MIN, limits.TENANT_WEIGHT_MAX
        for name, weight in self.tenant_weights.items():
            if not low <= weight <= high:
                raise InvalidInput(f"the weight of tenant {name!r} is not in {low} to {high}")
        if self.starvation_ms is not None and self.starvation_ms < 1:
            raise InvalidInput("the starvation bound is 1 ms or more")
        if self.tenant_in_flight_max is not None and self.tenant_in_flight_max < 1:
            raise InvalidInput("a tenant may have 1 message in flight or more")


class TenantNumbers:
    """Tenants' names to small numbers and back, so that columns and queues stay small.

    Numbers begin at 1 and follow the order in which names appear; 0 is "no tenant". They are never
    stored: after a restart a name may have another number. Above ``names_max`` a new name shares a
    number with others, and so its turns and its cap: nothing is refused, and memory is bounded.
    """

    __slots__ = ("_names", "_names_max", "_numbers")

    def __init__(self, names_max: int = limits.TENANTS_PER_PARTITION_MAX) -> None:
        self._names_max = names_max
        self._names = [""]
        self._numbers = {"": NO_TENANT}

    def __len__(self) -> int:
        return len(self._names) - 1

    def number(self, name: str) -> int:
        """Return the number of a name, a new one if it has none; that of ``""`` is 0."""
        number = self._numbers.get(name)
        if number is not None:
            return number
        number = len(self._names)
        if number > self._names_max:
            return 1 + crc32(name.encode()) % self._names_max
        self._names.append(name)
        self._numbers[name] = number
        return number

    def copy(self) -> TenantNumbers:
        """Return the same numbers, to which others may be added."""
        copied = TenantNumbers(self._names_max)
        copied._names, copied._numbers = self._names.copy(), self._numbers.copy()
        return copied

    def name(self, number: int) -> str:
        """Return the name that a number was first given to."""
        return self._names[number]
