"""Tasks that go on in the background: their errors are logged, or their callers are gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("goq.broker")
_begun: set[asyncio.Task[Any]] = set()  # an event loop keeps no task alive


class Tasks:
    """A set of running tasks; failures are logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background work failed", exc_info=error)

    def cancel(self) -> None:
        """Cancel the running tasks."""
        for task in self._tasks:
            task.cancel()

    async def finish(self) -> None:
        """Wait for the running tasks."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def to_the_end(
    work: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return ``work`` that goes on to its end when its caller is cancelled, once it has begun.

    For changes of several steps: a client that disconnects would leave them half done.
    """

    @wraps(work)
    async def begin(*args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.get_running_loop().create_task(work(*args, **kwargs))
        _begun.add(task)
        task.add_done_callback(_end)
        return await asyncio.shield(task)

    return begin


def _end(task: asyncio.Task[Any]) -> None:
    _begun.discard(task)
    if not task.cancelled():
        task.exception()  # the caller that would get it may be gone
