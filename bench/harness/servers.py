"""The servers that are measured: a goq node and a Redis, each a process on a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

START_S_MAX = 20.0
STOP_S_MAX = 20.0
GOQ = str(Path(sys.executable).with_name("goq"))


class Server:
    """A child process that serves on ``port`` of the loopback, stopped on exit."""

    process: subprocess.Popen[bytes]
    port: int

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def cpu_s(self) -> float:
        """Return the CPU time that all of its threads have used so far."""
        total_ns = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            total_ns += int((task / "schedstat").read_text().split()[0])
        return total_ns / 1e9

    def rss_mb(self, field: str = "VmRSS") -> float:
        """Return its resident memory (``VmHWM``: the peak)."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"no {field} for process {self.process.pid}")


class GoqNode(Server):
    """``goq serve`` with ``more`` flags, else its defaults: fsync always, 6 partitions a topic.

    ``program`` is another way to run ``goq``.
    """

    def __init__(self, folder: Path, *more: str, program: Sequence[str] = (GOQ,)) -> None:
        command = [
            *program,
            "--json",
            "serve",
            "--data-dir",
            str(folder),
            "--listen",
            "127.0.0.1:0",
        ]
        command += more
        log = (folder.parent / f"{folder.name}.log").open("wb")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["url"]
        self.port = int(self.url.rpartition(":")[2])

    def environment(self) -> dict[str, str]:
        """Return an environment in which ``goq`` commands talk to this node.

        Python keeps its bytecode there, as that of an installed program is kept.
        """
        environment = {**os.environ, "GOQ_SERVER": self.url}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return environment


class RedisServer(Server):
    """``redis-server`` that syncs its append-only file before it answers, and never rewrites it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.port = free_port()
        self.process = subprocess.Popen(
            [
                "redis-server",
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)),
                *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
                *("--auto-aof-rewrite-percentage", "0"),
            ],
            stdout=subprocess.DEVNULL,
        )
        until = time.monotonic() + START_S_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise
                time.sleep(0.02)

    @staticmethod
    def is_installed() -> bool:
        """Whether this machine has Redis and its Python client."""
        try:
            import redis  # noqa: F401 - whether it can be
        except ImportError:
            return False
        return shutil.which("redis-server") is not None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
