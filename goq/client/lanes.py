"""The names of a topic's lanes, and what a frame says of delivery, by message."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import repeat
from typing import Final

from goq.config.topic import TopicSettings
from goq.frame.header import Attribute
from goq.frame.view import DELIVERY_COLUMNS, FrameView

DEFAULT_LANES: Final = "high,normal,low"


@lru_cache(maxsize=256)
def lanes_of(written: str) -> TopicSettings:
    """Return the settings of a topic that has lanes of these names; the rest are defaults."""
    return TopicSettings().changed({"priority.lanes": written})


def delivery_fields(
    frame: FrameView, start: int, end: int, lanes: str
) -> tuple[Iterable[str], Iterable[str | None], Iterable[int | None], Iterable[int | None]]:
    """Return priority, tenant, deliver_at and expires_at of messages ``start`` up to ``end``.

    Times are microseconds. Some of the four may never end.
    """
    named = lanes_of(lanes)
    default = repeat(named.lane_name(named.default_lane))
    if not frame.header.attributes & DELIVERY_COLUMNS:
        return default, repeat(None), repeat(None), repeat(None)
    numbers = frame.lanes(start, end)
    return (
        default if numbers is None else map(named.lane_name, numbers),
        frame.tenants_of(start, end) or repeat(None),
        _times_us(frame.times_ms(Attribute.DELIVER_AT, start, end)),
        _times_us(frame.times_ms(Attribute.EXPIRES_AT, start, end)),
    )


def _times_us(times_ms: list[int] | None) -> Iterable[int | None]:
    if times_ms is None:
        return repeat(None)
    return [time_ms * 1000 if time_ms else None for time_ms in times_ms]
