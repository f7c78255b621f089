"""A node, and ``goq`` as a process of its own, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.api.secret_watch import WATCH
from tests.support.cli.forked_goq import start_goq
from tests.support.node.running_node import RunningNode

GOQ = (sys.executable, "-P", "-m", "goq_cli")
COMMAND_S_MAX = 60
Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def environment(node: RunningNode, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GOQ_")}
    return kept | {"GOQ_SERVER": node.url, "XDG_CONFIG_HOME": str(tmp_path), "NO_COLOR": "1"}


@pytest.fixture
def goq(environment: dict[str, str], tmp_path: Path) -> Run:
    """Run ``goq`` with arguments; ``stdin`` are bytes, ``code`` the exit code to expect."""

    def run(
        *arguments: str, stdin: bytes = b"", code: int = 0, **more: str
    ) -> subprocess.CompletedProcess[bytes]:
        with start_goq(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment | more,
            cwd=tmp_path,
        ) as process:
            try:
                said, complained = process.communicate(stdin, timeout=COMMAND_S_MAX)
            except BaseException:
                process.kill()
                raise
        WATCH.check_command(arguments, said + complained)
        assert process.returncode == code, (arguments, process.returncode, complained.decode())
        return subprocess.CompletedProcess(arguments, process.returncode, said, complained)

    return run


_numbers = iter(range(1_000_000))


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{next(_numbers)}"
