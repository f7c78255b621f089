"""Remembering again, when a partition is opened, the dedup ids of its window."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from goq import limits
from goq.broker.intake import window_us
from goq.delivery.dedup import DedupRows, DedupWindow
from goq.errors import DamagedData
from goq.frame.header import Attribute
from goq.settings import TopicSettings
from goq.storage.log import Log


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
        window.restore(scan_dedup_rows(messages, start, end), max(now_us, messages.active.time_us))
    return window


def scan_dedup_rows(messages: Log, start: int, end: int) -> Iterator[DedupRows]:
    """Yield the ids of messages ``start`` up to ``end``, the newest first, by reading them all."""
    pieces: list[DedupRows] = []
    offset = start
    while offset < end:
        reading = messages.reader.read(
            offset, end, messages_max=2**62, bytes_max=limits.READ_BYTES_MAX
        )
        for view in reading.frames:
            if view.header.attributes & Attribute.DEDUP_ID:
                column = view.column(Attribute.DEDUP_ID)
                assert column is not None
                ids = np.frombuffer(column, np.uint64).reshape(-1, 2).copy()
                base = view.header.base_offset
                pieces.append(DedupRows(np.arange(base, base + len(ids)), ids))
        if reading.next_offset <= offset:
            break
        offset = reading.next_offset
    yield from reversed(pieces)


def _time_of(messages: Log, offset: int) -> int | None:
    if offset < messages.start_offset:
        return None
    try:
        return messages.reader.time_of(offset)
    except (DamagedData, OSError):
        return None
