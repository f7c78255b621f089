"""A real ``goq serve`` process for a test to hurt: killed, stopped, paused, started again.

The port is reserved for as long as the node is used, so that it is still free when the node comes
back: no other socket gets it, and no client that connects meanwhile is connected to itself.
Warnings of the process are errors.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.api.secret_watch import WATCH
from tests.support.cli.forked_goq import start_goq
from tests.support.eventually import eventually
from tests.support.node.node_api import NodeApi
from tests.support.node.ports import HOST, reserved_port
from tests.support.paths import REPOSITORY

GOQ = (sys.executable, "-m", "goq_cli")
READY_S_MAX = 30.0
_READY = re.compile(rb"goq (\S+) ready on (http://\S+), data in (.+)\n")


def clean_environment(home: Path) -> dict[str, str]:
    """Return an environment without any setting of goq's, and with no context remembered."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GOQ_")}
    return {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}


def tells_of_load(record: str) -> bool:
    """Whether a record of a node's log tells that the machine is busy, and of nothing else."""
    return "held the event loop" in record or "the disk is slow" in record


class NodeProcess(NodeApi):
    """A node on a folder. Its stderr is kept in ``log``, beside the folder.

    By default the node listens on a port of its own and takes ``settings``. With ``arguments``,
    words after ``goq``, these and ``environment`` name the port and the folder. The process
    may have ``open_files_max`` descriptors, by default as many as this one. It is forked from one
    that has imported goq, unless it is to have an ``interpreter`` of its own.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Sequence[str] = (),
        port: int | None = None,
        arguments: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        open_files_max: int | None = None,
        interpreter: bool = False,
    ) -> None:
        self.folder = folder
        self.log = folder.parent / f"{folder.name}.stderr"
        self.process: subprocess.Popen[bytes] | None = None
        self._resources = contextlib.ExitStack()
        self.port = port or self._resources.enter_context(reserved_port())
        self.url = f"http://{HOST}:{self.port}"
        self._settings = ("defaults.delivery.backoff.initial=0s", *settings)
        self._arguments = arguments
        self.environment = dict(environment or {})
        self._open_files_max = open_files_max
        self._interpreter = interpreter
        self.clock_ahead_ms = 0
        """How far the node's wall clock is ahead, from its next start on."""

    def __enter__(self) -> NodeProcess:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self.log.exists():
            error.add_note(f"the node said:\n{self.log_text()}")
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    def log_text(self, chars_max: int = 4000) -> str:
        """Return the end of what the node has written to stderr."""
        return self.log.read_text()[-chars_max:]

    @property
    def pid(self) -> int:
        """The process that was started last."""
        assert self.process is not None
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> NodeProcess:
        """Start the node; return when it is ready."""
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        """Start the node; do not wait for it."""
        assert not self.is_running, "the node is running already"
        self._forget()
        environment = clean_environment(self.folder.parent) | self.environment
        with self.log.open("ab") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": log}
            if self.clock_ahead_ms:
                ahead = {"CLOCK_AHEAD_MS": str(self.clock_ahead_ms), "PYTHONPATH": str(REPOSITORY)}
                skewed = [sys.executable, "-W", "error", "-m", "tests.support.node.skewed_goq"]
                self.process = subprocess.Popen(
                    [*skewed, *self._words()], env=environment | ahead, **streams
                )
            else:
                self.process = start_goq(
                    self._words(),
                    env=environment,
                    interpreter=self._interpreter,
                    warnings_are_errors=True,
                    open_files_max=self._open_files_max,
                    **streams,
                )

    def _words(self) -> Sequence[str]:
        """Return the arguments of ``goq``."""
        if self._arguments is not None:
            return self._arguments
        settings = [word for setting in self._settings for word in ("--set", setting)]
        where = ["--data-dir", str(self.folder), "--listen", f"{HOST}:{self.port}"]
        return ["serve", *where, *settings]

    def wait_ready(self) -> None:
        """Read the line that says that the node is ready."""
        process = self.process
        assert process is not None
        assert process.stdout is not None
        line = b""
        deadline_s = time.monotonic() + READY_S_MAX
        while not line.endswith(b"\n"):
            left_s = max(0.0, deadline_s - time.monotonic())
            readable = select.poll()  # select() refuses descriptors from 1024 on
            readable.register(process.stdout, select.POLLIN | select.POLLHUP)
            if not readable.poll(left_s * 1000):
                raise AssertionError(f"the node was not ready within {READY_S_MAX:g} s")
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                code = process.wait(READY_S_MAX)
                raise AssertionError(f"the node ended with {code} before it was ready")
            line += piece
        found = _READY.fullmatch(line)
        assert found, f"not a ready line: {line!r}"
        assert found[2].decode() == self.url
        assert Path(found[3].decode()) == self.folder.resolve()

    def kill(self) -> None:
        """End the node as a power switch would end the process."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(READY_S_MAX)
        self._forget()

    def terminate(self) -> None:
        """Ask the node to drain and end; do not wait for it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def stop(self, *, seconds: float = 15.0) -> int:
        """Ask the node to drain and end; return its exit code."""
        self.terminate()
        assert self.process is not None
        code = self.process.wait(seconds)
        self._forget()
        return code

    def pause(self) -> None:
        """Let the node stand still; return when it does."""
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: _state_of(self.pid) == "T", "the node stands still")

    def resume(self) -> None:
        """Let the node go on."""
        os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let the node stand still inside a ``with``."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def restart(self) -> None:
        """Kill the node and start it again on the same folder and port."""
        self.kill()
        self.start()

    def memory_bytes_max(self) -> int:
        """Return how much memory the process has held at most."""
        return memory_bytes_max(self.pid)

    def close(self) -> None:
        """End the node, if it runs, and let go of the port."""
        if self.is_running:
            self.kill()
        self._forget()
        self._resources.close()
        if (self.folder / "admin.token").exists():
            WATCH.check_node(self.folder, self.log)

    def _forget(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()


def memory_bytes_max(pid: int) -> int:
    """Return how much memory a process has held at most; ``ProcessLookupError`` once it ended."""
    with contextlib.suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has ended")


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def running_goq(
    node: NodeProcess, *arguments: str, **streams: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``goq`` against a node; end it, whatever it does, when the ``with`` is left."""
    process = start_goq(
        [*arguments, "--server", node.url],
        env=clean_environment(node.folder.parent),
        **streams,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
