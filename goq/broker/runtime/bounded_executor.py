"""A share of an executor: one topic's work takes some of the node's threads, never all of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class BoundedExecutor(Executor):
    """Runs up to ``running_max`` jobs at once in another executor; the others wait in turn.

    A job must not wait for another one of the same executor. Thread-safe.
    """

    def __init__(self, executor: Executor, running_max: int) -> None:
        self._executor = executor
        self._running_max = running_max
        self._running = 0
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._lock = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a job when fewer than ``running_max`` run; return its future."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.append((future, lambda: fn(*args, **kwargs)))
        self._start_next()
        return future

    def _start_next(self) -> None:
        with self._lock:
            if not self._waiting or self._running >= self._running_max:
                return
            self._running += 1
            future, job = self._waiting.popleft()
        try:
            self._executor.submit(self._run, future, job)
        except RuntimeError as error:  # it was shut down
            self._end()
            future.set_exception(error)

    def _run(self, future: Future[Any], job: Callable[[], Any]) -> None:
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(job())
        except BaseException as error:
            future.set_exception(error)
        finally:
            self._end()
            self._start_next()

    def _end(self) -> None:
        with self._lock:
            self._running -= 1
