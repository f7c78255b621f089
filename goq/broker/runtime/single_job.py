"""A job that a request begins and others ask about: one at a time, with how the last one ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from goq.errors import GoqError

R = TypeVar("R")
_log = logging.getLogger("goq.broker")


class JobOutcome(NamedTuple, Generic[R]):
    """A job of this run of the node: its number, and its result or why it failed."""

    number: int
    result: R | None
    failure: GoqError | None


class SingleJob(Generic[R]):
    """The jobs of one kind, such as ``backup``; ``last`` is how the last one ended."""

    def __init__(self, kind: str) -> None:
        self.last: JobOutcome[R] | None = None
        self._kind = kind
        self._number = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> int | None:
        """The number of the job under way."""
        return None if self._task is None or self._task.done() else self._number

    def begin(
        self, work: Callable[[], Awaitable[R]], on_end: Callable[[JobOutcome[R]], None]
    ) -> int:
        """Begin a job while none is under way; return its number. No error of it is raised."""
        assert self.running is None
        self._number += 1
        self._task = asyncio.ensure_future(self._run(self._number, work, on_end))
        return self._number

    async def _run(
        self,
        number: int,
        work: Callable[[], Awaitable[R]],
        on_end: Callable[[JobOutcome[R]], None],
    ) -> None:
        result, failure = None, None
        try:
            result = await work()
        except GoqError as error:
            failure = error
        except OSError as error:
            failure = GoqError(f"the {self._kind} failed: {error}")
        except Exception as error:
            _log.exception("a %s failed", self._kind)
            failure = GoqError(f"the {self._kind} failed: {error!r}")
        self.last = JobOutcome(number, result, failure)
        on_end(self.last)

    async def wait(self) -> None:
        """Wait for the job under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def cancel(self) -> None:
        """Give up the job under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
