from __future__ import annotations

from goq_cli.output.table import TerminalTable
from goq_cli.output.text import escaped, shorten, shown_age, shown_bytes, width_of


def test_free_text_is_shortened_before_a_column_is_left_out() -> None:
    table = TerminalTable(("id", "group", "value"), [("a:0:1", "g", "x" * 100)])
    assert table.fit(40) == []
    head, row = table.lines(bold=False)
    assert head == "id     group  value"
    assert row == "a:0:1  g      " + "x" * 25 + "…"


def test_columns_are_left_out_from_the_right_and_never_the_first() -> None:
    table = TerminalTable(
        ("id", "died_at", "group", "value"), [("a" * 30, "t" * 27, "g" * 10, "text")]
    )
    assert table.fit(40) == ["died_at", "group"]
    assert table.lines(bold=False)[1] == "a" * 30 + "  text"
    alone = TerminalTable(("id", "a", "b"), [("x" * 50, "1", "2")])
    assert alone.fit(40) == ["a", "b"]
    assert alone.lines(bold=False)[1] == "x" * 50


def test_empty_columns_are_the_first_to_go_and_nothing_is_said_of_them() -> None:
    table = TerminalTable(("id", "tenant", "value"), [("x" * 20, "", "y" * 18)])
    assert table.fit(40) == []
    assert table.lines(bold=False)[1] == "x" * 20 + "  " + "y" * 18


def test_a_table_of_two_columns_is_left_to_the_terminal_to_wrap() -> None:
    table = TerminalTable(("field", "value"), [("value", "y" * 500)])
    assert table.fit(40) == []
    assert table.lines(bold=False)[1].endswith("y" * 500)


def test_numbers_are_right_aligned_sizes_and_ages_have_units() -> None:
    rows = [("a", 5, 2048, 90_000), ("b", 12345, 7, None)]
    head, first, second = TerminalTable(("t", "lag", "bytes", "oldest_ready_ms"), rows).lines(
        bold=False
    )
    assert head == "t    lag  bytes  oldest ready"
    assert first == "a      5   2KiB    1 min 30 s"
    assert second == "b  12345     7B"


def test_columns_are_counted_as_a_terminal_does() -> None:
    assert [width_of(text) for text in ("abc", "漢字", "e\u0301")] == [3, 4, 1]
    assert shorten("漢字漢字", 5) == "漢字…"
    assert shorten("漢字漢字", 4) == "漢…"
    assert shorten("abc", 3) == "abc"


def test_control_characters_are_escaped_and_bytes_that_are_no_text_are_hex() -> None:
    assert escaped("a\x1b[0m\n\u202e\x9b") == r"a\x1b[0m\n\u202e\x9b"
    assert shown_bytes("é漢".encode()) == "é漢"
    assert shown_bytes(b"\x00\xff") == "hex:00ff"


def test_an_age_has_at_most_two_units() -> None:
    ages = (7, 18_813, 61_000, 3_600_000 * 5 + 12 * 60_000, 86_400_000 * 3 + 3_600_000 * 4)
    shown = ["7 ms", "18.8 s", "1 min 1 s", "5 h 12 min", "3 d 4 h"]
    assert [shown_age(age) for age in ages] == shown
