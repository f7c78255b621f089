"""Reports as pages: round axes, values as people read them, and no text out of its place."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyspark", minversion="4.2")

import itertools

from goq.pipeline.reports.html.axes import WIDTH, linear, logarithmic_ms, time_label, time_ticks
from goq.pipeline.reports.html.charts import ROWS_MAX, chart_of, note_of
from goq.pipeline.reports.html.page import page_of, scope_line
from goq.pipeline.reports.html.small_multiples import PANELS_MAX
from goq.pipeline.reports.report import (
    Bars,
    Chart,
    Course,
    Report,
    Scope,
    Section,
    Spread,
    duration,
    headings,
    shortened,
    shown,
    with_lane_names,
)

WAITS = ("topic", "group", "messages", "p50_ms", "p90_ms", "p99_ms", "max_ms")
COURSE = ("topic", "group", "time", "p50_ms", "p99_ms")
SPREAD = Spread(("topic", "group"), "wait")
LINES = Course(("topic", "group"), "time", ("p50_ms", "p99_ms"), "wait")
COUNTS = Bars(("topic", "key"), "messages", "messages")


def counts(*rows: tuple[str, str, float]) -> Section:
    return Section("Keys", ("topic", "key", "messages"), rows, COUNTS)


def texts(svg: str) -> list[str]:
    return [list(found.itertext())[-1] for found in ElementTree.fromstring(svg).iter("text")]


def test_no_text_gets_out_of_its_place() -> None:
    hostile = "<script>alert(1)</script>&\x1b[31m"
    section = counts((hostile, hostile, 3), (hostile, "b" * 99, 1.5))
    page = page_of(
        Report(
            "retries", hostile, [section], verdict=hostile, scope=Scope([hostile], 1, None, None)
        )
    )
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in chart_of(section)
    ElementTree.fromstring(chart_of(section))


def test_a_page_loads_nothing() -> None:
    page = page_of(Report("skew", "What?", [counts(("a", "b", 1))]))
    assert not re.search(r"https?://|src=|@import|url\(", page)


@pytest.mark.parametrize(
    ("rows", "chart", "columns"),
    [
        ([("o", "g", 1, 5.0, 5.0, 5.0, 5.0)], SPREAD, WAITS),
        ([("o", "g", 1, 0.0, 0.0, 0.0, 0.0)], SPREAD, WAITS),
        ([("o", "g", 1, 1.0, 2.0, 3.0, 1e15), ("o", "h", 1, 0.0, 0.0, 0.0, 0.0)], SPREAD, WAITS),
        ([("o", "k", 0)], COUNTS, ("topic", "key", "messages")),
        ([("o", None, 10**12), ("o", "x" * 500, 1)], COUNTS, ("topic", "key", "messages")),
        ([("o", "g", "2025-01-15T10:00:00.000000Z", 1.0, 1.0)], LINES, COURSE),
    ],
)
def test_a_chart_of_few_or_extreme_values_stays_within_its_bounds(
    rows: list[tuple[object, ...]], chart: Chart, columns: tuple[str, ...]
) -> None:
    svg = ElementTree.fromstring(chart_of(Section("T", columns, rows, chart)))
    for found in svg.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert 0 <= float(found.get(name, 0)) <= WIDTH
        assert float(found.get("width", 0)) <= WIDTH
    assert svg.find("text") is not None


def test_labels_of_an_axis_keep_apart() -> None:
    values = [("o", f"g{n}", 1, 10.0**n, 10.0**n, 10.0**n, 10.0**n) for n in range(-3, 13)]
    svg = ElementTree.fromstring(chart_of(Section("T", WAITS, values, SPREAD)))
    below = max(float(found.get("y", 0)) for found in svg.iter("text")) - 18
    places = [float(t.get("x", 0)) for t in svg.iter("text") if float(t.get("y", 0)) == below]
    assert len(places) > 4
    assert all(b - a >= 50 for a, b in itertools.pairwise(places))


def test_what_a_chart_leaves_out_is_said() -> None:
    section = counts(*(("orders", f"key-{n}", n) for n in range(200)))
    assert chart_of(section).count("<rect") == ROWS_MAX
    assert note_of(section) == "The first 40 rows of 200; all are in the table."
    when = "2025-01-15T10:00:00.000000Z"
    many = Section("T", COURSE, [("o", f"g{n}", when, 1.0, 2.0) for n in range(30)], LINES)
    assert note_of(many) == f"The first {PANELS_MAX} of 30; all are in the table."
    assert note_of(counts(("a", "b", 1))) == ""


def test_lanes_have_the_names_of_their_topic() -> None:
    rows = [("orders", 0, 5), ("orders", 2, 6), ("numbered", 0, 7)]
    report = Report("latency", "Q?", [Section("T", ("topic", "lane", "messages"), rows)])
    (section,) = with_lane_names(report, {"orders": ["high", "normal"], "numbered": []}).sections
    assert section.rows == [("orders", "high", 5), ("orders", 2, 6), ("numbered", 0, 7)]


def test_a_section_without_rows_says_so_and_draws_nothing() -> None:
    page = page_of(Report("latency", "Q?", [Section("T", WAITS, [], SPREAD, "No message came.")]))
    assert "No message came." in page
    assert "<svg" not in page


def test_a_table_that_was_cut_says_so() -> None:
    page = page_of(Report("latency", "Q?", [Section("T", ("a",), [(1,)], is_cut=True)]))
    assert "ends after 1,000 rows" in page


def test_labels_leave_out_what_is_the_same_in_all_rows() -> None:
    assert "key-1" in texts(chart_of(counts(("orders", "key-1", 1), ("orders", "key-2", 2))))
    named = texts(chart_of(counts(("orders", "k", 1), ("mails", "k", 2))))
    assert {"orders", "mails"} <= set(named)
    both = texts(chart_of(counts(("orders", "k", 1), ("mails", "k", 2), ("mails", "l", 2))))
    assert "mails · l" in both


def test_axes_have_round_ticks_that_reach_as_far_as_the_values() -> None:
    assert list(linear(833).ticks) == [0, 200, 400, 600, 800, 1000]
    assert list(linear(14.1).ticks) == [0, 5, 10, 15]
    assert list(linear(1).ticks) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert linear(0).ticks[0] == 0
    assert list(logarithmic_ms([3.0, 250.0]).ticks) == [1, 10, 100, 1_000]
    assert list(logarithmic_ms([0.0]).ticks) == [1, 10]
    assert [duration(tick) for tick in logarithmic_ms([2_000.0, 9e6]).ticks] == [
        "1 s",
        "10 s",
        "1m",
        "10m",
        "1h",
        "6h",
    ]
    axis = logarithmic_ms([1.0, 1_000.0])
    assert [axis.at(value) for value in (0.0, 1.0, 1_000.0)] == [0.0, 0.0, 1.0]


def test_moments_on_an_axis_are_full_seconds_minutes_hours_or_days() -> None:
    first = datetime(2025, 1, 15, 8, 3, 20, tzinfo=UTC)
    for last, step in (
        (first + timedelta(minutes=7), timedelta(minutes=1)),
        (first + timedelta(hours=4), timedelta(minutes=30)),
        (first + timedelta(minutes=4), timedelta(seconds=30)),
        (first + timedelta(days=9), timedelta(days=2)),
    ):
        found = time_ticks(first, last, 9)
        assert 2 <= len(found) <= 9
        assert all(b - a == step for a, b in itertools.pairwise(found))
        assert first <= found[0]
        assert found[-1] <= last
    assert len(time_ticks(first, first, 9)) <= 1
    moments = [datetime(2025, 1, 15, *at, tzinfo=UTC) for at in ((0,), (8, 3), (8, 3, 20))]
    assert [time_label(at) for at in moments] == ["15 Jan", "08:03", "08:03:20"]


@pytest.mark.parametrize(
    ("value_ms", "text"),
    [
        (0, "0 ms"),
        (0.35, "0.35 ms"),
        (12.345, "12.3 ms"),
        (999.4, "999 ms"),
        (999.6, "1 s"),
        (1_250, "1.25 s"),
        (59_940, "59.9 s"),
        (59_960, "1m"),
        (90_000, "1m30s"),
        (3_599_700, "1h"),
        (5_400_000, "1h30m"),
        (86_400_000, "1d"),
        (9e9, "104d4h"),
        (-1_250, "-1.25 s"),
    ],
)
def test_durations_are_in_the_unit_that_suits_them(value_ms: float, text: str) -> None:
    assert duration(value_ms) == text


def test_values_are_shown_with_their_units() -> None:
    for column, value, text in (
        ("p50_ms", 1_250.0, "1.25 s"),
        ("again_percent", 14.09, "14.1 %"),
        ("dead_percent", 0.0551, "0.055 %"),
        ("bytes", 1_536, "1.5KiB"),
        ("messages", 1_234_567, "1,234,567"),
        ("time", "2025-01-15T10:20:00.000000Z", "01-15 10:20"),
        ("tenant", None, "-"),
    ):
        assert shown(column, value) == text
    assert headings(["again", "again_percent", "p50_ms"]) == ["again", "again %", "p50"]
    assert shortened("a" * 30 + "z" * 30, 11) == "aaaaa…zzzzz"
    assert len(shortened("a" * 60, 11)) == 11


def test_a_scope_is_told_in_a_line() -> None:
    day = "2025-01-15T08:00:00.000000Z"
    told = scope_line(Scope(["a", "b"], 2_000, day, "2025-01-15T09:30:00.000000Z"))
    assert told == "a, b: 2,000 messages, 2025-01-15 08:00:00 to 09:30:00 UTC"
    assert scope_line(Scope([], 0, None, None)) == "There are no messages."
    many = scope_line(Scope([f"t{n}" for n in range(12)], 1, day, day))
    assert many.endswith("t7 and 4 more topics: 1 message, 2025-01-15 08:00:00 UTC")
