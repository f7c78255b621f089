"""Durations, sizes and times in the form that people write, and back.

Durations: ``250ms``, ``30s``, ``5m``, ``1h30m``, ``7d``; a bare number is seconds. Sizes:
``64KiB``, ``10MB``, ``1GiB``; a bare number is bytes. Times: RFC 3339 with a zone, a date (its
first instant in UTC), ``now`` or relative to now (``-15m``, ``+2h``); a bare number is
milliseconds since the Unix epoch. A ``timedelta`` is a duration, a ``datetime`` with a zone a time.
All parsers raise :class:`~goq.errors.InvalidInput`, also for a duration of over 10,000 years. Times
before the year 1 or after 9999 count as the first or the last moment of these.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

from goq.errors import InvalidInput

_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION = re.compile(r"(?:\d{1,15}(?:\.\d{1,15})?(?:ms|s|m|h|d)){1,8}", re.ASCII)
_SIZE_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,15})?)\s*([A-Za-z]*)", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,15})?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_US_MIN = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_TIME_US_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_DURATION_MS_MAX = 10_000 * 366 * _DURATION_UNITS_MS["d"]


def parse_duration_ms(text: str | float | timedelta, *, field: str | None = None) -> int:
    """Return a duration in milliseconds; a bare number is seconds."""
    duration_ms = _duration_ms(text, field)
    if duration_ms > _DURATION_MS_MAX:
        raise InvalidInput(f"{text!r} is a duration of more than 10,000 years", field=field)
    return round(duration_ms)


def _duration_ms(text: str | float | timedelta, field: str | None) -> float:
    """Return a duration, however long."""
    if isinstance(text, str):
        compact = text.strip()
        if _DURATION.fullmatch(compact):
            parts = _DURATION_PART.findall(compact)
            return sum(float(count) * _DURATION_UNITS_MS[unit] for count, unit in parts)
        if not _NUMBER.fullmatch(compact):
            raise InvalidInput(
                f"{text!r} is not a duration; write it as 250ms, 30s, 5m, 1h30m or 7d", field=field
            )
        text = float(compact)
    if isinstance(text, timedelta):
        text = text.total_seconds()
    if not _is_number(text) or text < 0:
        raise InvalidInput(f"{text!r} is not a duration of zero or more seconds", field=field)
    return text * 1000


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def format_duration_ms(duration_ms: int) -> str:
    """Return the shortest exact form: 90000 is ``1m30s``."""
    if duration_ms == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, duration_ms = divmod(duration_ms, _DURATION_UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_size_bytes(text: str | int, *, field: str | None = None) -> int:
    """Return a size in bytes; a bare number is bytes."""
    match = _SIZE.fullmatch(str(text).strip()) if not isinstance(text, bool) else None
    unit = _SIZE_UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise InvalidInput(
            f"{text!r} is not a size; write it as 4096, 64KiB, 10MB or 1GiB", field=field
        )
    return round(float(match.group(1)) * unit) if "." in match.group(1) else int(match[1]) * unit


def format_size_bytes(size_bytes: int) -> str:
    """Return a size in the largest unit that is exact, as 64KiB, 10MB or 1025B."""
    for unit in ("GiB", "GB", "MiB", "MB", "KiB", "KB"):
        count, rest_bytes = divmod(size_bytes, _SIZE_UNITS[unit.lower()])
        if count and not rest_bytes:
            return f"{count}{unit}"
    return f"{size_bytes}B"


def round_size_bytes(size_bytes: int) -> str:
    """Return a size for people, rounded to a tenth of its unit."""
    for unit in ("GiB", "MiB", "KiB"):
        size = size_bytes / _SIZE_UNITS[unit.lower()]
        if size >= 1:
            return f"{size:.0f}{unit}" if size.is_integer() else f"{size:.1f}{unit}"
    return f"{size_bytes}B"


def parse_time_us(text: str | float | datetime, *, now_us: int, field: str | None = None) -> int:
    """Return a time in microseconds since the Unix epoch; a bare number is milliseconds."""
    return round(max(_TIME_US_MIN, min(_time_us(text, now_us, field), _TIME_US_MAX)))


def _time_us(text: str | float | datetime, now_us: int, field: str | None) -> float:
    """Return a time, however far away."""
    if isinstance(text, datetime):
        text = text.isoformat()
    if not isinstance(text, str):
        if not _is_number(text):
            raise _not_a_time(text, field)
        return text * 1000
    compact = text.strip()
    if compact == "now":
        return now_us
    if compact[:1] in ("-", "+") and _DURATION.fullmatch(compact[1:]):
        shift_us = _duration_ms(compact[1:], field) * 1000
        return now_us + shift_us if compact[0] == "+" else now_us - shift_us
    if _NUMBER.fullmatch(compact) and len(compact) > 4:
        return float(compact) * 1000
    try:
        if len(compact) == 10:
            day = date.fromisoformat(compact)
            moment = datetime(day.year, day.month, day.day, tzinfo=UTC)
        else:
            moment = datetime.fromisoformat(compact)
    except ValueError:
        raise _not_a_time(text, field) from None
    if moment.tzinfo is None:
        raise InvalidInput(f"{text!r} has no zone; add Z or an offset such as +02:00", field=field)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def is_by_clock(text: object) -> bool:
    """Return whether :func:`parse_time_us` needs the time for it: ``now``, ``-1h``, ``+30m``."""
    return isinstance(text, str) and (text.strip() == "now" or text.strip()[:1] in ("-", "+"))


def format_time_us(time_us: int) -> str:
    """Return RFC 3339 UTC with microseconds: ``2025-01-15T10:30:00.000000Z``."""
    seconds, micros = divmod(time_us, 1_000_000)
    return f"{_format_second(seconds)}.{micros:06d}Z"


@lru_cache(maxsize=1024)
def _format_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


def _not_a_time(text: object, field: str | None) -> InvalidInput:
    return InvalidInput(
        f"{text!r} is not a time; write 2025-01-15T10:30:00Z, 2025-01-15, now, -15m,"
        " or milliseconds since 1970",
        field=field,
    )
