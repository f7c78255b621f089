"""When schedules are due: cron lines over changes of the clock, intervals, and missed times."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from goq import limits
from goq.errors import InvalidInput
from goq.schedules.timetable import Timetable, check_cron, check_interval
from tests.support.effort import first_of

ZURICH = "Europe/Zurich"  # ahead by an hour on 2026-03-29 at 01:00 UTC, back on 2026-10-25 at 01:00
SPRING, AUTUMN = "2026-03-29T00:00", "2026-10-25T00:00"
GRACE_MS = limits.SCHEDULE_GRACE_MS


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def text(time_ms: int | None) -> str | None:
    return None if time_ms is None else f"{datetime.fromtimestamp(time_ms / 1000, UTC):%m-%d %H:%M}"


def times(cron: str, after: str, count: int, tz: str = ZURICH) -> list[str | None]:
    table, found, time_ms = Timetable(cron, tz, 0, 0), [], ms(after)
    for _ in range(count):
        time_ms = table.next_after(time_ms) or 0
        found.append(text(time_ms))
    return found


def test_a_cron_line_follows_the_clock_of_its_time_zone() -> None:
    assert times("0 9 * * *", "2026-03-28T00:00", 2) == ["03-28 08:00", "03-29 07:00"]
    assert times("0 9 * * MON-FRI", "2026-10-23T12:00", 1) == ["10-26 08:00"]
    assert times("*/20 9 * * *", "2026-06-01T06:00", 3, "UTC")[0] == "06-01 09:00"


def test_a_fixed_hour_that_a_day_lacks_is_due_when_it_is_over() -> None:
    assert times("30 2 * * *", SPRING, 2) == ["03-29 01:00", "03-30 00:30"]


def test_a_fixed_hour_that_a_day_has_twice_is_due_once() -> None:
    assert times("30 2 * * *", AUTUMN, 2) == ["10-25 00:30", "10-26 01:30"]


def test_a_line_for_any_hour_is_due_in_both_of_an_hour_that_a_day_has_twice() -> None:
    expected = ["10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00"]
    assert times("*/30 * * * *", "2026-10-25T00:10", 4) == expected


def shown_times(minute: int | None, hour: int | None, tz: str, after: str, count: int) -> list[str]:
    """Return when a clock shows a minute, an hour or any, by looking at it each minute."""
    found, zone, time_ms = [], ZoneInfo(tz), ms(after)
    while len(found) < count:
        time_ms += 60_000
        shown = datetime.fromtimestamp(time_ms / 1000, zone)
        if minute in (None, shown.minute) and hour in (None, shown.hour):
            found.append(str(text(time_ms)))
    return found


@pytest.mark.parametrize(
    ("tz", "around"),
    [
        (ZURICH, SPRING),
        (ZURICH, AUTUMN),
        ("Australia/Lord_Howe", "2026-04-04T14:00"),  # back from 2:00 to 1:30 at 15:00 UTC
        ("Australia/Lord_Howe", "2026-10-03T14:00"),  # ahead from 2:00 to 2:30 at 15:30 UTC
        ("Asia/Pyongyang", "2018-05-04T14:00"),  # ahead from 23:30 to 24:00 at 15:00 UTC
    ],
)
def test_a_line_for_any_minute_or_hour_is_due_whenever_the_clock_shows_it(
    tz: str, around: str
) -> None:
    for cron, minute, hour in (
        ("* * * * *", None, None),
        ("* 2 * * *", None, 2),
        ("* 0 * * *", None, 0),
        ("40 * * * *", 40, None),
        ("0 * * * *", 0, None),
    ):
        count = 5 if hour is None and minute is not None else 150
        assert times(cron, around, count, tz) == shown_times(minute, hour, tz, around, count), cron


@pytest.mark.parametrize(
    "tz",
    first_of(["Australia/Lord_Howe", "Antarctica/Troll", ZURICH, "America/Havana"], quick=2),
)
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/15 * * * *", "15 1-3 * * *", "* 2 * * *"])
def test_times_do_not_depend_on_when_one_asks(cron: str, tz: str) -> None:
    table, draw = Timetable(cron, tz, 0, 0), random.Random(f"{cron} {tz}")
    for day in (SPRING, AUTUMN, "2026-03-08T04:00", "2026-11-01T04:00", "2026-10-03T12:00"):
        end_ms = ms(day) + 40 * 3_600_000
        known, time_ms = [], ms(day) - 40 * 3_600_000
        while (time_ms := table.next_after(time_ms) or end_ms) < end_ms:
            known.append(time_ms)
        assert known == sorted(set(known))
        for _ in range(20):
            asked_ms = ms(day) + draw.randrange(6 * 3600) * 1000
            later = [each for each in known if each > asked_ms]
            assert not later or table.next_after(asked_ms) == later[0]
            before = [each for each in known if each <= asked_ms - GRACE_MS - 2]
            recent = [each for each in known if asked_ms - GRACE_MS <= each <= asked_ms]
            expected = recent or before[-1:]
            assert table.due(known[0] - 1, asked_ms) == expected


def test_an_interval_counts_from_the_creation() -> None:
    table = Timetable("", "", 5000, 1234)
    assert table.next_after(1234) == 6234
    assert table.next_after(6233) == 6234
    assert table.next_after(6234) == 11234


def test_missed_times_within_the_grace_are_all_made_up_for() -> None:
    table = Timetable("", "", 1000, 0)
    assert table.due(100_000, 103_500) == [101_000, 102_000, 103_000]
    assert len(table.due(0, 600_000)) == GRACE_MS // 1000 + 1


@pytest.mark.parametrize(
    "table", [Timetable("", "", 300_000, 0), Timetable("*/5 * * * *", "UTC", 0, 0)]
)
def test_of_older_missed_times_the_last_alone_is_made_up_for(table: Timetable) -> None:
    now_ms = 30 * 86_400_000 + GRACE_MS
    assert table.due(0, now_ms) == [now_ms - GRACE_MS]
    assert table.due(0, now_ms + 1) == [now_ms - GRACE_MS]
    assert table.due(now_ms - GRACE_MS, now_ms + 1) == []


def test_nothing_is_due_before_its_time() -> None:
    table = Timetable("0 0 1 1 *", "UTC", 0, 0)
    new_year = ms("2027-01-01T00:00")
    assert table.due(ms("2026-01-02T00:00"), new_year - 1) == []
    assert table.due(ms("2026-01-02T00:00"), new_year) == [new_year]


@pytest.mark.parametrize(
    ("cron", "tz", "field"),
    [
        ("* * * *", "UTC", "cron"),
        ("61 * * * *", "UTC", "cron"),
        ("x * * * *", "UTC", "cron"),
        ("@daily", "UTC", "cron"),
        ("0 0 31 2 *", "UTC", "cron"),
        ("0 0 " + ",".join(["1"] * 100) + " * *", "UTC", "cron"),
        ("* * * * *", "Mars/Base", "tz"),
        ("* * * * *", "../etc/passwd", "tz"),
        ("* * * * *", "", "tz"),
        ("0 0 L-1 * *", "UTC", "cron"),
        ("*/0 * * * *", "UTC", "cron"),
        ("0 0 LW/2 * MON#9", "UTC", "cron"),
        ("٣ * * * *", "UTC", "cron"),
    ],
)
def test_a_wrong_line_or_zone_is_refused_by_name(cron: str, tz: str, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_cron(cron, tz, 0)
    assert caught.value.field == field


def test_intervals_are_bounded() -> None:
    for every_ms in (limits.SCHEDULE_EVERY_MS_MIN, limits.SCHEDULE_EVERY_MS_MAX):
        check_interval(every_ms)
    for every_ms in (limits.SCHEDULE_EVERY_MS_MIN - 1, limits.SCHEDULE_EVERY_MS_MAX + 1):
        with pytest.raises(InvalidInput):
            check_interval(every_ms)
