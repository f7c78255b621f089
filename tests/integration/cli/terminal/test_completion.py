"""Completion in a real bash, zsh and fish, against a real node."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
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


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers_names_with_their_help_or_files(
    goq: Run, topic: str, with_goq: Environment, tmp_path: Path
) -> None:
    (tmp_path / "a-file").touch()
    goq("topic", "create", f"{topic}-fish")

    def offered(line: str) -> list[str]:
        script = f"goq completion fish | source; complete -C {shlex.quote(line)}"
        done = subprocess.run(
            ["fish", "--no-config", "-c", script],
            env=with_goq | {"HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    assert offered("goq topic sh") == [
        "show\tShow a topic: partitions, messages a day, current rates, settings."
    ]
    assert [text.strip() for text in offered(f"goq consume {topic}-f")] == [f"{topic}-fish"]
    assert sorted(text.split("\t")[0] for text in offered("goq produce t --acks ")) == [
        "leader",
        "quorum",
    ]
    assert [text.split("\t")[0] for text in offered("goq produce t a-f")] == ["a-file"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_at_its_prompt(goq: Run, topic: str, with_goq: Environment) -> None:
    goq("topic", "create", f"{topic}-zsh1")
    goq("topic", "create", f"{topic}-zsh2")
    with Zsh(with_goq) as zsh:
        assert "goq topic show" in zsh.after_tab("goq topic sh", "show")
        shown = zsh.after_tab("goq to", "delete topics")
        assert "topic  -- create, list, show, alter, delete topics" in shown
        assert "--" not in zsh.after_tab(f"goq consume {topic}-zsh", "zsh2")


class Zsh:
    """An interactive zsh at a terminal, with the completion of goq."""

    def __init__(self, environment: Environment) -> None:
        process, self._terminal = pty.fork()
        if process == 0:
            os.execvpe("zsh", ["zsh", "-f", "-i"], environment | {"TERM": "xterm"})
        self._process = process
        self._poll = select.poll()  # select() takes no file above 1,023
        self._poll.register(self._terminal, select.POLLIN)
        self._seen = ""

    def __enter__(self) -> Zsh:
        self._type(
            "autoload -Uz compinit; compinit -u -D; source <(goq completion zsh);"
            " bindkey '^I' expand-or-complete; PS1='> '; print REA''DY\n"
        )
        self._until("READY\n")
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._terminal)  # SIGHUP ends it
        os.waitpid(self._process, 0)

    def after_tab(self, line: str, awaited: str) -> str:
        """Return what a tab behind ``line`` shows, up to ``awaited``; then clear the line."""
        self._type(f"\x15{line}")
        self._until(line)
        self._seen = line + self._seen  # what is completed may be typed on, or drawn anew
        self._type("\t")
        shown = self._until(awaited)
        self._type("\x15print DO''NE\n")
        self._until("DONE\n")
        return shown

    def _type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _until(self, awaited: str) -> str:
        while awaited not in self._seen:
            assert self._poll.poll(30_000), f"no {awaited!r}: {self._seen!r}"
            piece = os.read(self._terminal, 65_536).decode(errors="replace")
            self._seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", self._seen + piece)
        before, found, self._seen = self._seen.partition(awaited)
        return before + found


def test_a_node_that_is_away_leaves_the_line_as_it_is(with_goq: Environment) -> None:
    away = with_goq | {"GOQ_SERVER": "http://127.0.0.1:1"}
    assert completed(away, "consume", "or") == []


def test_a_shell_without_completion_is_named(goq: Run) -> None:
    assert b"bash, zsh, fish" in goq("completion", "tcsh", code=2).stderr
    for shell in ("bash", "zsh", "fish"):
        assert b"_GOQ_COMPLETE" in goq("completion", shell).stdout
