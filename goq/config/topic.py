"""A topic's settings: their names, defaults and bounds.

Settings are written as dotted keys (``retention.age=7d``) or as nested mappings of the same names;
both mean the same. An unknown name or a value out of bounds raises ``InvalidInput`` with the key. A
group may override the settings under ``delivery`` and a few others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from goq import limits
from goq.config.types import (
    Kind,
    choice,
    count,
    duration,
    lane_weights,
    lanes,
    optional,
    share,
    size,
    tenant_weights,
    text,
    topic_name,
    truth,
)
from goq.errors import InvalidInput

_DELIVERY_PREFIX = "delivery."
_GROUP_SETTINGS_ELSEWHERE = ("dead_letters.expired", "retention.protect_unread")
_YEAR_MS = 365 * 86_400_000


class Fsync(StrEnum):
    """When a write becomes durable: the promise of an acknowledgement."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


class Cleanup(StrEnum):
    """How old messages are removed: all by age and size, or all but the newest of each key."""

    DELETE = "delete"
    COMPACT = "compact"


class Ordering(StrEnum):
    """The order that a group keeps: of each key, none, or of each whole partition."""

    KEY = "key"
    NONE = "none"
    PARTITION = "partition"


class TopicSettings(msgspec.Struct, frozen=True):
    """The settings of a topic. None means unlimited, or none."""

    retention_age_ms: int | None = 7 * 86_400_000
    retention_bytes: int | None = 10 * limits.GIB
    archive: bool = False
    total_age_ms: int | None = None
    """How long archived messages are kept, from when they were published."""
    total_bytes: int | None = None
    """How many bytes of a partition are kept, live and archived, as they are uncompressed."""
    cleanup: Cleanup = Cleanup.DELETE
    tombstone_age_ms: int = 86_400_000
    segment_bytes: int = 64 * limits.MIB
    segment_age_ms: int = 86_400_000
    fsync: Fsync = Fsync.ALWAYS
    visibility_timeout_ms: int = 30_000
    attempts_max: int | None = 4
    backoff_initial_ms: int = 1_000
    backoff_max_ms: int = 60_000
    backoff_jitter: float = 0.2
    dead_letters: bool = True
    dead_letter_expired: bool = False
    dead_letter_topic: str | None = None
    """The topic of dead letters, None for that of the topic's own."""
    ordering: Ordering = Ordering.KEY
    protect_unread: bool = False
    delay_max_ms: int = _YEAR_MS
    lanes: tuple[str, ...] = ("high", "normal", "low")
    """Names of lanes 0, 1, …; empty where lanes are only numbered."""
    lane_weights: tuple[int, ...] | None = None
    """Shares by lane number; None for strict priority."""
    starvation_ms: int | None = None
    tenant_weights: tuple[tuple[str, float], ...] = ()
    tenant_in_flight_max: int | None = None
    dedup_window_ms: int | None = 86_400_000
    sqs: str | None = None
    """The record of a queue of the SQS-compatible endpoint: its attributes and tags."""

    @property
    def default_lane(self) -> int:
        """The lane of a message without a priority: ``normal``, or else the middle one."""
        if "normal" in self.lanes:
            return self.lanes.index("normal")
        return (len(self.lanes) or limits.LANES_MAX) // 2

    def lane(self, priority: str | int, *, field: str) -> int:
        """Return the number of a lane given by name or number. Raises ``InvalidInput``."""
        if isinstance(priority, str) and priority in self.lanes:
            return self.lanes.index(priority)
        number = priority
        if isinstance(number, str) and number.isascii() and number.isdigit() and len(number) < 4:
            number = int(number)
        lane_count = len(self.lanes) or limits.LANES_MAX
        if type(number) is int and 0 <= number < lane_count:
            return number
        named = f"{', '.join(self.lanes)}, or " if self.lanes else ""
        raise InvalidInput(
            f"there is no lane {str(priority)[:80]!r}; there are {named}0 to {lane_count - 1}",
            field=field,
        )

    def lane_name(self, lane: int) -> str:
        """Return a lane's name, or its number where it has no name."""
        return self.lanes[lane] if lane < len(self.lanes) else str(lane)

    def changed(self, written: Mapping[str, Any]) -> TopicSettings:
        """Return these settings with others, as written by people, in their place.

        Raises ``InvalidInput`` for an unknown name or a value out of bounds.
        """
        values: dict[str, Any] = {}
        for key, value in flatten(written).items():
            setting = _SETTINGS.get(key)
            if setting is None:
                raise InvalidInput(
                    f"{key!r} is not a topic setting; there are {', '.join(_SETTINGS)}",
                    field=f"settings.{key}",
                )
            values[setting.attribute] = setting.kind.parse(value, f"settings.{key}")
        return replace(self, **values)

    def restored(self, names: Collection[str], defaults: TopicSettings) -> TopicSettings:
        """Return these settings with ``names`` as they are in ``defaults``.

        Raises ``InvalidInput`` for an unknown name.
        """
        for name in names:
            if name not in _SETTINGS:
                raise InvalidInput(
                    f"{name!r} is not a topic setting; there are {', '.join(_SETTINGS)}",
                    field="unset",
                )
        attributes = [_SETTINGS[name].attribute for name in names]
        return replace(self, **{each: getattr(defaults, each) for each in attributes})

    def for_group(self, written: Mapping[str, Any]) -> TopicSettings:
        """Return these settings with a group's own in their place.

        Raises ``InvalidInput`` for a setting that a group cannot have.
        """
        values = flatten(written)
        for name in values:
            if name not in _GROUP_SETTINGS:
                known = ", ".join(_GROUP_SETTINGS)
                raise InvalidInput(
                    f"{name!r} is not a group setting; there are {known}", field=f"settings.{name}"
                )
        return self.changed({_GROUP_SETTINGS[name]: value for name, value in values.items()})

    def written(self) -> dict[str, str]:
        """Return the settings by their dotted keys, in the form that people write.

        Those of ``OPTIONAL`` are there only if they are set: earlier versions do not know them.
        """
        return {
            key: setting.kind.format(getattr(self, setting.attribute))
            for key, setting in _SETTINGS.items()
            if key not in OPTIONAL or getattr(self, setting.attribute) is not None
        }

    def written_for_group(self) -> dict[str, str]:
        """Return the settings that a group can have, by a group's names for them."""
        written = self.written()
        return {name: written[key] for name, key in _GROUP_SETTINGS.items()}


class _Setting(NamedTuple):
    attribute: str
    kind: Kind[Any]


def flatten(written: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings by dotted key, however they were nested."""
    flat: dict[str, Any] = {}
    for key, value in written.items():
        if isinstance(value, Mapping) and prefix + key not in _SETTINGS:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


_SETTINGS: dict[str, _Setting] = {
    "retention.age": _Setting("retention_age_ms", optional(duration(1000, 100 * _YEAR_MS))),
    "retention.bytes": _Setting("retention_bytes", optional(size(limits.SEGMENT_BYTES_MIN, 2**60))),
    "retention.protect_unread": _Setting("protect_unread", truth),
    "retention.total_age": _Setting("total_age_ms", optional(duration(1000, 100 * _YEAR_MS))),
    "retention.total_bytes": _Setting(
        "total_bytes", optional(size(limits.SEGMENT_BYTES_MIN, 2**60))
    ),
    "archive": _Setting("archive", truth),
    "cleanup": _Setting("cleanup", choice(Cleanup)),
    "compaction.tombstone_retention": _Setting("tombstone_age_ms", duration(0, _YEAR_MS)),
    "segment.bytes": _Setting(
        "segment_bytes", size(limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX)
    ),
    "segment.age": _Setting("segment_age_ms", duration(1000, _YEAR_MS)),
    "fsync": _Setting("fsync", choice(Fsync)),
    "delivery.visibility_timeout": _Setting(
        "visibility_timeout_ms", duration(1, limits.VISIBILITY_MS_MAX)
    ),
    "delivery.max_attempts": _Setting("attempts_max", optional(count(1, limits.ATTEMPTS_MAX))),
    "delivery.backoff.initial": _Setting("backoff_initial_ms", duration(0, limits.BACKOFF_MS_MAX)),
    "delivery.backoff.max": _Setting("backoff_max_ms", duration(0, limits.BACKOFF_MS_MAX)),
    "delivery.backoff.jitter": _Setting("backoff_jitter", share(0, 1)),
    "delivery.dead_letters": _Setting("dead_letters", truth),
    "dead_letters.expired": _Setting("dead_letter_expired", truth),
    "dead_letters.topic": _Setting("dead_letter_topic", optional(topic_name)),
    "delivery.ordering": _Setting("ordering", choice(Ordering)),
    "delay.max": _Setting("delay_max_ms", duration(0, limits.DELAY_MS_MAX)),
    "priority.lanes": _Setting("lanes", lanes),
    "priority.weights": _Setting("lane_weights", lane_weights),
    "priority.max_wait": _Setting("starvation_ms", optional(duration(1, _YEAR_MS))),
    "tenants.weights": _Setting("tenant_weights", tenant_weights),
    "tenants.max_in_flight": _Setting(
        "tenant_in_flight_max", optional(count(1, limits.TENANT_IN_FLIGHT_MAX))
    ),
    "dedup.window": _Setting(
        "dedup_window_ms", optional(duration(1000, limits.DEDUP_WINDOW_MS_MAX))
    ),
    "sqs": _Setting("sqs", optional(text(limits.SQS_RECORD_CHARS_MAX))),
}
TOTAL_RETENTION = frozenset({"retention.total_age", "retention.total_bytes"})
"""Settings of how much is kept in all, live and archived."""
OPTIONAL = frozenset({"dead_letters.topic", "sqs"}) | TOTAL_RETENTION
"""Settings that a topic need not have."""

_GROUP_SETTINGS: dict[str, str] = {
    key.removeprefix(_DELIVERY_PREFIX): key
    for key in _SETTINGS
    if key.startswith(_DELIVERY_PREFIX) or key in _GROUP_SETTINGS_ELSEWHERE
}
"""The topic setting that each group setting overrides, by the group's name for it."""


class EffectiveSettings(dict[str, TopicSettings]):
    """The settings of a topic's groups: the ``topic``'s own, with the group's overrides."""

    def __init__(self, topic: TopicSettings) -> None:
        super().__init__()
        self.topic = topic

    def __missing__(self, group: str) -> TopicSettings:
        """Return the settings of a group that is not known."""
        return self.topic

    def set_group(self, group: str, written: Mapping[str, str]) -> None:
        """Set the overrides of a group."""
        self[group] = self.topic.for_group(written) if written else self.topic
