"""Shell commands of ``goq consume --exec``, each a process of its own."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from goq_cli.settlement.exec_worker import _Stderr
from goq_cli.settlement.shell_command import run_command


def run(command: str, value: bytes = b"") -> tuple[int, bytes]:
    parts: list[bytes] = []
    code = run_command(command, value, os.environ, parts.append)
    return code, b"".join(parts)


def test_a_command_ends_with_its_exit_code_or_its_signal() -> None:
    assert run("cat >&2; exit 3", b"some text") == (3, b"some text")
    assert run("kill -9 $$") == (-9, b"")
    assert run("exec 2>&-; true") == (0, b"")


def test_a_command_ends_although_it_leaves_a_process_that_has_its_stderr(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    try:
        assert run(f"sleep 600 & echo $! > {pid}; echo oops >&2; exit 3") == (3, b"oops\n")
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_what_a_command_wrote_last_is_read_to_its_end() -> None:
    code, stderr = run("head -c 3000000 /dev/zero >&2")
    assert (code, len(stderr)) == (0, 3_000_000)


def test_of_long_stderr_only_the_end_is_kept() -> None:
    stderr = _Stderr(threading.Lock())
    for number in range(1000):
        stderr.take(b"%d" % number * 1000 + b"\n")
    stderr.take("ü".encode() * 600)
    assert stderr.end() == "ü" * 500
    assert len(stderr._tail) + len(stderr._line) < 6000
    stderr.take(b"x" * 100_000)
    assert len(stderr._line) == 0
