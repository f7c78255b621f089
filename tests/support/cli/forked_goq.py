"""``goq`` as a process of its own, without the half second that Python takes to import it.

The tests start goq thousands of times. So one process has imported it, and forks: what it forks
runs ``goq`` as ``python -m goq_cli`` would, with arguments, environment, folder and streams of its
own, and is a child of the test's process, which signals it and waits for it as for any other.
Tests of what comes before goq's first line (options of the interpreter, a library that is loaded
first, the memory and the time of a start) begin a real interpreter.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import resource
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import IO, Any

import goq
import goq_cli
import goq_cli.main
from tests.support.paths import REPOSITORY

_LEFT_OUT = (
    *("goq.pipeline.spark", "goq.pipeline.reports", "goq.pipeline.export.spark_tasks"),
    *("goq.pipeline.export.catalogs", "goq_cli.__main__"),
)
"""What a command imports for itself: libraries that start threads, which no fork has."""
_PR_SET_CHILD_SUBREAPER = 36
_REQUEST_BYTES_MAX = 1 << 20
_STREAMS = 3


def start_goq(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    interpreter: bool = False,
    warnings_are_errors: bool = False,
    open_files_max: int | None = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start ``goq``, forked unless it is to have an ``interpreter`` of its own.

    It also has one if ``env`` tells the loader or the interpreter something else than the
    environment of this process. ``options`` are those of ``Popen``.
    """
    if not interpreter and _read_at_start(env) == _read_at_start(os.environ):
        return ForkedGoq(
            arguments,
            warnings_are_errors=warnings_are_errors,
            open_files_max=open_files_max,
            env=env,
            **options,
        )
    assert open_files_max is None
    flags = ["-W", "error"] if warnings_are_errors else []
    command = [sys.executable, *flags, "-P", "-m", "goq_cli", *arguments]
    return subprocess.Popen(command, env=env, **options)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: told for name, told in environment.items() if name.startswith(("PYTHON", "LD_"))}


class ForkedGoq(subprocess.Popen[Any]):
    """``goq`` with words; streams, folder, environment and session are given as to ``Popen``.

    With ``warnings_are_errors`` it is as after ``python -W error``. The process may have
    ``open_files_max`` descriptors, by default as many as this one.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        warnings_are_errors: bool = False,
        open_files_max: int | None = None,
        start_new_session: bool = False,
        **streams: Any,
    ) -> None:
        self._start = {
            "warnings_are_errors": warnings_are_errors,
            "open_files_max": open_files_max,
            "start_new_session": start_new_session,
        }
        super().__init__(arguments, **streams)

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        cwd, env = rest[4:6]
        pipes = rest[9:15]  # of stdin, stdout, stderr: what is read, what is written
        request = {
            "arguments": list(args),
            "folder": os.fspath(cwd or os.getcwd()),
            "environment": dict(os.environ if env is None else env),
            **self._start,
        }
        theirs = (pipes[0], pipes[3], pipes[5])
        streams = [number if pipe == -1 else pipe for number, pipe in enumerate(theirs)]
        self.pid = _server().fork(request, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # those that the child has


class _ForkServer:
    """The process that forks. It ends with the process that has started it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES_MAX)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=REPOSITORY,
            )
        self._prctl = ctypes.CDLL(None).prctl

    def fork(self, request: Mapping[str, object], streams: Sequence[int]) -> int:
        """Return the id of a new child of this process.

        The server's child forks it and ends. An orphan gets the nearest ancestor that adopts as
        its parent: for this moment this process.
        """
        with self._lock:
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._connection, [json.dumps(request).encode()], streams)
                return int(self._connection.recv(64))
            finally:
                self._prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


_servers: list[_ForkServer] = []


def _server() -> _ForkServer:
    if not _servers or _servers[0].owner != os.getpid():
        _servers[:] = [_ForkServer()]
    return _servers[0]


def _serve(connection: socket.socket) -> None:
    """Fork for each request; return at the end, and in each process that was forked."""
    while True:
        request, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES_MAX, _STREAMS)
        if not request:
            sys.exit(0)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child != 0:
                os.write(writing, str(child).encode())
                os._exit(0)
            for descriptor in (reading, writing, connection.detach()):
                os.close(descriptor)
            _begin(json.loads(request), streams)
            return
        os.waitpid(between, 0)
        connection.send(os.read(reading, 64))
        for descriptor in (reading, writing, *streams):
            os.close(descriptor)


def _begin(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Make this process one that has just begun."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    if request["start_new_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    bound = request["open_files_max"]
    if bound is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (bound, bound))
    if request["warnings_are_errors"]:
        warnings.simplefilter("error")
    sys.stdin, sys.stdout, sys.stderr = _text(0, "r"), _text(1, "w"), _text(2, "w")
    sys.argv = ["goq", *request["arguments"]]


def _text(stream: int, mode: str) -> IO[str]:
    buffering = 1 if stream == 2 or os.isatty(stream) else -1
    errors = "backslashreplace" if stream == 2 else "strict"
    return open(stream, mode, buffering, encoding="utf-8", errors=errors, closefd=False)


def _import() -> None:
    for package in (goq, goq_cli):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(_LEFT_OUT):
                importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy the memory that it shares


def _main(connection: socket.socket) -> None:
    _import()
    _serve(connection)
    try:
        goq_cli.main.main()
    except SystemExit as stop:
        if warnings.filters[0][0] == "error":
            raise  # what the interpreter finds at its end counts
        sys.stdout.flush()
        threading._shutdown()
        atexit._run_exitfuncs()
        os._exit(stop.code)


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
