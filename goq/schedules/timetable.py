"""When a schedule is due: at each time of a cron line in a time zone, or at an interval.

Cron lines have five fields, as those of Debian's cron, or six with seconds in front. They follow
the wall clock of their time zone (cronsim). Where a day lacks an hour, a line with a fixed hour is
due as soon as the hour is over. Where a day has an hour twice, such a line is due once. Lines with
a ``*`` in minute or hour are due whenever the clock shows a time that they name.

Intervals count from the creation of the schedule, whatever clocks show.

*Missed times*: a time is made up for while it is at most ``SCHEDULE_GRACE_MS`` late. Of those that
are later, only the last is, and only if there is none that is less late. So no time is lost when
one node takes over from another, and a long outage is made up for once.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from goq import limits
from goq.errors import InvalidInput

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_FIELDS = (5, 6)
_CLOCK_CHANGE_MS_MAX = 3 * 3_600_000  # that a time zone ever had, but for changes of the date
_LOOK_MS = 7 * 86_400_000


class Timetable(NamedTuple):
    """The times of a schedule, in Unix milliseconds: of ``cron`` in the zone ``tz``, or if that is
    empty each ``every_ms`` after ``start_ms``."""

    cron: str
    tz: str
    every_ms: int
    start_ms: int

    def next_after(self, time_ms: int) -> int | None:
        """Return the first time after ``time_ms``, None if there is none in 50 years."""
        if self.cron:
            return _next_of_cron(self.cron, self.tz, time_ms)
        return time_ms + self.every_ms - (time_ms - self.start_ms) % self.every_ms

    def due(self, after_ms: int, now_ms: int) -> list[int]:
        """Return the times after ``after_ms`` and up to ``now_ms`` at which to run now, in order.

        Those that an outage missed are made up for as the module says.
        """
        recent_ms = max(after_ms, now_ms - limits.SCHEDULE_GRACE_MS - 1)
        found = []
        time_ms = self.next_after(recent_ms)
        while time_ms is not None and time_ms <= now_ms:
            found.append(time_ms)
            time_ms = self.next_after(time_ms)
        if found or recent_ms == after_ms:
            return found
        last_ms = self._last(after_ms, recent_ms)
        return [] if last_ms is None else [last_ms]

    def _last(self, after_ms: int, until_ms: int) -> int | None:
        """Return the last time after ``after_ms`` and up to ``until_ms``, by bisection."""
        last_ms, low_ms, high_ms = None, after_ms, until_ms
        while low_ms < high_ms:
            middle_ms = (low_ms + high_ms) // 2
            time_ms = self.next_after(middle_ms)
            if time_ms is None or time_ms > until_ms:
                high_ms = middle_ms
            else:
                last_ms = low_ms = time_ms
        return last_ms


def check_cron(cron: str, tz: str, now_ms: int) -> None:
    """Raise ``InvalidInput`` for a cron line or a time zone that is wrong, or never due."""
    from cronsim import CronSimError  # most nodes have no schedules

    _zone(tz)
    if len(cron) > limits.CRON_CHARS_MAX or len(cron.split()) not in _FIELDS:
        raise InvalidInput(
            "a cron line has five fields (minute, hour, day of month, month, day of week) or six"
            f" with seconds in front, and at most {limits.CRON_CHARS_MAX} characters: as"
            " '0 9 * * MON-FRI'",
            field="cron",
        )
    try:
        is_ever_due = _next_of_cron(cron, tz, now_ms) is not None
    except (CronSimError, AssertionError, ValueError) as error:
        raise InvalidInput(f"{cron!r} is no cron line: {error}", field="cron") from None
    if not is_ever_due:
        raise InvalidInput(f"{cron!r} names no time within 50 years", field="cron")


def check_interval(every_ms: int) -> None:
    """Raise ``InvalidInput`` for an interval that is out of bounds."""
    shortest_ms, longest_ms = limits.SCHEDULE_EVERY_MS_MIN, limits.SCHEDULE_EVERY_MS_MAX
    if not shortest_ms <= every_ms <= longest_ms:
        raise InvalidInput(
            f"every is {shortest_ms // 1000} s to {longest_ms // 86_400_000} days", field="every"
        )


def _next_of_cron(cron: str, tz: str, after_ms: int) -> int | None:
    """Return the first time of a cron line after a time."""
    fields = cron.split()
    if len(fields) == _FIELDS[0] and not any(each.startswith("*") for each in fields[:2]):
        return _next_at_an_hour(cron, _zone(tz), after_ms)
    return _next_of_clock(cron, _zone(tz), after_ms)


def _next_at_an_hour(cron: str, zone: ZoneInfo, after_ms: int) -> int | None:
    """Return the next time of a line with a fixed minute and hour: once each day that it names.

    cronsim may return an earlier time in an hour that a day has twice. So it starts before any such
    hour.
    """
    from cronsim import CronSim

    start = (_EPOCH + (after_ms - _CLOCK_CHANGE_MS_MAX) * _MS).astimezone(zone)
    for time in CronSim(cron, start):
        time_ms = (time.astimezone(UTC) - _EPOCH) // _MS
        if time_ms > after_ms:
            return time_ms
    return None


def _next_of_clock(cron: str, zone: ZoneInfo, after_ms: int) -> int | None:
    """Return the next time that a clock in a zone shows a time of a line.

    The clock is followed from one change to the next; cronsim knows of none. Given a zone, it skips
    times after a change by half an hour.
    """
    from cronsim import CronSim

    start_ms = after_ms
    while True:
        ahead_ms = _ahead_ms(zone, start_ms)
        # What the clock shows at a change counts, too: only after_ms itself is over.
        shown_ms = start_ms + ahead_ms - (start_ms > after_ms)
        shown = next(CronSim(cron, _EPOCH + shown_ms * _MS), None)
        if shown is None:
            return None
        due_ms = (shown - _EPOCH) // _MS - ahead_ms
        change_ms = _first_change(zone, start_ms, due_ms)
        if change_ms is None:
            return due_ms
        start_ms = change_ms


def _first_change(zone: ZoneInfo, from_ms: int, to_ms: int) -> int | None:
    """Return when a clock is changed first, after one time and up to another.

    It is not changed twice within ``_LOOK_MS``.
    """
    ahead_ms = _ahead_ms(zone, from_ms)
    for end_ms in chain(range(from_ms + _LOOK_MS, to_ms, _LOOK_MS), (to_ms,)):
        if _ahead_ms(zone, end_ms) == ahead_ms:
            continue
        low_ms, high_ms = max(from_ms, end_ms - _LOOK_MS), end_ms
        while high_ms - low_ms > 1:
            middle_ms = (low_ms + high_ms) // 2
            if _ahead_ms(zone, middle_ms) == ahead_ms:
                low_ms = middle_ms
            else:
                high_ms = middle_ms
        return high_ms
    return None


def _ahead_ms(zone: ZoneInfo, time_ms: int) -> int:
    """Return by how much a clock in a zone is ahead of UTC."""
    offset = (_EPOCH + time_ms * _MS).astimezone(zone).utcoffset()
    return 0 if offset is None else offset // _MS


@lru_cache(maxsize=256)
def _zone(tz: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo  # a node without schedules starts without it, as without cronsim

    try:
        return ZoneInfo(tz)
    except (ValueError, OSError, LookupError):
        raise InvalidInput(
            f"there is no time zone {tz[:100]!r}; write one as Europe/Zurich or UTC", field="tz"
        ) from None
