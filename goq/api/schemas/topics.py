"""The JSON shapes of what is shown of a topic over time."""

from __future__ import annotations

import msgspec


class DayOut(msgspec.Struct):
    """What was appended on a day of UTC and is still there."""

    date: str
    messages: int
    bytes: int


class RatesOut(msgspec.Struct):
    """What happened a second, on the average of the last ``window_s`` seconds."""

    published_per_s: float
    published_bytes_per_s: float
    delivered_per_s: float
    acked_per_s: float
    window_s: float


class WaitingOut(msgspec.Struct):
    """How many messages wait for their time, and when the next is due."""

    count: int
    next_due: str | None


class HistoryOut(msgspec.Struct):
    """A topic over time: its first and last message, by day, now, and what is to come."""

    first_time: str | None
    last_time: str | None
    days: list[DayOut]
    rates: RatesOut
    scheduled: WaitingOut
