"""The life of a message as text, against recorded pages."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq_cli.output.text import width_of
from goq_cli.output.trace import Style, TimelinePrinter
from tests.support.client.trace_server import (
    EXPIRED_ONCE,
    GONE,
    HOSTILE,
    IN_A_CLUSTER,
    THERE_AND_BACK,
    message,
    step,
    trace,
)
from tests.support.paths import REPOSITORY

GOLDEN = REPOSITORY / "tests" / "support" / "cli" / "golden"
PAGES = {
    "trace-in-a-cluster": IN_A_CLUSTER,
    "trace-expired-once": EXPIRED_ONCE,
    "trace-there-and-back": THERE_AND_BACK,
    "trace-gone": GONE,
    "trace-hostile": HOSTILE,
}


def page(told: dict[str, Any], style: Style | None = None) -> str:
    timeline = TimelinePrinter(told, style or Style())
    lines = [*timeline.whole(), *(f"! {line}" for line in timeline.incomplete())]
    return "".join(f"{line}\n" for line in lines)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[\d+m", "", text)


@pytest.mark.parametrize("name", PAGES)
def test_a_trace_reads_as_recorded(name: str) -> None:
    assert page(PAGES[name]) == (GOLDEN / f"{name}.txt").read_text()


def test_a_coloured_page_has_the_same_text() -> None:
    for told in PAGES.values():
        coloured = page(told, Style(colour=True))
        assert "\x1b[" in coloured
        assert plain(coloured) == page(told)


def test_an_ack_is_told_also_where_its_time_says_nothing() -> None:
    acked = trace([step("10:30:00.000000", "ACKNOWLEDGED", group="g")])
    assert page(acked).endswith("\n0 attempts · acknowledged\n")


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("width", [1, 30, 44, 80, 100, 500])
def test_no_line_of_the_timeline_is_wider_than_the_terminal(width: int, colour: bool) -> None:
    for told in PAGES.values():
        whole = [plain(line) for line in TimelinePrinter(told).whole()]
        shown = [plain(line) for line in TimelinePrinter(told, Style(width, colour)).whole()]
        assert all(width_of(line) <= width for line in shown)
        assert "".join("".join(shown).split()) == "".join("".join(whole).split())


def test_what_is_wider_than_the_terminal_goes_on_below_the_names_of_steps() -> None:
    reason = "exit 1: cannot connect to db-1.example.org:5432"
    told = trace([step("10:30:00.000000", "NACKED", group="g", consumer="c-1", reason=reason)])
    [first, second] = TimelinePrinter(told, Style(80)).steps(told["events"])
    assert (
        first == '2025-01-15 10:30:00.000000Z  NACKED        group=g consumer=c-1 reason="exit 1:'
    )
    assert second == f'{"":29}cannot connect to db-1.example.org:5432"'
    keys = trace([step("10:30:00.000000", "NACKED", reason="é日本" * 30)])
    shown = list(TimelinePrinter(keys, Style(60)).steps(keys["events"]))
    assert all(width_of(line) <= 60 for line in shown)
    assert "".join(line.strip() for line in shown).endswith("é日本" * 30)


def test_nothing_in_a_message_reaches_the_terminal_as_a_command() -> None:
    assert not set(page(HOSTILE)) & {"\x1b", "\x07", "\u202e"}


def test_steps_that_come_later_line_up_with_those_before() -> None:
    timeline = TimelinePrinter(trace([step("10:30:00.000000", "PUBLISHED")]))
    first, second = timeline.steps(
        [
            step("10:30:01.000000", "ACKNOWLEDGED", group="g"),
            step("10:30:02.000000", "RETRY_SCHEDULED", group="g"),
        ]
    )
    assert first.index("group=") == second.index("group=")
    [third] = timeline.steps([step("10:30:03.000000", "ACKNOWLEDGED", group="g")])
    assert third.index("group=") == first.index("group=")


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (8 * 2**20, "8.4 MB"), (10**9, "1.0 GB")],
)
def test_sizes_are_rounded_for_people(size_bytes: int, shown: str) -> None:
    told = trace([], message(size_bytes=size_bytes))
    assert f"Size {shown}\n" in page(told)


def test_a_key_that_is_no_text_says_so() -> None:
    assert "Key        hex:ff00" in page(trace([], message(key_base64="/wA=")))


TEXTS = st.text(max_size=30)
STEPS = st.fixed_dictionaries(
    {
        "time": st.just("2025-01-15T10:30:00.000000Z"),
        "event": st.sampled_from(["DELIVERED", "NACKED", "SOMETHING_NEW"]),
        "id": st.sampled_from(["orders:2:45678", "orders.dlq:0:0"]),
    },
    optional={
        "group": TEXTS,
        "consumer": TEXTS,
        "reason": TEXTS,
        "attempt": st.integers(0),
        "nodes": st.lists(TEXTS, max_size=3),
        "what-a-later-node-adds": st.one_of(TEXTS, st.none(), st.booleans()),
        "until": st.just("2025-01-16T10:30:00.000000Z"),
    },
)


@given(st.lists(STEPS, max_size=5), TEXTS, st.integers(0, 120), st.booleans())
def test_whatever_a_trace_holds_it_is_a_line_a_step_and_shows_as_it_is(
    steps: list[dict[str, Any]], key: str, width: int, colour: bool
) -> None:
    told = trace(steps, message(key=key))
    lines = [plain(line) for line in TimelinePrinter(told, Style(0, colour)).whole()]
    assert len(lines) == len(steps) + 5
    shown = [plain(line) for line in TimelinePrinter(told, Style(width, colour)).whole()]
    assert all(line.isprintable() for line in shown)
    assert not width or max(map(len, shown)) <= width
    assert "".join("".join(shown).split()) == "".join("".join(lines).split())
