"""Completion in a real bash, against a real node."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli.command import Run

Environment = dict[str, str]


@pytest.fixture
def with_goq(environment: Environment, tmp_path: Path) -> Environment:
    program = tmp_path / "bin" / "goq"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m goq_cli "$@"\n')
    program.chmod(0o755)
    return environment | {"PATH": f"{program.parent}:{environment['PATH']}"}


def completed(environment: Environment, *words: str) -> list[str]:
    """Return what bash offers for the last of the words after ``goq``."""
    line = shlex.join(["goq", *words])
    script = (
        "source <(goq completion bash)\n"
        f"COMP_WORDS=({line}); COMP_CWORD={len(words)}\n"
        '_goq; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["to"], ["topic", "top", "token"]),
        (["topic", "sh"], ["show"]),
        (["topic", "show", "--d"], ["--days"]),
        (["produce", "t", "--acks", ""], ["quorum", "leader"]),
        (["serve", "--log-level", "w"], ["warning"]),
        (["--json", "--server", "http://127.0.0.1:1", "dlq", "re"], ["redrive"]),
        (["consume", "t", "--contex"], ["--context"]),
        (["produce", "t", ""], []),
        (["topic", "show", "--days", ""], []),
    ],
)
def test_commands_options_and_choices_are_completed(
    with_goq: Environment, words: list[str], expected: list[str]
) -> None:
    assert completed(with_goq, *words) == expected


def test_topics_groups_and_contexts_are_those_that_there_are(
    goq: Run, topic: str, with_goq: Environment
) -> None:
    name = f"{topic}-to-complete"
    goq("topic", "create", name)
    goq("group", "set", "billing", "--topic", name, "max_attempts=7")
    goq("context", "set", "here", "--server", with_goq["GOQ_SERVER"])
    for words in (["consume", name[:-3]], ["topic", "show", name[:-3]], ["dlq", "list", name[:-3]]):
        assert completed(with_goq, *words) == [name]
    assert completed(with_goq, "consume", name, "--group", "") == ["billing"]
    assert completed(with_goq, "group", "show", "--topic", name, "bil") == ["billing"]
    assert completed(with_goq, "--context", "h") == ["here"]


def test_a_node_that_is_away_leaves_the_line_as_it_is(with_goq: Environment) -> None:
    away = with_goq | {"GOQ_SERVER": "http://127.0.0.1:1"}
    assert completed(away, "consume", "or") == []


def test_a_shell_without_completion_is_named(goq: Run) -> None:
    assert b"bash, zsh, fish" in goq("completion", "tcsh", code=2).stderr
    for shell in ("bash", "zsh", "fish"):
        assert b"_GOQ_COMPLETE" in goq("completion", shell).stdout
