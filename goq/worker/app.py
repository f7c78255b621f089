"""The workers of a program: started together, and stopped together."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final, TypeVar

from goq.client._sync.client import Client
from goq.client._sync.runtime import Monitor
from goq.client.arguments import FOREVER, Duration
from goq.client.retry import OnRetry
from goq.errors import GoqError, UsageError
from goq.worker.function import ErrorTypes, WorkerFunction, WorkerOptions
from goq.worker.loop import WorkerLoop

F = TypeVar("F", bound=Callable[..., Any])
_log = logging.getLogger("goq.worker")
_SIGNAL_CHECK_S: Final = 1.0
_STOP_RETRIES_S: Final = 5.0
_WARNED_AFTER_S, _WARNED_EVERY_S = 5.0, 60.0


class WorkerApp:
    """Workers of one program.

    Example::

        app = goq.WorkerApp("http://127.0.0.1:8080")

        @app.worker("orders", group="billing", concurrency=8)
        def bill(order: Order) -> None: ...

        app.run()

    ``servers`` and the options are those of :class:`goq.Client`. A worker waits for a node and for
    its topics without end; meanwhile a warning in the log says so once a minute.

    The first parameter's annotation says what the function gets: ``bytes``, ``str``, a
    :class:`goq.client.ReceivedMessage` (also without annotation), or anything that msgspec or
    pydantic decodes from JSON. A parameter ``message`` gets the message besides. A value that does
    not decode is rejected.
    """

    def __init__(self, servers: str | Sequence[str] = "http://127.0.0.1:8080", **options: Any):
        self._servers = servers
        self._options = {"retries": FOREVER, **options}
        self._functions: list[WorkerFunction] = []
        self._runs: dict[str, object] = {}  # no lock: an interrupt cannot tell whether it has one
        self._is_stopping = False  # no Event: a signal handler sets it, maybe while it is being set
        self._error: BaseException | None = None
        self._warned_s = -_WARNED_EVERY_S
        self._changed = Monitor()
        self._loops: set[WorkerLoop] = set()

    def worker(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        concurrency: int = 1,
        visibility: Duration | None = None,
        retry: Duration | None = None,
        reject_on: ErrorTypes = (),
    ) -> Callable[[F], F]:
        """Return a decorator that makes a function, plain or ``async``, a worker.

        ``concurrency`` messages are handled at once. A failed message comes again after ``retry``,
        by default after the group's backoff. Errors of the kinds ``reject_on`` make it a dead
        letter at once. What the function returns is awaited if it is awaitable. Raises
        ``InvalidInput``, and the decorator ``UsageError`` for what cannot handle messages, as a
        generator function.
        """
        options = WorkerOptions(
            _listed(topics), group, concurrency, visibility, retry, tuple(_listed(reject_on))
        )

        def add(function: F) -> F:
            self._functions.append(WorkerFunction(function, options))
            return function

        return add

    def run(self, servers: str | Sequence[str] | None = None, **options: Any) -> None:
        """Run all workers until :meth:`stop`, SIGTERM, or an error that no retry helps.

        ``servers`` and ``options`` override those of the constructor. Functions that run end before
        it returns or raises, also at Ctrl-C. A function that raises ``SystemExit``, as ``sys.exit``
        does, or ``KeyboardInterrupt`` fails its message and stops the app: ``run`` raises it.

        SIGTERM counts as :meth:`stop` where ``run`` is called in the main thread and the program
        does not handle the signal itself. A second one ends the program at once.
        """
        if not self._functions:
            raise UsageError("the app has no workers: decorate functions with app.worker")
        this_run = object()
        try:
            if self._runs.setdefault("run", this_run) is not this_run:
                raise UsageError("the app runs already")
            chosen = {**self._options, **options}
            chosen["on_retry"] = partial(self._goes_on, chosen.get("on_retry"))
            with (
                self._stopped_by_sigterm(),
                Client(servers or self._servers, **chosen) as client,
            ):
                self._run_all(client)
            if self._error is not None:
                raise self._error
        finally:
            if self._runs == {"run": this_run}:  # without a call, after which an interrupt may come
                self._error, self._is_stopping, self._runs = None, False, {}

    def stop(self) -> None:
        """Take no more messages; :meth:`run` returns when the running functions have ended.

        The app may run again afterwards. If it does not run now, its next run ends at once.
        """
        self._is_stopping = True

    def _run_all(self, client: Client) -> None:
        try:
            for function in self._functions:
                self._start(WorkerLoop(client, function, lambda: self._is_stopping, self._fail))
            self._wait()
        finally:  # also on an interrupt
            self.stop()
            self._wait()

    def _start(self, loop: WorkerLoop) -> None:
        thread = threading.Thread(target=self._run, args=(loop,), name="goq-worker", daemon=True)
        try:
            self._loops.add(loop)
            thread.start()
        except BaseException:  # no more threads, or an interrupt: then it may have begun
            with self._changed:
                if not loop.has_begun:
                    self._loops.discard(loop)
            raise

    def _run(self, loop: WorkerLoop) -> None:
        with self._changed:
            if loop not in self._loops:
                return
            loop.has_begun = True
        try:
            loop.run()
        except BaseException as error:
            self._fail(error)
        finally:
            with self._changed:
                self._loops.discard(loop)
                self._changed.notify_all()

    def _wait(self) -> None:
        """Return when all loops have ended.

        Not by ``Thread.join``: where a signal interrupts it, Python 3.11 and 3.12 take the thread
        for dead. A signal that comes just before the wait is handled at its end.
        """
        with self._changed:
            while self._loops:
                self._changed.wait(_SIGNAL_CHECK_S)

    def _fail(self, error: BaseException) -> None:
        """Stop, and have :meth:`run` raise the error, if it is the first."""
        if self._error is None:
            self._error = error
        self.stop()

    def _goes_on(self, on_retry: OnRetry | None, error: GoqError, failing_s: float) -> bool:
        """Return whether to try a request again; during a stop only for as long as a failover.

        Says now and then that workers wait.
        """
        if self._is_stopping and failing_s >= _STOP_RETRIES_S:
            return False
        now_s = time.monotonic()
        if failing_s >= _WARNED_AFTER_S and now_s - self._warned_s >= _WARNED_EVERY_S:
            self._warned_s = now_s
            _log.warning("no messages for %.0f s, trying again: %s", failing_s, error.detail)
        return on_retry is None or on_retry(error, failing_s)

    @contextmanager
    def _stopped_by_sigterm(self) -> Iterator[None]:
        """Stop at SIGTERM, if that would end the program otherwise."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield
            return

        def stop(_number: int, _frame: FrameType | None) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.stop()

        signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _listed(given: Any) -> list[Any]:
    """Return one or several as a list."""
    return list(given) if isinstance(given, list | tuple | set | frozenset) else [given]
