"""Workers: functions that handle the messages of a group, many at once, settled by how they end.

A function that returns acknowledges its message, one that raises nacks it, one that raises a
declared error rejects it. Leases are extended while functions run. Messages of one key run one
after the other. A stop takes no more messages, and waits for the functions that run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import typing
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from goq.client._sync.client import Client
from goq.client._sync.settlement import ReceivedMessage
from goq.client.arguments import FOREVER, Duration
from goq.client.tracing.process_span import is_traced, process_span
from goq.errors import GoqError, InvalidInput, UsageError

_log = logging.getLogger("goq.worker")
F = TypeVar("F", bound=Callable[..., Any])
_WAIT: Final = "500ms"
_AHEAD: Final = 2
Parse = Callable[[ReceivedMessage], object]


class _Stopped(Exception):
    """The loop is to end."""


@dataclass(frozen=True, slots=True)
class WorkerFunction:
    """A function and what it handles."""

    function: Callable[..., Any]
    topics: Sequence[str]
    group: str
    concurrency: int
    visibility: Duration | None
    retry: Duration | None
    reject_on: tuple[type[BaseException], ...]
    parse: Parse
    takes_message: bool


class WorkerApp:
    """Workers of one program.

    Example::

        app = goq.WorkerApp("http://127.0.0.1:8080")

        @app.worker("orders", group="billing", concurrency=8)
        def bill(order: Order) -> None: ...

        app.run()

    ``servers`` and the options are those of :class:`goq.Client`; a worker waits for a node without
    end. The first parameter's annotation says what the function gets: ``bytes``, ``str``, a
    :class:`goq.client.ReceivedMessage` (also without annotation), or anything that msgspec or
    pydantic decodes from JSON. A parameter ``message`` gets the message besides. A value that does
    not decode is rejected.
    """

    def __init__(self, servers: str | Sequence[str] = "http://127.0.0.1:8080", **options: Any):
        self._servers = servers
        self._options = {"retries": FOREVER, "on_retry": self._goes_on, **options}
        self._workers: list[WorkerFunction] = []
        self._stopping = threading.Event()
        self._error: BaseException | None = None

    def worker(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        concurrency: int = 1,
        visibility: Duration | None = None,
        retry: Duration | None = None,
        reject_on: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> Callable[[F], F]:
        """Return a decorator that makes a function, plain or ``async``, a worker.

        ``concurrency`` messages are handled at once. A failed message comes again after ``retry``,
        by default after the group's backoff. Errors of the kinds ``reject_on`` make it a dead
        letter at once. Raises ``InvalidInput``.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        kinds = reject_on if isinstance(reject_on, tuple) else (reject_on,)
        if concurrency < 1 or not names:
            raise InvalidInput("a worker needs a topic, and a concurrency of 1 or more")

        def add(function: F) -> F:
            parse, takes_message = _payload(function)
            self._workers.append(
                WorkerFunction(
                    function,
                    names,
                    group,
                    concurrency,
                    visibility,
                    retry,
                    kinds,
                    parse,
                    takes_message,
                )
            )
            return function

        return add

    def run(self, servers: str | Sequence[str] | None = None, **options: Any) -> None:
        """Run all workers until :meth:`stop`, or until an error that no retry helps.

        ``servers`` and ``options`` override those of the constructor.
        """
        if not self._workers:
            raise UsageError("the app has no workers: decorate functions with app.worker")
        with Client(servers or self._servers, **{**self._options, **options}) as client:
            loops = [_WorkerLoop(client, worker, self._stopping) for worker in self._workers]
            threads = [
                threading.Thread(target=self._run, args=(loop,), name="goq-worker", daemon=True)
                for loop in loops
            ]
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    thread.join()
            finally:  # also on an interrupt
                self._stopping.set()
                for thread in threads:
                    thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Take no more messages; :meth:`run` returns when the running functions have ended."""
        self._stopping.set()

    def _goes_on(self, _error: GoqError, _failing_s: float) -> bool:
        return not self._stopping.is_set()

    def _run(self, loop: _WorkerLoop) -> None:
        try:
            loop.run()
        except BaseException as error:
            self._error = error
            self._stopping.set()


class _WorkerLoop:
    """The consume loop of one worker, and the threads of its functions."""

    def __init__(self, client: Client, worker: WorkerFunction, stopping: threading.Event) -> None:
        self._client = client
        self._worker = worker
        self._stopping = stopping
        self._running: dict[Future[None], object] = {}
        self._not_begun: list[ReceivedMessage] = []
        self._pool = ThreadPoolExecutor(worker.concurrency, thread_name_prefix="goq-worker")
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        """Handle messages until the app stops."""
        is_async = inspect.iscoroutinefunction(self._worker.function)
        with asyncio.Runner() if is_async else self._pool as context:
            if isinstance(context, asyncio.Runner):
                self._loop = context.get_loop()
                thread = threading.Thread(target=self._loop.run_forever, daemon=True)
                thread.start()
            try:
                self._consume()
            finally:
                self._pool.shutdown()
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._loop.stop)
                    thread.join()

    def _consume(self) -> None:
        worker = self._worker
        messages = self._client.consume(
            worker.topics,
            group=worker.group,
            prefetch=_AHEAD * worker.concurrency,
            visibility=worker.visibility,
            wait=_WAIT,
            auto_extend=True,
            before_wait=self._check,
            before_end=self._finish,
            open_spans=False,
        )
        try:
            for message in messages:
                self._check()
                self._start(message)
                self._check()
        except _Stopped:
            pass
        finally:
            messages.close()

    def _check(self) -> None:
        if self._stopping.is_set():
            raise _Stopped

    def _finish(self) -> None:
        # Only now: while the loop still receives, a message that is released comes back at once.
        self._client.release_many(self._not_begun)
        wait(self._running)

    def _start(self, message: ReceivedMessage) -> None:
        """Start the function for a message; wait for a thread, and for the end of its key's."""
        key = None if message.key is None else (message.topic, message.key)
        while len(self._running) >= self._worker.concurrency or (
            key and key in self._running.values()
        ):
            done = wait(self._running, timeout=0.1, return_when=FIRST_COMPLETED).done
            for future in done:
                del self._running[future]
            if self._stopping.is_set():
                self._not_begun.append(message)
                raise _Stopped
        self._running[self._pool.submit(self._handle, message)] = key

    def _handle(self, message: ReceivedMessage) -> None:
        try:
            self._settle(message)
        except GoqError as error:
            _log.warning("%s was not settled: %s", message.id, error.detail)

    def _settle(self, message: ReceivedMessage) -> None:
        worker = self._worker
        try:
            payload = worker.parse(message)
        except (ValueError, msgspec.MsgspecError) as error:
            _log.error("%s is rejected: %s", message.id, error)
            message.reject(f"does not decode: {error}")
            return
        try:
            self._call(payload, message)
        except worker.reject_on as error:
            _log.error("%s is rejected", message.id, exc_info=True)
            message.reject(_reason(error))
        except Exception as error:
            _log.warning("%s failed, attempt %d", message.id, message.attempt, exc_info=True)
            message.nack(self._worker.retry, _reason(error))
        else:
            message.ack()

    def _call(self, payload: object, message: ReceivedMessage) -> None:
        more = {"message": message} if self._worker.takes_message else {}
        call = partial(self._worker.function, payload, **more)
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(_awaited(call, message), self._loop).result()
            return
        with _span(message):
            call()


async def _awaited(call: Callable[[], Awaitable[object]], message: ReceivedMessage) -> None:
    with _span(message):
        await call()


def _span(message: ReceivedMessage) -> AbstractContextManager[None]:
    return process_span(message) if is_traced() else nullcontext()


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _payload(function: Callable[..., Any]) -> tuple[Parse, bool]:
    """Return how a function gets a message, and whether it has a parameter ``message`` besides."""
    parameters = [*inspect.signature(function).parameters]
    if not parameters:
        raise UsageError(f"{function.__name__} needs a parameter for the message")
    hints = typing.get_type_hints(function)
    kind = hints.get(parameters[0], ReceivedMessage)
    return _parser(kind), "message" in parameters[1:]


def _parser(kind: Any) -> Parse:
    if kind is ReceivedMessage or kind is Any:
        return lambda message: message
    if kind is bytes:
        return lambda message: message.value or b""
    if kind is str:
        return lambda message: (message.value or b"").decode()
    if hasattr(kind, "model_validate_json"):  # a model of pydantic
        return lambda message: kind.model_validate_json(message.value or b"")
    decoder = msgspec.json.Decoder(kind)
    return lambda message: decoder.decode(message.value or b"")
