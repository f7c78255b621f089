"""Progress on a terminal: count, share, rate and remaining time; none in a pipe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.cli.command import Run
from tests.support.cli.pty import Screen, at_terminal
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode

MESSAGES = 3000
Environment = dict[str, str]


@pytest.fixture
def filled(goq: Run, topic: str, tmp_path: Path) -> str:
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(b"line %d\n" % number for number in range(MESSAGES)))
    goq("topic", "create", topic, "--partitions", "2")
    goq("produce", topic, str(lines))
    return topic


def assert_shown(screen: Screen, *, count: str = f"{MESSAGES:,} messages") -> None:
    assert screen.code == 0, screen.text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.text)
    shown = [line for line in re.split(r"[\r\n]", plain) if "100%" in line]
    assert shown, plain
    assert count in shown[-1]
    assert re.search(r"\d+(\.\d+)?([KM]?i?B)?/s", shown[-1])
    assert re.search(r"\d:\d\d left", shown[-1])


def test_producing_a_file_shows_its_share(
    filled: str, environment: Environment, tmp_path: Path
) -> None:
    assert_shown(at_terminal(120, environment, "produce", filled, str(tmp_path / "lines")))


def test_an_export_shows_its_share(filled: str, environment: Environment, tmp_path: Path) -> None:
    screen = at_terminal(120, environment, "export", filled, "--to", str(tmp_path / "out"))
    assert_shown(screen, count="messages")


def test_a_replay_into_a_topic_shows_its_share(filled: str, environment: Environment) -> None:
    replay = ("replay", filled, "--from-time", "-1h", "--into", f"{filled}-copy")
    assert_shown(at_terminal(120, environment, *replay))


def test_a_replay_to_a_file_shows_its_share(
    filled: str, environment: Environment, tmp_path: Path
) -> None:
    words = f"replay {filled} --from-offset 0 --raw > {tmp_path / 'out'}"
    assert_shown(at_terminal(120, environment, words, shell=True))
    assert (tmp_path / "out").read_bytes().count(b"\n") == MESSAGES


def test_a_verification_shows_its_share(
    filled: str, environment: Environment, node: RunningNode
) -> None:
    verify = ("doctor", "--verify", "--data-dir", str(node.data_dir))
    assert_shown(at_terminal(120, environment, *verify), count="B")


def test_a_redrive_shows_its_share(
    goq: Run, node: RunningNode, topic: str, environment: Environment
) -> None:
    goq("topic", "create", topic, "--set", "delivery.max_attempts=1")
    goq("produce", topic, stdin=b"a\nb\nc\n")
    goq("consume", topic, "--group", "g", "--exec", "exit 1", "--until-empty", code=1)
    dead = f"/v1/topics/{topic}/dead"
    eventually(lambda: len(node.call("GET", dead)["messages"]) == 3, "all are dead letters")
    assert_shown(at_terminal(120, environment, "dlq", "redrive", topic), count="3 messages")


def test_nothing_is_shown_in_a_pipe(filled: str, goq: Run, tmp_path: Path) -> None:
    assert goq("produce", filled, str(tmp_path / "lines")).stderr == b""
    assert b"%" not in goq("export", filled, "--to", str(tmp_path / "out")).stderr
