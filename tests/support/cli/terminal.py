"""The terminal sessions of the documentation, run as they are written.

A session is all ``console`` blocks of a page. A line that begins with ``$ `` is a command, the
lines after it are what it prints on stdout. ``goq serve`` is left out: the test has a node already.
What differs from run to run is compared by its shape: dates with times, times of day, numbers with
decimals before ``s`` or ``ms``, and whatever stands for ``…``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.node.running_node import running_node

COMMAND_S_MAX = 60
DATE = r"\d{4}-\d\d-\d\d[T ]"
TIME = r"\d\d:\d\d:\d\d"
SHAPES = (rf"{DATE}{TIME}(?:\.\d+)?Z", TIME, r"\d+\.\d+(?= m?s\b)")
SHAPE = re.compile("|".join(f"({shape})" for shape in (*SHAPES, "…")))


class Step(NamedTuple):
    """A command of a session, and the lines that the page says it prints."""

    command: str
    printed: tuple[str, ...]


def session(page: Path) -> Iterator[Step]:
    """Yield the commands of the console blocks of a page, but for ``goq serve``."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            first, *printed = command.splitlines()
            if not first.startswith("goq serve"):
                yield Step(first, tuple(printed))


def pattern(wanted: str) -> re.Pattern[str]:
    """Return what a line must match to be the one on the page."""
    found, end = "", 0
    for shape in SHAPE.finditer(wanted):
        found += re.escape(wanted[end : shape.start()])
        found += ".*" if shape[0] == "…" else SHAPES[(shape.lastindex or 1) - 1]
        end = shape.end()
    return re.compile(found + re.escape(wanted[end:]))


@contextmanager
def shell(folder: Path) -> Iterator[dict[str, str]]:
    """Run a node; give the environment in which ``goq`` is a command that talks to it.

    ``folder`` is the user's home, and the program lies in it.
    """
    program = folder / "bin" / "goq"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m goq_cli "$@"\n')
    program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GOQ_")}
    with running_node() as node:
        yield kept | {
            "GOQ_SERVER": node.url,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "HOME": str(folder),
        }


def run_session(page: Path, shell: dict[str, str], folder: Path) -> int:
    """Run a page's session in ``folder``; fail at the first line that is not as written.

    Returns the number of commands, each of which must have ended with 0.
    """
    steps = 0
    for command, wanted in session(page):
        steps += 1
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env=shell,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        printed = done.stdout.splitlines()
        assert len(printed) == len(wanted), f"{command}: {done.stdout}"
        for line, written in zip(printed, wanted, strict=True):
            assert pattern(written).fullmatch(line), f"{command}: {line!r} is not {written!r}"
    return steps
