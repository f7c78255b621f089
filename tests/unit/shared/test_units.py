from __future__ import annotations

from datetime import datetime, timedelta, timezone
from operator import mul
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq.errors import InvalidInput
from goq.units import (
    format_duration_ms,
    format_size_bytes,
    format_time_us,
    parse_duration_ms,
    parse_size_bytes,
    parse_time_us,
    round_size_bytes,
)

NOW_US = 1_700_000_000_000_000
UNITS = [10**3, 2**10, 10**6, 2**20, 10**9, 2**30]


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("250ms", 250), ("30s", 30_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("1.5s", 1500)],
)
def test_durations_are_read_as_people_write_them(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@given(st.integers(0, 10**13))
def test_a_duration_that_was_written_reads_the_same(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration_ms(duration_ms)) == duration_ms


def test_a_bare_number_is_seconds_bytes_or_milliseconds() -> None:
    assert parse_duration_ms("2") == parse_duration_ms(2) == 2000
    assert parse_size_bytes("2") == parse_size_bytes(2) == 2
    assert parse_time_us("1700000000000", now_us=0) == NOW_US


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("64KiB", 65_536), ("10MB", 10**7), ("1GiB", 2**30), ("1.5kib", 1536)]
)
def test_sizes_are_read_in_both_kinds_of_unit(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@given(st.integers(0, 2**59) | st.builds(mul, st.integers(0, 2000), st.sampled_from(UNITS)))
def test_a_size_that_was_written_reads_the_same(size_bytes: int) -> None:
    assert parse_size_bytes(format_size_bytes(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text", "rounded"),
    [
        (0, "0B", "0B"),
        (1023, "1023B", "1023B"),
        (1000, "1KB", "1000B"),
        (65_536, "64KiB", "64KiB"),
        (1_100_000, "1100KB", "1.0MiB"),
        (10**7, "10MB", "9.5MiB"),
        (3 * 2**30, "3GiB", "3GiB"),
        (2**30 + 1, "1073741825B", "1.0GiB"),
    ],
)
def test_a_size_is_written_exactly_and_rounded_for_people(
    size_bytes: int, text: str, rounded: str
) -> None:
    assert (format_size_bytes(size_bytes), round_size_bytes(size_bytes)) == (text, rounded)


@pytest.mark.parametrize(
    ("text", "shift_s"), [("now", 0), ("-15m", -900), ("+2h", 7200), ("2023-11-14T22:13:20Z", 0)]
)
def test_times_are_absolute_or_relative_to_now(text: str, shift_s: int) -> None:
    assert parse_time_us(text, now_us=NOW_US) == NOW_US + shift_s * 1_000_000


@given(st.integers(0, 4 * 10**15))
def test_a_time_that_was_written_reads_the_same(time_us: int) -> None:
    assert parse_time_us(format_time_us(time_us), now_us=0) == time_us


@pytest.mark.parametrize("text", ["", "x", "-1s", "1y", "9" * 400 + "d", "9" * 400, "٣s", "1e9"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"30s|zero or more"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "x", "-1", "1XB", "9" * 5000, "1 2"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match="64KiB"):
        parse_size_bytes(text)


@pytest.mark.parametrize("text", ["", "soon", "2025-13-01", "2025-01-15T10:00:00", "9" * 400])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_time_us(text, now_us=NOW_US)


def test_a_timedelta_is_a_duration_and_a_datetime_a_time() -> None:
    assert parse_duration_ms(timedelta(minutes=1, milliseconds=5)) == 60_005
    with pytest.raises(InvalidInput):
        parse_duration_ms(timedelta(seconds=-1))
    east = timezone(timedelta(hours=2))
    assert parse_time_us(datetime(1970, 1, 1, 2, 0, 1, tzinfo=east), now_us=0) == 1_000_000
    with pytest.raises(InvalidInput, match="has no zone"):
        parse_time_us(datetime(1970, 1, 1), now_us=0)


@pytest.mark.parametrize("value", [1e308, 1e306, 1e15, 10**400, "999999999999999d", "3700000d"])
def test_a_duration_that_no_time_can_hold_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="more than 10,000 years"):
        parse_duration_ms(value, field="every")


@pytest.mark.parametrize("value", [1e308, 1e15, 10**400, "999999999999999", "+3000000d"])
def test_a_time_that_cannot_be_written_is_the_last_one(value: Any) -> None:
    assert format_time_us(parse_time_us(value, now_us=NOW_US)) == "9999-12-31T23:59:59.999999Z"


@pytest.mark.parametrize("value", [-1e308, -1e15, "-900000d", f"-{9 * 10**8}d"])
def test_a_time_before_all_others_is_the_first_one(value: Any) -> None:
    assert format_time_us(parse_time_us(value, now_us=NOW_US)) == "0001-01-01T00:00:00.000000Z"


def test_the_first_and_the_last_time_can_be_written() -> None:
    for text in ("0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"):
        assert format_time_us(parse_time_us(text, now_us=NOW_US)) == text


@pytest.mark.parametrize("value", [None, object(), [], b"1s", True, float("nan"), 1j])
def test_what_is_neither_is_invalid_input(value: Any) -> None:
    with pytest.raises(InvalidInput):
        parse_duration_ms(value)
    with pytest.raises(InvalidInput):
        parse_time_us(value, now_us=0)
