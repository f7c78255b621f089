"""The use of a node by principals, and the refusal of more than their quotas."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from goq import limits
from goq.access.quota import RATES, Quota, format_quota
from goq.access.quota_bucket import DebtBucket, InFlightRoom, TenantAmount, TenantBuckets
from goq.access.rule import Principal
from goq.access.spent_amounts import SpentAmount, SpentAmounts
from goq.errors import QuotaExceeded, TooManyRequests
from goq.units import format_size_bytes

_IN_FLIGHT_RETRY_MS: Final = 500


class Usage:
    """The use of this node by one principal, and its buckets."""

    __slots__ = (
        "buckets",
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
        self._check(principal, self._usage(principal, now_s).of_publishes, now_s)

    def admit(self, principal: Principal, publish_bytes: int | None, now_s: float) -> None:
        """Count a request, a publish if its size is given; raise ``TooManyRequests``."""
        usage = self._usage(principal, now_s)
        if publish_bytes is not None:
            self._check(principal, usage.of_publishes, now_s)
            usage.publish_bytes += publish_bytes
            self._take(principal, usage, Quota.PUBLISH_BYTES, publish_bytes)
        else:
            self._check(principal, usage.of_requests, now_s)
        if usage.of_requests:
            self._take(principal, usage, Quota.REQUESTS, 1)
        usage.requests += 1

    def take_messages(self, principal: Principal, count: int, now_s: float) -> None:
        """Count the messages of a publish that was admitted."""
        usage = self._usage(principal, now_s)
        self._take(principal, usage, Quota.PUBLISH_MESSAGES, count)

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
                part = (principal.id, Quota.TENANT_MESSAGES, amount.tenant, amount.messages)
                self.spent.add(SpentAmount(*part))
            if Quota.TENANT_BYTES in principal.quotas and amount.size_bytes:
                part = (principal.id, Quota.TENANT_BYTES, amount.tenant, amount.size_bytes)
                self.spent.add(SpentAmount(*part))

    def take_remote(self, principal: Principal, spent: SpentAmount, now_s: float) -> None:
        """Count what a principal used on another node, as if it had been used here."""
        usage = self._usage(principal, now_s)
        if spent.tenant:
            is_bytes = spent.quota == Quota.TENANT_BYTES
            parts = (0, spent.amount) if is_bytes else (spent.amount, 0)
            amount = TenantAmount(spent.tenant, *parts)
            usage.tenants.wait(amount, now_s)
            usage.tenants.take(amount, now_s)
            return
        for rate, bucket in usage.buckets.items():
            if rate == spent.quota:
                bucket.wait_s(now_s)
                bucket.take(spent.amount)

    def _take(self, principal: Principal, usage: Usage, rate: Quota, amount: int) -> None:
        """Take an amount from the bucket of a rate, if the principal has that quota."""
        bucket = usage.buckets.get(rate)
        if bucket is not None:
            bucket.take(amount)
            if self.spent is not None and amount:
                self.spent.add(SpentAmount(principal.id, rate, "", amount))

    def check_in_flight(self, principal: Principal, room: InFlightRoom, now_s: float) -> None:
        """Raise ``TooManyRequests`` if a principal may lease no more."""
        if not room.left():
            self._count_refusal(self._usage(principal, now_s), Quota.IN_FLIGHT)
            raise TooManyRequests(
                f"the groups of token {principal.id} have {room.bound} messages in flight on this"
                " node, its share of the quota in_flight; settle some",
                retry_after_ms=_IN_FLIGHT_RETRY_MS,
            )

    def check_stored(
        self, principal: Principal, stored_bytes: int, bound: int, now_s: float
    ) -> None:
        """Raise ``QuotaExceeded`` if the topics of a principal hold ``bound``, this node's share of
        what they may."""
        if stored_bytes >= bound:
            self._count_refusal(self._usage(principal, now_s), Quota.STORED_BYTES)
            raise QuotaExceeded(
                f"the topics of token {principal.id} hold {format_size_bytes(stored_bytes)} on this"
                f" node, and may hold {format_size_bytes(bound)} there (its share of the quota"
                " stored_bytes)"
            )

    def _usage(self, principal: Principal, now_s: float) -> Usage:
        usage = self.usages.get(principal.id)
        if usage is None or usage.quotas is not principal.quotas:
            known = usage
            if known is None and len(self.usages) >= 2 * limits.TOKENS_MAX:
                self.usages.clear()
            usage = self.usages[principal.id] = Usage(principal, now_s)
            if known is not None:
                usage.requests, usage.publish_bytes = known.requests, known.publish_bytes
                usage.refused = known.refused
        return usage

    def _check(self, principal: Principal, buckets: Iterable[DebtBucket], now_s: float) -> None:
        longest_s, longest = 0.0, None
        for bucket in buckets:
            wait_s = bucket.wait_s(now_s)
            if wait_s > longest_s:
                longest_s, longest = wait_s, bucket
        if longest is not None:
            known = self._usage(principal, now_s).buckets
            (rate,) = (rate for rate, bucket in known.items() if bucket is longest)
            raise self._refusal(principal, f"token {principal.id}", rate, longest_s, now_s)

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
