"""The live screen of ``goq top``, on a terminal that is resized while the node is killed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from goq.client import Client
from tests.support.cli.live_screen import CURSOR_SHOWN, OTHER_SCREEN, LiveScreen, live_screen
from tests.support.node.ports import HOST, reserved_port
from tests.support.node.running_node import running_node

TOP = ("top", "--interval", "500ms")
UP, DOWN, ESCAPE = "\x1b[A", "\x1b[B", "\x1b"


@pytest.fixture
def filled(topic: str, environment: dict[str, str]) -> str:
    """A topic whose group has an urgent message of a tenant with a hostile name to receive."""
    with Client(environment["GOQ_SERVER"]) as client:
        for name in (topic, f"{topic}-other"):
            client.create_topic(name, partitions=1)
        client.publish(topic, "first")
        for message in client.receive(topic, f"{topic}-billing"):
            message.ack()
        client.publish(topic, "second", priority="high", tenant="\x1b[2J\u202e[/]")
    return topic


def assert_restored(screen: LiveScreen, modes: list[object]) -> None:
    """Check that the terminal is as before: echo, the first screen, a cursor."""
    assert screen.modes == modes
    entered, left = OTHER_SCREEN
    assert screen.text.count(entered) == screen.text.count(left) >= 1
    assert CURSOR_SHOWN in screen.text
    assert "Traceback" not in screen.text


def is_of_size(columns: int, rows: int) -> Callable[[list[str]], bool]:
    """Return a test for a whole screen of so many lines, all of one width."""
    sizes = [columns] * rows
    return lambda lines: [*map(len, lines)] == sizes and lines[-1].startswith("q quit")


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 60), (20, 5)])
def test_a_screen_has_its_size_and_takes_another(
    filled: str, environment: dict[str, str], columns: int, rows: int
) -> None:
    with live_screen(columns, rows, environment, TOP) as screen:
        for width, height in ((columns, rows), (100, 30), (columns, rows)):
            screen.resize(width, height)
            screen.wait(is_of_size(width, height), f"{width} by {height}")


def test_keys_open_filter_sort_and_pause(filled: str, environment: dict[str, str]) -> None:
    with live_screen(120, 40, environment, TOP) as screen:
        modes = screen.modes
        screen.wait_for("sort: publish")
        screen.send("s")
        screen.wait_for("sort: deliver")
        screen.send(f"/{filled}x\x7f-BILLING\r")
        screen.wait(lambda lines: all("-other " not in line for line in lines), "groups only")
        screen.send(ESCAPE)
        screen.wait_for("enter: open")
        screen.send(f"/{filled}\r")
        end = f"enter: open  filter: {filled}"
        screen.wait(lambda lines: lines[-1].rstrip().endswith(end), end)
        screen.wait(lambda lines: any(line.split()[:1] == [filled] for line in lines), filled)
        screen.send(f"{DOWN}{DOWN}{UP}{UP}\r")
        opened = screen.wait_for("\\x1b[2J\\u202e[/]")
        assert any(line.split()[1:3] == ["lane", "high"] for line in opened)
        screen.send(ESCAPE)
        screen.wait_for("enter: open")
        screen.send("p")
        screen.wait_for("PAUSED")
        screen.send("q")
        assert screen.code() == 0
        assert_restored(screen, modes)


@pytest.mark.parametrize(
    ("keys", "number", "code"),
    [("\x03", None, 130), ("", signal.SIGINT, 130), ("", signal.SIGTERM, 143)],
)
def test_an_interrupt_restores_the_terminal(
    filled: str, environment: dict[str, str], keys: str, number: signal.Signals | None, code: int
) -> None:
    with live_screen(80, 24, environment, TOP) as screen:
        modes = screen.modes
        screen.wait_for("enter: open")
        assert screen.modes != modes
        screen.send(keys)
        if number is not None:
            screen.process.send_signal(number)
        assert screen.code() == code
        assert_restored(screen, modes)


def test_a_node_that_goes_away_is_told_and_the_screen_goes_on_when_it_is_back(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with reserved_port() as port:
        broker = {"listen": f"{HOST}:{port}"}
        server = {"GOQ_SERVER": f"http://{HOST}:{port}"}
        with ExitStack() as opened:
            with running_node(tmp_path / "data", broker=broker):
                started = live_screen(80, 24, environment | server, TOP)
                screen = opened.enter_context(started)
                modes = screen.modes
                screen.wait_for("enter: open")
            away = screen.wait_for("NOT CURRENT")
            assert any("is away for" in line for line in away)
            screen.resize(200, 60)
            screen.wait(lambda lines: len(lines) == 60, "the new size")
            screen.send("s")
            screen.wait_for("sort: deliver")
            with running_node(tmp_path / "data", broker=broker):
                with Client(server["GOQ_SERVER"]) as client:
                    client.create_topic("created-later")
                back = screen.wait_for("created-later")
                assert not any("NOT CURRENT" in line for line in back)
            screen.wait_for("NOT CURRENT")
            screen.send("q")
            assert screen.code() == 0
            assert_restored(screen, modes)


def test_without_a_node_there_is_an_error_and_no_screen(environment: dict[str, str]) -> None:
    away = environment | {"GOQ_SERVER": f"http://{HOST}:1"}
    with live_screen(80, 24, away, TOP) as screen:
        assert screen.code() == 5
        assert OTHER_SCREEN[0] not in screen.text
