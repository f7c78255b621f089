"""The README's terminal session and its Python, run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import terminal
from tests.support.paths import REPOSITORY

README = REPOSITORY / "README.md"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[dict[str, str]]:
    with terminal.shell(tmp_path) as environment:
        yield environment


def test_every_command_of_the_terminal_session_prints_what_the_readme_says(
    shell: dict[str, str], tmp_path: Path
) -> None:
    assert terminal.run_session(README, shell, tmp_path) > 15


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
