"""The README's terminal session, run as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.running_node import running_node

README = Path(__file__).parents[2] / "README.md"


def session() -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of the README's console blocks, but for serve, with what they print."""
    for block in re.findall(r"```console\n(.*?)```", README.read_text(), re.DOTALL):
        command, output = "", list[str]()
        for line in block.splitlines():
            if line.startswith("$ "):
                if command:
                    yield command, output
                command, output = line[2:], []
            else:
                output.append(line)
        if not command.startswith("goq serve"):
            yield command, output


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[dict[str, str]]:
    program = tmp_path / "bin" / "goq"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m goq_cli "$@"\n')
    program.chmod(0o755)
    with running_node() as node:
        yield os.environ | {
            "GOQ_SERVER": node.url,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
        }


def test_every_command_of_the_terminal_session_prints_what_the_readme_says(
    shell: dict[str, str], tmp_path: Path
) -> None:
    commands = list(session())
    assert len(commands) > 15
    for command, expected in commands:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env=shell,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        printed = done.stdout.splitlines()
        assert len(printed) == len(expected), f"{command}: {done.stdout}"
        for line, wanted in zip(printed, expected, strict=True):
            pattern = ".*".join(map(re.escape, wanted.split("…")))
            assert re.fullmatch(pattern, line), f"{command}: {line!r} is not {wanted!r}"


def test_the_python_of_the_readme_runs(shell: dict[str, str], tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    code = code.replace("http://127.0.0.1:8080", shell["GOQ_SERVER"])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=shell,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"orders:\d:0 b'two teapots'\n", done.stdout)
