"""The messages and bytes of a partition's log per day, from its indexes, with a few reads per day.

Days are UTC days and divide the log in offset order. A day starts at the first message appended at
or after its midnight. A message behind it counts to the same day, even if a clock that was set back
gave it an earlier time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from goq.storage.log.reader import LogReader
from goq.storage.log.time_lookup import read_backward, retry_deleted

DAY_US = 86_400_000_000


class LogVolume(NamedTuple):
    """Messages, and the bytes of their frames."""

    messages: int
    size_bytes: int


def day_starts(first_us: int, now_us: int, days: int) -> list[int]:
    """Return the midnights of the last ``days`` days, none before the day of the first message."""
    today_us = now_us // DAY_US * DAY_US
    start_us = min(max(first_us // DAY_US * DAY_US, today_us - (days - 1) * DAY_US), today_us)
    return list(range(start_us, today_us + 1, DAY_US))


def bounds_us(messages: LogReader) -> tuple[int, int] | None:
    """Return the append times of the first and the last message, in offset order.

    Returns None if there is no readable message. Blocks on the disk.
    """
    return retry_deleted([messages], lambda: _bounds_us(messages))


def _bounds_us(messages: LogReader) -> tuple[int, int] | None:
    last = next(read_backward(messages, messages.segments[-1].end_offset), None)
    if last is None:
        return None
    for segment in messages.segments:
        first_us = segment.read_first_time(messages.disk)
        if first_us is not None:
            return first_us, last.view.header.append_time_us
    return None


def daily_volumes(messages: LogReader, starts_us: Sequence[int]) -> list[LogVolume]:
    """Return the volume of each day that starts at these times. The last day ends with the log.

    Blocks on the disk.
    """
    return retry_deleted([messages], lambda: _daily_volumes(messages, starts_us))


def _daily_volumes(messages: LogReader, starts_us: Sequence[int]) -> list[LogVolume]:
    segments, before_bytes = messages.segments, 0
    begins: dict[int, int] = {}
    for segment in segments:
        begins[segment.base_offset] = before_bytes
        before_bytes += segment.size_bytes
    end = LogVolume(segments[-1].end_offset, before_bytes)
    volumes = [_volume_before(messages, start_us, begins, end) for start_us in starts_us]
    return [
        LogVolume(later.messages - start.messages, later.size_bytes - start.size_bytes)
        for start, later in pairwise([*volumes, end])
    ]


def _volume_before(
    messages: LogReader, time_us: int, begins: dict[int, int], end: LogVolume
) -> LogVolume:
    """Return the volume of the log before a time."""
    offset = messages.offset_for_time(time_us, end.messages)
    if offset >= end.messages:
        return end
    segment, position, _ = messages.locate(offset)
    return LogVolume(offset, begins.get(segment.base_offset, 0) + position)
