"""Remembering again, when a partition is opened, the dedup ids of its window."""

from __future__ import annotations

import random

from goq.broker.log.admission import window_us
from goq.config.topic import TopicSettings
from goq.delivery.dedup.dedup_window import DedupRows, DedupWindow
from goq.errors import DamagedData
from goq.storage.log.log import Log


def restore_dedup(messages: Log, settings: TopicSettings, now_us: int) -> DedupWindow:
    """Return the window of a log; blocks on the disk."""
    window = DedupWindow(
        window_us(settings),
        time_of=lambda offset: _time_of(messages, offset),
        factors=(random.getrandbits(64), random.getrandbits(64)),
    )
    if window.window_us is not None:
        end = messages.end_offset
        start = messages.reader.find_time(now_us - window.window_us + 1, end)
        rows = (DedupRows(*rows) for rows in messages.reader.dedup_rows(start, end))
        window.restore(rows, max(now_us, messages.active.time_us))
    return window


def _time_of(messages: Log, offset: int) -> int | None:
    if offset < messages.start_offset:
        return None
    try:
        return messages.reader.time_of(offset)
    except (DamagedData, OSError):
        return None
