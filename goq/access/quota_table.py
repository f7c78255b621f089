"""The use of a node by principals, and the refusal of more than their quotas."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from goq import limits
from goq.access.quota import RATES, Quota, format_quota
from goq.access.quota_bucket import (
    EMPTY_S,
    DebtBucket,
    InFlightRoom,
    TenantAmount,
    TenantBuckets,
)
from goq.access.rule import Principal
from goq.access.spent_amounts import SpentAmount, SpentAmounts
from goq.errors import QuotaExceeded, TooManyRequests
from goq.units import format_size_bytes

_IN_FLIGHT_RETRY_MS: Final = 500


class Usage:
    """The use of this node by one principal, and its buckets."""

    __slots__ = (
        "buckets",
        "keys",
        "name",
        "of_publishes",
        "of_requests",
        "publish_bytes",
        "quotas",
        "refused",
        "requests",
        "tenants",
    )

    def __init__(self, principal: Principal, now_s: float) -> None:
        self.name = principal.name
        self.requests = 0
        self.publish_bytes = 0
        self.refused: dict[Quota, int] = {}
        self.quotas = principal.quotas
        self.buckets = {
            rate: DebtBucket(bound, now_s)
            for rate in RATES
            if (bound := principal.quotas.get(rate)) is not None
        }
        self.keys = {rate: (principal.id, str(rate), "") for rate in self.buckets}
        bucket = self.buckets.get(Quota.REQUESTS)
        self.of_requests = () if bucket is None else (bucket,)
        self.of_publishes = tuple(self.buckets.values())
        self.tenants = TenantBuckets(principal.quotas)


class QuotaTable:
    """Counts what principals use, and refuses what exceeds their quotas."""

    def __init__(self) -> None:
        self.usages: dict[str, Usage] = {}
        self.spent: SpentAmounts | None = None
        """The use of rates that other nodes are told; None without other nodes."""

    def check(self, principal: Principal, now_s: float) -> None:
        """Raise ``TooManyRequests`` if a rate of a principal is used up; count nothing."""
        usage = self._usage(principal, now_s)
        for bucket in usage.of_publishes:
            if bucket.full_s - now_s >= EMPTY_S:
                raise self._used_up(principal, usage, usage.of_publishes, now_s)

    def admit(self, principal: Principal, publish_bytes: int | None, now_s: float) -> None:
        """Count a request, a publish if its size is given; raise ``TooManyRequests``."""
        usage = self._usage(principal, now_s)
        buckets = usage.of_requests if publish_bytes is None else usage.of_publishes
        for bucket in buckets:
            if bucket.full_s - now_s >= EMPTY_S:
                raise self._used_up(principal, usage, buckets, now_s)
        usage.requests += 1
        if publish_bytes is not None:
            usage.publish_bytes += publish_bytes
            if buckets:
                self._take(usage, Quota.PUBLISH_BYTES, publish_bytes, now_s)
        if buckets:
            self._take(usage, Quota.REQUESTS, 1, now_s)

    def take_messages(self, principal: Principal, count: int, now_s: float) -> None:
        """Count the messages of a publish that was admitted."""
        self._take(self._usage(principal, now_s), Quota.PUBLISH_MESSAGES, count, now_s)

    def check_tenants(
        self, principal: Principal, amounts: Iterable[TenantAmount], now_s: float
    ) -> None:
        """Raise ``TooManyRequests`` if a quota of one of these tenants is used up."""
        usage = self._usage(principal, now_s)
        for amount in amounts:
            wait_s, quota = usage.tenants.wait(amount, now_s)
            if wait_s:
                whose = f"tenant {amount.tenant[:100]!r} of token {principal.id}"
                raise self._refusal(principal, whose, quota, wait_s, now_s)

    def take_tenants(
        self, principal: Principal, amounts: Iterable[TenantAmount], now_s: float
    ) -> None:
        """Count the amounts of these tenants."""
        tenants = self._usage(principal, now_s).tenants
        for amount in amounts:
            tenants.take(amount, now_s)
            if self.spent is None:
                continue
            if Quota.TENANT_MESSAGES in principal.quotas:
                key = (principal.id, Quota.TENANT_MESSAGES, amount.tenant)
                self.spent.add(key, amount.messages)
            if Quota.TENANT_BYTES in principal.quotas and amount.size_bytes:
                key = (principal.id, Quota.TENANT_BYTES, amount.tenant)
                self.spent.add(key, amount.size_bytes)

    def take_remote(self, principal: Principal, spent: SpentAmount, now_s: float) -> None:
        """Count what a principal used on another node, as if it had been used here."""
        usage = self._usage(principal, now_s)
        if spent.tenant:
            is_bytes = spent.quota == Quota.TENANT_BYTES
            parts = (0, spent.amount) if is_bytes else (spent.amount, 0)
            amount = TenantAmount(spent.tenant, *parts)
            usage.tenants.take(amount, now_s)
            return
        for rate, bucket in usage.buckets.items():
            if rate == spent.quota:
                bucket.take(spent.amount, now_s)

    def _take(self, usage: Usage, rate: Quota, amount: int, now_s: float) -> None:
        """Take an amount from the bucket of a rate, if the principal has that quota."""
        bucket = usage.buckets.get(rate)
        if bucket is not None:
            bucket.take(amount, now_s)
            if self.spent is not None and amount:
                self.spent.add(usage.keys[rate], amount)

    def check_in_flight(self, principal: Principal, room: InFlightRoom, now_s: float) -> None:
        """Raise ``TooManyRequests`` if a principal may lease no more."""
        if not room.left():
            self._count_refusal(self._usage(principal, now_s), Quota.IN_FLIGHT)
            raise TooManyRequests(
                f"the groups of token {principal.id} have {room.bound} messages in flight on this"
                " node, its share of the quota in_flight; settle some",
                retry_after_ms=_IN_FLIGHT_RETRY_MS,
            )

    def check_stored(self, principal: Principal, stored_bytes: int, now_s: float) -> None:
        """Raise ``QuotaExceeded`` if the topics of a principal hold as much as they may."""
        bound = principal.quotas[Quota.STORED_BYTES]
        if stored_bytes >= bound:
            self._count_refusal(self._usage(principal, now_s), Quota.STORED_BYTES)
            raise QuotaExceeded(
                f"the topics of token {principal.id} hold {format_size_bytes(stored_bytes)}, and"
                f" may hold {format_quota(Quota.STORED_BYTES, bound)} (its quota stored_bytes)"
            )

    def _usage(self, principal: Principal, now_s: float) -> Usage:
        usage = self.usages.get(principal.id)
        if usage is None or (
            usage.quotas is not principal.quotas and usage.quotas != principal.quotas
        ):
            known = usage
            if known is None and len(self.usages) >= 2 * limits.TOKENS_MAX:
                self.usages.clear()
            usage = self.usages[principal.id] = Usage(principal, now_s)
            if known is not None:
                usage.requests, usage.publish_bytes = known.requests, known.publish_bytes
                usage.refused = known.refused
        return usage

    def _used_up(
        self, principal: Principal, usage: Usage, buckets: Iterable[DebtBucket], now_s: float
    ) -> TooManyRequests:
        """Return the refusal by the rate of these buckets that takes the longest to come back."""
        longest = max(buckets, key=lambda bucket: bucket.wait_s(now_s))
        (rate,) = (rate for rate, bucket in usage.buckets.items() if bucket is longest)
        whose = f"token {principal.id}"
        return self._refusal(principal, whose, rate, longest.wait_s(now_s), now_s)

    def _refusal(
        self, principal: Principal, whose: str, quota: Quota, wait_s: float, now_s: float
    ) -> TooManyRequests:
        self._count_refusal(self._usage(principal, now_s), quota)
        bound = format_quota(quota, principal.quotas[quota])
        return TooManyRequests(
            f"{whose} has used up its quota {quota} of {bound}",
            retry_after_ms=math.ceil(wait_s * 1000),
        )

    @staticmethod
    def _count_refusal(usage: Usage, quota: Quota) -> None:
        usage.refused[quota] = usage.refused.get(quota, 0) + 1
