"""A topic's settings: their names, defaults, bounds, and how people write them.

Settings are written as dotted keys (``retention.age=7d``) or as nested mappings of the same
names; both mean the same. Unknown names and values out of bounds raise ``InvalidInput`` naming
the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from goq import limits
from goq.errors import InvalidInput
from goq.units import format_duration_ms, format_size_bytes, parse_duration_ms, parse_size_bytes

NONE = "none"


class Fsync(StrEnum):
    """When a write is made durable, and so what an acknowledgement promises."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What may be set on a topic. None means unlimited."""

    retention_age_ms: int | None = 7 * 86_400_000
    retention_bytes: int | None = 10 * limits.GIB
    segment_bytes: int = 64 * limits.MIB
    segment_age_ms: int = 86_400_000
    fsync: Fsync = Fsync.ALWAYS
    visibility_timeout_ms: int = 30_000

    def changed(self, written: Mapping[str, Any]) -> TopicSettings:
        """Return these settings with the written ones parsed, checked and put in."""
        values: dict[str, Any] = {}
        for key, value in _flattened(written):
            setting = _SETTINGS.get(key)
            if setting is None:
                raise InvalidInput(
                    f"{key!r} is not a topic setting; there are {', '.join(_SETTINGS)}",
                    field=f"settings.{key}",
                )
            values[setting.attribute] = setting.parse(value, f"settings.{key}")
        return replace(self, **values)

    def written(self) -> dict[str, str]:
        """Return every setting by its dotted key, as people write it."""
        return {
            key: setting.format(getattr(self, setting.attribute))
            for key, setting in _SETTINGS.items()
        }


class _Setting(NamedTuple):
    attribute: str
    parse: Callable[[Any, str], Any]
    format: Callable[[Any], str]


def _flattened(written: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in written.items():
        if isinstance(value, Mapping):
            flat.extend(_flattened(value, f"{prefix}{key}."))
        else:
            flat.append((prefix + key, value))
    return flat


def _optional(
    parse: Callable[[Any, str], int], form: Callable[[int], str]
) -> tuple[Callable[[Any, str], int | None], Callable[[int | None], str]]:
    return (
        lambda value, field: None if value in (None, NONE) else parse(value, field),
        lambda value: NONE if value is None else form(value),
    )


def _bounded(
    parse: Callable[..., int], form: Callable[[int], str], low: int, high: int
) -> Callable[[Any, str], int]:
    def parse_bounded(value: Any, field: str) -> int:
        if not isinstance(value, str | int | float):
            raise InvalidInput(f"{value!r} is neither a text nor a number", field=field)
        number = parse(value, field=field)
        if not low <= number <= high:
            raise InvalidInput(
                f"{value!r} is out of bounds: allowed is {form(low)} to {form(high)}", field=field
            )
        return number

    return parse_bounded


def _duration(low_ms: int, high_ms: int) -> Callable[[Any, str], int]:
    return _bounded(parse_duration_ms, format_duration_ms, low_ms, high_ms)


def _size(low: int, high: int) -> Callable[[Any, str], int]:
    return _bounded(parse_size_bytes, format_size_bytes, low, high)


def _fsync(value: Any, field: str) -> Fsync:
    try:
        return Fsync(value)
    except ValueError:
        raise InvalidInput(
            f"{value!r} is not one of always, interval, never", field=field
        ) from None


_YEAR_MS = 365 * 86_400_000
_SETTINGS: dict[str, _Setting] = {
    "retention.age": _Setting(
        "retention_age_ms", *_optional(_duration(1000, 100 * _YEAR_MS), format_duration_ms)
    ),
    "retention.bytes": _Setting(
        "retention_bytes", *_optional(_size(limits.SEGMENT_BYTES_MIN, 2**60), format_size_bytes)
    ),
    "segment.bytes": _Setting(
        "segment_bytes",
        _size(limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX),
        format_size_bytes,
    ),
    "segment.age": _Setting("segment_age_ms", _duration(1000, _YEAR_MS), format_duration_ms),
    "fsync": _Setting("fsync", _fsync, str),
    "delivery.visibility_timeout": _Setting(
        "visibility_timeout_ms", _duration(1, limits.VISIBILITY_MS_MAX), format_duration_ms
    ),
}
