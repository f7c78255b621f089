"""Quotas of tokens: how much a principal may send in a second, and store.

A quota is stored among the rules of its token, as ``quota:NAME=NUMBER``: a version that does not
know it reads a rule that allows nothing.

A rate has a token bucket with the burst of one second. A request is admitted while the bucket is
not empty, and may leave it in debt: so a large request passes, and the next ones wait for it. Time
is a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from goq import limits
from goq.access.rule import Principal
from goq.errors import InvalidInput, QuotaExceeded, TooManyRequests
from goq.units import format_size_bytes, parse_size_bytes

_PREFIX: Final = "quota:"


class Quota(StrEnum):
    """The kinds of quotas; all but ``stored_bytes`` are rates on each node."""

    PUBLISH_BYTES = "publish_bytes_per_s"
    PUBLISH_MESSAGES = "publish_messages_per_s"
    REQUESTS = "requests_per_s"
    STORED_BYTES = "stored_bytes"


_SIZES: Final = (Quota.PUBLISH_BYTES, Quota.STORED_BYTES)
_RATES: Final = (Quota.REQUESTS, Quota.PUBLISH_BYTES, Quota.PUBLISH_MESSAGES)


def quota_texts(quotas: Mapping[str, str | int]) -> tuple[str, ...]:
    """Return quotas as they are stored; raise ``InvalidInput`` for a name or a bound that is
    wrong."""
    found = []
    for name, value in quotas.items():
        if name not in list(Quota):
            raise InvalidInput(
                f"{name[:50]!r} is not a quota: there are {', '.join(Quota)}", field="quotas"
            )
        bound = _bound(Quota(name), value)
        if not 1 <= bound <= limits.QUOTA_MAX:
            raise InvalidInput(f"{name} is 1 to {limits.QUOTA_MAX}, not {bound}", field="quotas")
        found.append(f"{_PREFIX}{name}={bound}")
    return tuple(found)


def _bound(quota: Quota, value: str | int) -> int:
    if quota in _SIZES:
        return parse_size_bytes(value, field="quotas")
    text = str(value)
    if not (text.isascii() and text.isdecimal() and len(text) < 18):
        raise InvalidInput(f"{quota} is a number, not {text[:50]!r}", field="quotas")
    return int(text)


def is_quota(text: str) -> bool:
    """Return whether a stored rule is a quota."""
    return text.startswith(_PREFIX)


def parse_quotas(texts: Iterable[str]) -> dict[str, int]:
    """Return the quotas among stored rules; those that this version cannot read are left out."""
    found: dict[str, int] = {}
    for text in texts:
        name, _, bound = text.removeprefix(_PREFIX).partition("=")
        if is_quota(text) and name in list(Quota) and bound.isascii() and bound.isdecimal():
            found[Quota(name)] = int(bound)
    return found


def format_quota(quota: str, bound: int) -> str:
    """Return a bound as people write it."""
    return format_size_bytes(bound) if quota in _SIZES else str(bound)


class DebtBucket:
    """A bucket that ``rate_per_s`` fills up to what one second gives, and that may be in debt."""

    __slots__ = ("_at_s", "_level", "_rate_per_s")

    def __init__(self, rate_per_s: float, now_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._level = rate_per_s
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return 0 if the bucket is not empty, else the time until it is not."""
        filled = self._level + max(0.0, now_s - self._at_s) * self._rate_per_s
        self._level = min(self._rate_per_s, filled)
        self._at_s = max(self._at_s, now_s)
        return 0.0 if self._level > 0 else -self._level / self._rate_per_s + 0.001

    def take(self, amount: float) -> None:
        """Take an amount, whatever is there."""
        self._level -= amount


class Usage:
    """The use of this node by one principal, and its buckets."""

    __slots__ = ("buckets", "name", "publish_bytes", "quotas", "refused", "requests")

    def __init__(self, principal: Principal, now_s: float) -> None:
        self.name = principal.name
        self.requests = 0
        self.publish_bytes = 0
        self.refused: dict[Quota, int] = {}
        self.quotas = principal.quotas
        self.buckets = {
            rate: DebtBucket(bound, now_s)
            for rate in _RATES
            if (bound := principal.quotas.get(rate)) is not None
        }


class QuotaTable:
    """Counts what principals use, and refuses what exceeds their quotas."""

    def __init__(self) -> None:
        self.usages: dict[str, Usage] = {}

    def check(self, principal: Principal, now_s: float) -> None:
        """Raise ``TooManyRequests`` if a rate of a principal is used up; count nothing."""
        self._check(principal, self._usage(principal, now_s), _RATES, now_s)

    def admit(self, principal: Principal, publish_bytes: int | None, now_s: float) -> None:
        """Count a request, a publish if its size is given; raise ``TooManyRequests``."""
        usage = self._usage(principal, now_s)
        buckets = usage.buckets
        if buckets:
            rates = _RATES if publish_bytes is not None else (Quota.REQUESTS,)
            self._check(principal, usage, rates, now_s)
            if Quota.REQUESTS in buckets:
                buckets[Quota.REQUESTS].take(1)
            if publish_bytes is not None and Quota.PUBLISH_BYTES in buckets:
                buckets[Quota.PUBLISH_BYTES].take(publish_bytes)
        usage.requests += 1
        usage.publish_bytes += publish_bytes or 0

    def take_messages(self, principal: Principal, count: int, now_s: float) -> None:
        """Count the messages of a publish that was admitted."""
        bucket = self._usage(principal, now_s).buckets.get(Quota.PUBLISH_MESSAGES)
        if bucket is not None:
            bucket.take(count)

    def check_stored(self, principal: Principal, stored_bytes: int, now_s: float) -> None:
        """Raise ``QuotaExceeded`` if the topics of a principal hold as much as they may."""
        bound = principal.quotas.get(Quota.STORED_BYTES)
        if bound is not None and stored_bytes >= bound:
            self._count_refusal(self._usage(principal, now_s), Quota.STORED_BYTES)
            raise QuotaExceeded(
                f"the topics of token {principal.id} hold {format_size_bytes(stored_bytes)} on this"
                f" node, and may hold {format_size_bytes(bound)} (quota stored_bytes)"
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

    def _check(
        self, principal: Principal, usage: Usage, rates: Iterable[Quota], now_s: float
    ) -> None:
        waits = [
            (usage.buckets[rate].wait_s(now_s), rate) for rate in rates if rate in usage.buckets
        ]
        if not waits:
            return
        wait_s, rate = max(waits)
        if wait_s:
            self._count_refusal(usage, rate)
            bound = format_quota(rate, principal.quotas[rate])
            raise TooManyRequests(
                f"token {principal.id} has used up its quota {rate} of {bound}",
                retry_after_ms=math.ceil(wait_s * 1000),
            )

    @staticmethod
    def _count_refusal(usage: Usage, quota: Quota) -> None:
        usage.refused[quota] = usage.refused.get(quota, 0) + 1
