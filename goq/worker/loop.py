"""The consume loop of one worker, and the threads of its function."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from goq import limits
from goq.client._sync.client import Client
from goq.client._sync.consume.received_message import ReceivedMessage
from goq.errors import GoqError
from goq.worker.event_loop import EventLoopThread
from goq.worker.function import WorkerFunction
from goq.worker.handler import Handler
from goq.worker.key_queues import KeyQueues

_WAIT: Final = "500ms"
_STOP_CHECK_S: Final = 0.1
_AHEAD: Final = 2


class _Stopped(Exception):
    """The loop is to end."""


class WorkerLoop:
    """Takes messages one by one and gives each to a thread, as soon as one is free.

    A message whose key is busy waits in a queue of the key, and the loop goes on with others: the
    node sends no more messages of a leased key, so each busy key has at most one batch here. Only
    groups with another ``ordering`` fill the queues up to their bound; the loop pauses then.
    """

    def __init__(
        self,
        client: Client,
        function: WorkerFunction,
        is_stopping: Callable[[], bool],
        on_exit: Callable[[BaseException], None],
    ) -> None:
        options = function.options
        self.has_begun = False
        """Whether its thread runs, or has run."""
        self._client = client
        self._options = options
        self._is_stopping = is_stopping
        self._prefetch = _AHEAD * options.concurrency
        self._waiting_max = min(
            self._prefetch * options.concurrency, limits.WORKER_WAITING_MESSAGES_MAX
        )
        self._changed = threading.Condition()
        self._running = 0
        self._queues = KeyQueues()
        self._not_begun: list[ReceivedMessage] = []
        self._pool = ThreadPoolExecutor(options.concurrency, thread_name_prefix="goq-worker")
        self._event_loop = EventLoopThread(on_exit)
        self._handler = Handler(function, self._event_loop, on_exit)

    def run(self) -> None:
        """Handle messages until the app stops."""
        with self._event_loop, self._pool:
            messages = self._client.consume(
                self._options.topics,
                group=self._options.group,
                prefetch=self._prefetch,
                visibility=self._options.visibility,
                wait=_WAIT,
                auto_extend=True,
                before_wait=self._check,
                before_end=self._finish,
                open_spans=False,
            )
            try:
                for message in messages:
                    self._take(message)
            except _Stopped:
                pass
            except GoqError:  # also where a stop ends the retries of a request
                if not self._is_stopping():
                    raise
            finally:
                messages.close()

    def _check(self) -> None:
        if self._is_stopping():
            raise _Stopped

    def _take(self, message: ReceivedMessage) -> None:
        """Begin a message when there is a thread, or let it wait for its key."""
        with self._changed:
            may_begin = self._queues.add(message)
            while not self._is_stopping() and (
                self._running >= self._options.concurrency
                if may_begin
                else self._queues.waiting_count > self._waiting_max
            ):
                self._changed.wait(_STOP_CHECK_S)
            if may_begin and self._is_stopping():
                self._not_begun.append(message)
            elif may_begin:
                self._begin(message)
        self._check()

    def _begin(self, message: ReceivedMessage) -> None:
        self._running += 1
        try:
            self._pool.submit(self._work, message)
        except RuntimeError:  # no more threads
            self._running -= 1
            raise

    def _work(self, message: ReceivedMessage) -> None:
        """Handle a message, then those that wait for their key."""
        following: ReceivedMessage | None = message
        while following is not None:
            if following.lease_time.is_alive(time.monotonic()):
                self._handler.handle(following)
            else:
                following.settled = True  # others get it
            with self._changed:
                following = None if self._is_stopping() else self._queues.next(following)
                if following is None:
                    self._running -= 1
                self._changed.notify_all()

    def _finish(self) -> None:
        """Return what did not begin, then wait for the functions that run.

        Only now: while the loop still receives, a message that is released comes back at once.
        """
        with self._changed:
            self._not_begun += self._queues.drain()
        self._client.release_many(self._not_begun)
        with self._changed:
            while self._running > 0:
                self._changed.wait()
