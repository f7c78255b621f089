"""Bounds of requests: those that AWS documents, or the relaxed ones of ``sqs.limits``."""

from __future__ import annotations

from typing import Final

import msgspec

from goq import limits
from goq.sqs.protocol.errors import invalid_parameter

SIZE_BYTES_MIN: Final = 1024
RETENTION_S_MIN: Final = 60
RETENTION_S_MAX: Final = 1_209_600
VISIBILITY_S_MAX: Final = 43_200
DELAY_S_MAX: Final = 900
ATTRIBUTES_MAX: Final = 10
ATTRIBUTE_NAME_CHARS_MAX: Final = 256
ATTRIBUTE_TYPE_CHARS_MAX: Final = 256
GROUP_ID_CHARS_MAX: Final = 128
TAGS_MAX: Final = 50
TAG_KEY_CHARS_MAX: Final = 128
TAG_VALUE_CHARS_MAX: Final = 256
LIST_RESULTS_MAX: Final = 1000
RECEIVE_COUNT_MAX: Final = 1000


class Bounds(msgspec.Struct, frozen=True):
    """The bounds that differ between ``strict`` and ``relaxed``; sizes in bytes."""

    size_max: int
    entries_max: int
    receive_max: int
    wait_s_max: int


STRICT: Final = Bounds(limits.MIB, 10, 10, 20)
RELAXED: Final = Bounds(limits.VALUE_BYTES_MAX, 1_000, 1_000, limits.WAIT_MS_MAX // 1000)


def check_range(name: str, value: int, low: int, high: int) -> int:
    """Return ``value`` if it is within bounds. Raises ``SqsError``."""
    if not low <= value <= high:
        raise invalid_parameter(
            f"Value {value} for parameter {name} is invalid. Reason: Must be between {low} and"
            f" {high}, if provided."
        )
    return value
