"""The worker of ``goq consume --exec``: one process a message; its exit code settles it."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from goq.client.tracing.trace_context import traceparent_of, tracestate_of
from goq.errors import UsageError
from goq.units import format_time_us
from goq_cli.settlement.settlements import ACK, RELEASE, Outcome, Settlements
from goq_cli.settlement.shell_command import NOT_RUN, run_command

if TYPE_CHECKING:
    from goq.client import Client, ReceivedMessage
    from goq_cli.interrupts import Interrupts

_REASON_CHARS_MAX = 500
_TAIL_BYTES = 4 * 1024
_LINE_BYTES_MAX = 64 * 1024
_TRACEPARENT = "TRACEPARENT"
_TRACESTATE = "TRACESTATE"


class _Stderr:
    """The stderr of one command, shown in whole lines as they come; of the rest its end is kept."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._tail = self._line = b""

    def take(self, data: bytes) -> None:
        """Show the lines that are whole now, or that are too long to wait for their end."""
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        shown, newline, self._line = (self._line + data).rpartition(b"\n")
        if len(self._line) > _LINE_BYTES_MAX:
            newline, self._line = newline + self._line, b""
        self._show(shown + newline)

    def finish(self) -> None:
        """Show what has no newline."""
        self._show(self._line)

    def end(self) -> str:
        """Return the last characters."""
        return self._tail.decode(errors="replace").strip()[-_REASON_CHARS_MAX:]

    def _show(self, data: bytes) -> None:
        if data:
            with self._lock:
                sys.stderr.write(data.decode(errors="replace"))
                sys.stderr.flush()


class ExecWorker:
    """Runs a shell command for each message, ``jobs`` at a time.

    The command gets the value on stdin and ``GOQ_ID``, ``GOQ_TOPIC``, ``GOQ_PARTITION``,
    ``GOQ_OFFSET``, ``GOQ_KEY``, ``GOQ_TIMESTAMP``, ``GOQ_ATTEMPT``, ``GOQ_GROUP`` and
    ``GOQ_HEADER_<NAME>`` in its environment. ``TRACEPARENT`` and ``TRACESTATE`` are those of the
    span that published the message, never of this process. Exit 0 acknowledges the message; any
    other code nacks it, with the end of stderr as the reason. If the shell cannot run the command,
    and has not run it before, the message is released, and ``UsageError`` raised. A process that
    the command leaves behind is not waited for. A job does not wait for its ack. Two messages of
    one key never run at once.

    ``has_failed`` tells of a command that failed, or of a message that could not be settled.
    """

    keeps_leases = True
    """Whether messages are settled later, so that their leases must be extended."""

    def __init__(
        self,
        client: Client,
        command: str,
        jobs: int,
        retry_delay: str,
        interrupts: Interrupts,
    ) -> None:
        self._interrupts = interrupts
        self._command = command
        self._jobs = jobs
        self._retry_delay = retry_delay
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="goq-exec")
        self._running: dict[Future[None], object] = {}
        self._has_run = False
        self._stderr_lock = threading.Lock()
        self._settlements = Settlements(client)
        unwanted = (_TRACEPARENT, _TRACESTATE)
        self._inherited = {n: v for n, v in os.environ.items() if n not in unwanted}

    @property
    def has_failed(self) -> bool:
        """Whether a command failed, or a message could not be settled."""
        return self._settlements.has_failed

    def take(self, message: ReceivedMessage) -> None:
        """Start the command for a message; wait for a free slot, and for the end of its key's.

        An interrupt that comes meanwhile releases the message: no command starts after it.
        """
        key = None if message.key is None else (message.topic, message.key)
        try:
            while len(self._running) >= self._jobs or (key and key in self._running.values()):
                self._reap(wait(self._running, return_when=FIRST_COMPLETED).done)
            self._settlements.check()
            self._interrupts.check()
        except BaseException:
            self._settlements.add([(message, RELEASE)])
            raise
        self._running[self._pool.submit(self._run, message)] = key

    def settle(self) -> None:
        """Raise what prevents messages of ended commands from being settled."""
        self._reap({future for future in self._running if future.done()})
        self._settlements.check()

    def settle_all(self) -> None:
        """Wait for the running commands, and settle their messages."""
        try:
            self._reap(wait(self._running).done)
        finally:
            self._settlements.finish()

    def __enter__(self) -> ExecWorker:
        self._settlements.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """End the workers."""
        try:
            self.settle_all()
        finally:
            self._pool.shutdown()
            self._settlements.close()

    def _reap(self, done: set[Future[None]]) -> None:
        for future in done:
            del self._running[future]
            future.result()

    def _run(self, message: ReceivedMessage) -> None:
        environment = self._inherited | environment_of(message)
        stderr = _Stderr(self._stderr_lock)
        code = run_command(self._command, message.value or b"", environment, stderr.take)
        stderr.finish()
        if code in NOT_RUN and not self._has_run:
            self._settlements.add([(message, RELEASE)])
            raise UsageError(f"--exec: the shell cannot run this (exit {code}): {self._command}")
        self._has_run = True
        if code == 0:
            outcome = ACK
        else:
            reason = f"exit {code}: {stderr.end()}"
            outcome = Outcome("nack", self._retry_delay, reason)
        self._settlements.add([(message, outcome)])


def environment_of(message: ReceivedMessage) -> dict[str, str]:
    """Return the variables that tell a command of its message."""
    environment = {
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
