"""The terminal session and the Python of docs/replay.md, run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.cli import terminal
from tests.support.paths import DOCS

PAGE = DOCS / "replay.md"


def test_the_session_and_the_python_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with terminal.shell(tmp_path) as shell:
        assert terminal.run_session(PAGE, shell, tmp_path) > 10
        code = code.replace("Client()", f"Client({shell['GOQ_SERVER']!r})")
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", f"from goq import Client\n{code}"],
            env=shell,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "orders:0:4 b'placed 5'\n"
