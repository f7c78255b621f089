"""What a partition's log holds by day, told by its indexes: a few reads a day, however much it is.

Days are those of UTC, and divide a log in its own order: a day begins with the first message
appended at or after its midnight. What a clock that was set back dates before that midnight, but
was appended behind, counts to the day.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from goq.storage.log.reader import LogReader
from goq.storage.log.time_lookup import read_backward, retry_deleted

DAY_US = 86_400_000_000


class Amount(NamedTuple):
    """Messages, and the bytes of the frames that they are stored in."""

    messages: int
    size_bytes: int


def day_starts(first_us: int, now_us: int, days: int) -> list[int]:
    """Return the midnights with which the last ``days`` days begin, none before the first."""
    today_us = now_us // DAY_US * DAY_US
    start_us = min(max(first_us // DAY_US * DAY_US, today_us - (days - 1) * DAY_US), today_us)
    return list(range(start_us, today_us + 1, DAY_US))


def bounds_us(messages: LogReader) -> tuple[int, int] | None:
    """Return when the first and the last message were appended, by the log's order.

    None where there is none that can be read. Blocks on the disk.
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


def by_day(messages: LogReader, starts_us: Sequence[int]) -> list[Amount]:
    """Return what was appended on each of the days that begin then, the last up to the end.

    Blocks on the disk.
    """
    return retry_deleted([messages], lambda: _by_day(messages, starts_us))


def _by_day(messages: LogReader, starts_us: Sequence[int]) -> list[Amount]:
    segments, before_bytes = messages.segments, 0
    begins: dict[int, int] = {}
    for segment in segments:
        begins[segment.base_offset] = before_bytes
        before_bytes += segment.size_bytes
    end = Amount(segments[-1].end_offset, before_bytes)
    places = [_place(messages, start_us, begins, end) for start_us in starts_us]
    return [
        Amount(later.messages - place.messages, later.size_bytes - place.size_bytes)
        for place, later in pairwise([*places, end])
    ]


def _place(messages: LogReader, time_us: int, begins: dict[int, int], end: Amount) -> Amount:
    """Return the first offset of a time, and how many bytes of the log are before it."""
    offset = messages.offset_for_time(time_us, end.messages)
    if offset >= end.messages:
        return end
    segment, position, _ = messages.locate(offset)
    return Amount(offset, begins.get(segment.base_offset, 0) + position)
