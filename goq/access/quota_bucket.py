"""Token buckets of quotas, and the room for messages in flight.

A rate has a token bucket with the burst of one second. A request is admitted while the bucket is
not empty, and may leave it in debt: so a large request passes, and the next ones wait for it. Time
is a parameter.

A bucket is kept as the time at which it will be full (the generic cell rate algorithm, ITU-T
I.371): an amount moves that time on, and nothing has to be filled up meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from goq import limits
from goq.access.quota import Quota

EMPTY_S: Final = 1.0 - 1e-6  # less than a second: sums of small parts are not exact


class DebtBucket:
    """A bucket that ``rate_per_s`` fills up to what one second gives, and that may be in debt.

    It is empty if it will be full at ``full_s``, ``EMPTY_S`` or more from now.
    """

    __slots__ = ("_s_each", "full_s")

    def __init__(self, rate_per_s: float, now_s: float) -> None:
        self._s_each = 1 / rate_per_s
        self.full_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return 0 if the bucket is not empty, else the time until it is not."""
        left_s = self.full_s - now_s
        return 0.0 if left_s < EMPTY_S else max(left_s - 1.0, 0.0) + 0.001

    def take(self, amount: float, now_s: float) -> None:
        """Take an amount, whatever is there."""
        full_s = self.full_s
        self.full_s = (full_s if full_s > now_s else now_s) + amount * self._s_each

    def is_full(self, now_s: float) -> bool:
        """Return whether the bucket has all that one second gives."""
        return self.full_s <= now_s


class TenantAmount(NamedTuple):
    """The messages and bytes of one tenant in a publish."""

    tenant: str
    messages: float
    size_bytes: float


class TenantBuckets:
    """The buckets of the tenants of one principal: ``bounds`` are those of each tenant.

    Of more than ``tenants_max`` tenants those that used nothing lately are forgotten, else the one
    that came first.
    """

    def __init__(
        self,
        bounds: Mapping[str, int],
        tenants_max: int = limits.QUOTA_TENANTS_MAX,
    ) -> None:
        self._messages_per_s = bounds.get(Quota.TENANT_MESSAGES, limits.QUOTA_MAX)
        self._bytes_per_s = bounds.get(Quota.TENANT_BYTES, limits.QUOTA_MAX)
        self._tenants_max = tenants_max
        self._buckets: dict[str, tuple[DebtBucket, DebtBucket]] = {}

    def wait(self, amount: TenantAmount, now_s: float) -> tuple[float, Quota]:
        """Return how long a tenant must wait, 0 for not at all, and the quota that it used up."""
        found = self._buckets.get(amount.tenant)
        if found is None:
            return 0.0, Quota.TENANT_MESSAGES
        return max(
            (found[0].wait_s(now_s), Quota.TENANT_MESSAGES),
            (found[1].wait_s(now_s), Quota.TENANT_BYTES),
        )

    def take(self, amount: TenantAmount, now_s: float) -> None:
        """Take the amount of a tenant."""
        found = self._buckets.get(amount.tenant)
        if found is None:
            if len(self._buckets) >= self._tenants_max:
                self._forget(now_s)
            found = self._buckets[amount.tenant] = (
                DebtBucket(self._messages_per_s, now_s),
                DebtBucket(self._bytes_per_s, now_s),
            )
        found[0].take(amount.messages, now_s)
        found[1].take(amount.size_bytes, now_s)

    def _forget(self, now_s: float) -> None:
        idle = [
            tenant
            for tenant, buckets in self._buckets.items()
            if all(bucket.is_full(now_s) for bucket in buckets)
        ]
        for tenant in idle or [next(iter(self._buckets))]:
            del self._buckets[tenant]


class InFlightRoom:
    """How many messages a principal may still lease: ``bound`` returns how many altogether, and
    ``count`` how many are leased.

    Both hold for ``KNOWN_S``, with what was leased since. So leases pass the bound only by
    those that others take meanwhile.
    """

    KNOWN_S: Final = 0.05
    _RECOUNT_S: Final = 0.005

    def __init__(
        self, bound: Callable[[], int], count: Callable[[], int], now_s: Callable[[], float]
    ) -> None:
        self.bound = 0
        self._find_bound = bound
        self._count = count
        self._now_s = now_s
        self._leased = 0
        self._at_s = -math.inf

    def left(self) -> int:
        """Return how many messages may be leased now."""
        known_s = self._now_s() - self._at_s
        if known_s >= self.KNOWN_S or (self._leased >= self.bound and known_s >= self._RECOUNT_S):
            self.bound, self._leased = self._find_bound(), self._count()
            self._at_s = self._now_s()
        return max(0, self.bound - self._leased)

    def take(self, messages: int) -> None:
        """Note messages that were leased."""
        self._leased += messages
