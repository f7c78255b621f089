"""The event loop of a worker: it runs what functions await, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType


class EventLoopThread:
    """An event loop in a thread, which the first awaitable starts; close it with ``with``.

    A task that raises ``SystemExit`` or ``KeyboardInterrupt`` ends ``run_forever``. It is told to
    ``on_exit``, and the loop goes on: other functions wait for what they await.
    """

    def __init__(self, on_exit: Callable[[BaseException], None]) -> None:
        self._on_exit = on_exit
        self._lock = threading.Lock()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def run(self, awaitable: Awaitable[object]) -> object:
        """Return the result of an awaitable, or raise its error, of whatever kind."""
        with self._lock:
            loop = self._runner.get_loop()
            if self._thread is None:
                thread = threading.Thread(target=self._serve, args=(loop,), daemon=True)
                thread.start()  # raises where there are no more threads
                self._thread = thread
        result, error = asyncio.run_coroutine_threadsafe(_outcome(awaitable), loop).result()
        if error is not None:
            raise error
        return result

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._is_closing:
            try:
                loop.run_forever()
            except BaseException as error:
                self._on_exit(error)

    def __enter__(self) -> EventLoopThread:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            self._is_closing = True
            loop = self._runner.get_loop()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
        self._runner.close()


async def _outcome(awaitable: Awaitable[object]) -> tuple[object, BaseException | None]:
    """Return the result or the error: raised, some errors would end the event loop."""
    try:
        return await awaitable, None
    except BaseException as error:
        return None, error
