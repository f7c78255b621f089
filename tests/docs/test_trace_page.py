"""What docs/trace.md shows: its session and its program run, and every step is explained."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from goq.delivery.trace.steps import StepName
from tests.support.cli import terminal
from tests.support.paths import DOCS

PAGE = DOCS / "trace.md"


def test_the_session_and_the_program_of_the_page_run_as_written(tmp_path: Path) -> None:
    with terminal.shell(tmp_path) as shell:
        assert terminal.run_session(PAGE, shell, tmp_path) == 12
        [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        code = code.replace("http://127.0.0.1:8080", shell["GOQ_SERVER"])
        command = [sys.executable, "-W", "error", "-c", f"{code}\nprint(newest.message.id)"]
        done = subprocess.run(
            command, env=shell, capture_output=True, text=True, timeout=30, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    names, newest = done.stdout.splitlines()
    assert names.startswith("['PUBLISHED', 'DELIVERED', 'NACKED', ")
    assert newest == "orders:0:1"


def test_every_step_is_explained() -> None:
    explained = set(re.findall(r"^\| ([A-Z_]+) \|", PAGE.read_text(), re.MULTILINE))
    assert {str(name) for name in StepName} <= explained
