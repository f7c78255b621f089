from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import struct
import termios

import pytest

from goq_cli.output.topic_history import bar
from tests.support.cli.command import Run
from tests.support.cli.forked_goq import start_goq


def on_terminal(environment: dict[str, str], columns: int, *arguments: str) -> list[str]:
    """Return what a command prints on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = start_goq(
        [*arguments], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**environment, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    found = b""
    with contextlib.suppress(OSError):  # the terminal's other side is closed
        while data := os.read(ours, 65_536):
            found += data
    os.close(ours)
    assert process.wait(60) == 0
    return found.decode().replace("\r\n", "\n").split("\n")


def bars(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines if line[:2] == "20"]


@pytest.mark.parametrize("columns", [100, 40])
def test_a_topic_is_drawn_by_day_on_a_terminal(
    goq: Run, environment: dict[str, str], topic: str, columns: int
) -> None:
    goq("produce", topic, stdin=b"a\n" * 1234)
    (line,) = bars(on_terminal(environment, columns, "topic", "show", topic, "--days", "1"))
    assert " 1,234 " in line
    assert line.endswith("█" * 8)
    assert len(line) <= columns


def test_on_a_terminal_too_narrow_for_bars_the_numbers_are_left(
    goq: Run, environment: dict[str, str], topic: str
) -> None:
    goq("produce", topic, stdin=b"a\n")
    (line,) = bars(on_terminal(environment, 30, "topic", "show", topic, "--days", "1"))
    assert "█" not in line


def test_an_empty_topic_has_no_days(goq: Run, environment: dict[str, str], topic: str) -> None:
    goq("topic", "create", topic)
    lines = on_terminal(environment, 100, "topic", "show", topic)
    assert not bars(lines)
    assert any(line.split() == ["first", "-"] for line in lines)


def test_a_pipe_gets_fields_and_json_has_all_of_it(goq: Run, topic: str) -> None:
    goq("produce", topic, stdin=b"a\nb\n")
    lines = goq("topic", "show", topic).stdout.decode().splitlines()
    days = lines.index("date\tmessages\tbytes")
    history = json.loads(goq("topic", "show", topic, "--json").stdout)["history"]
    (day,) = history["days"][-1:]
    assert lines[days + len(history["days"])] == f"{day['date']}\t{day['messages']}\t{day['bytes']}"
    goq("topic", "show", topic, "--days", "0", code=7)


def test_a_group_is_shown_as_it_was(goq: Run, topic: str) -> None:
    goq("produce", topic, stdin=b"a\nb\n")
    goq("consume", topic, "--group", "g", "--max", "1")
    goq("produce", topic, stdin=b"c\n")
    time = json.loads(goq("topic", "show", topic, "--json").stdout)["history"]["last_time"]
    goq("consume", topic, "--group", "g", "--until-empty")
    words = ("group", "show", "g", "--topic", topic, "--as-of", time)
    shown = json.loads(goq(*words, "--json").stdout)
    assert (shown["as_of"], shown["lag"], shown["incomplete"]) == (time, 2, [])
    lines = goq(*words).stdout.decode().splitlines()
    assert lines[:2] == ["as_of", time]
    assert lines[3].startswith(f"{topic}\tg\t2\t")
    goq("group", "show", "g", "--topic", topic, "--as-of", "1970-01-01", code=3)
    goq("group", "show", "g", "--topic", topic, "--as-of", "+1h", code=7)


@pytest.mark.parametrize(
    ("value", "drawn", "plain"),
    [(0, "", ""), (1, "▏", "#"), (500, "█████", "#####"), (562, "█████▌", "#####"),
     (999, "█████████▉", "#########"), (1000, "██████████", "##########")],
)  # fmt: skip
def test_a_bar_is_as_long_as_its_share(value: int, drawn: str, plain: str) -> None:
    assert bar(value, 1000, 10, plain=False) == drawn
    assert bar(value, 1000, 10, plain=True) == plain
