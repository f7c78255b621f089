"""Quotas of tokens: how much a principal may send in a second, store, and have in flight.

A quota is stored among the rules of its token, as ``quota:NAME=NUMBER``: a version that does not
know it reads a rule that allows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from goq import limits
from goq.errors import InvalidInput
from goq.units import format_size_bytes, parse_size_bytes

_PREFIX: Final = "quota:"


class Quota(StrEnum):
    """The kinds of quotas, which bound all nodes together. Those of tenants bound each tenant of a
    token's messages."""

    IN_FLIGHT = "in_flight"
    PUBLISH_BYTES = "publish_bytes_per_s"
    PUBLISH_MESSAGES = "publish_messages_per_s"
    REQUESTS = "requests_per_s"
    STORED_BYTES = "stored_bytes"
    TENANT_BYTES = "tenant_publish_bytes_per_s"
    TENANT_MESSAGES = "tenant_publish_messages_per_s"

    __hash__ = str.__hash__  # that of Enum is written in Python, and each request needs some


_SIZES: Final = (Quota.PUBLISH_BYTES, Quota.STORED_BYTES, Quota.TENANT_BYTES)
RATES: Final = (Quota.REQUESTS, Quota.PUBLISH_BYTES, Quota.PUBLISH_MESSAGES)
"""The rates that each request counts against."""
TENANT_RATES: Final = frozenset((Quota.TENANT_BYTES, Quota.TENANT_MESSAGES))


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
