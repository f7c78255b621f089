"""The worker of ``goq consume --exec``: one process a message; its exit code settles it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from goq.client.tracing.trace_context import traceparent_of, tracestate_of
from goq.errors import GoqError
from goq.units import format_time_us

if TYPE_CHECKING:
    from goq.client import Client, ReceivedMessage

_REASON_CHARS_MAX = 500
_TRACEPARENT = "TRACEPARENT"
_TRACESTATE = "TRACESTATE"


class ExecWorker:
    """Runs a shell command for each message, ``jobs`` at a time.

    The command gets the value on stdin and ``GOQ_ID``, ``GOQ_TOPIC``, ``GOQ_PARTITION``,
    ``GOQ_OFFSET``, ``GOQ_KEY``, ``GOQ_TIMESTAMP``, ``GOQ_ATTEMPT``, ``GOQ_GROUP`` and
    ``GOQ_HEADER_<NAME>`` in its environment. ``TRACEPARENT`` and ``TRACESTATE`` are those of the
    span that published the message, never of this process. Exit 0 acknowledges the message; any
    other code nacks it, with the end of stderr as the reason.

    ``has_failed`` tells of a command that failed, or of a message that could not be settled.
    """

    keeps_leases = True
    """Whether messages are settled later, so that their leases must be extended."""

    def __init__(self, client: Client, command: str, jobs: int, retry_delay: str) -> None:
        self._client = client
        self._command = command
        self._jobs = jobs
        self._retry_delay = retry_delay
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="goq-exec")
        self._running: set[Future[None]] = set()
        self._stderr_lock = threading.Lock()
        self.has_failed = False

    def take(self, message: ReceivedMessage) -> None:
        """Start the command for a message; wait for a free slot if all are in use."""
        while len(self._running) >= self._jobs:
            self._reap(wait(self._running, return_when=FIRST_COMPLETED).done)
        self._running.add(self._pool.submit(self._run, message))

    def settle(self) -> None:
        """Settle the messages of commands that have ended."""
        self._reap({future for future in self._running if future.done()})

    def settle_all(self) -> None:
        """Wait for the running commands, and settle their messages."""
        self._reap(wait(self._running).done)

    def __enter__(self) -> ExecWorker:
        return self

    def __exit__(self, *_error: object) -> None:
        """End the workers."""
        self.settle_all()
        self._pool.shutdown()

    def _reap(self, done: set[Future[None]]) -> None:
        self._running -= done
        for future in done:
            future.result()

    def _run(self, message: ReceivedMessage) -> None:
        process = subprocess.run(
            self._command,
            shell=True,
            check=False,
            input=message.value or b"",
            stderr=subprocess.PIPE,
            env=_environment(message),
        )
        stderr = process.stderr.decode(errors="replace")
        with self._stderr_lock:
            sys.stderr.write(stderr)
            sys.stderr.flush()
        try:
            if process.returncode == 0:
                message.ack()
            else:
                self.has_failed = True
                reason = f"exit {process.returncode}: {stderr.strip()[-_REASON_CHARS_MAX:]}"
                message.nack(delay=self._retry_delay, reason=reason)
        except GoqError as error:
            self.has_failed = True
            with self._stderr_lock:
                sys.stderr.write(f"goq: {message.id}: {error.detail}\n")


def _environment(message: ReceivedMessage) -> dict[str, str]:
    inherited = {n: v for n, v in os.environ.items() if n not in (_TRACEPARENT, _TRACESTATE)}
    environment = inherited | {
        "GOQ_ID": str(message.id),
        "GOQ_TOPIC": message.topic,
        "GOQ_PARTITION": str(message.partition),
        "GOQ_OFFSET": str(message.offset),
        "GOQ_KEY": _text(message.key or b""),
        "GOQ_TIMESTAMP": format_time_us(message.timestamp),
        "GOQ_ATTEMPT": str(message.attempt),
        "GOQ_GROUP": message.group,
    }
    for name, value in message.headers:
        safe = "".join(c if c.isascii() and c.isalnum() else "_" for c in name.upper())
        environment[f"GOQ_HEADER_{safe}"] = _text(value)
    for name, text in (
        (_TRACEPARENT, traceparent_of(message.headers)),
        (_TRACESTATE, tracestate_of(message.headers)),
    ):
        if text is not None:
            environment[name] = _text(text.encode())
    return environment


def _text(data: bytes) -> str:
    """Return bytes as text for an environment variable, without NUL."""
    return os.fsdecode(data.replace(b"\0", b""))
