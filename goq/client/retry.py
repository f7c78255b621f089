"""Retries of failed requests: when, and after which pause.

Exponential backoff with full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015): the
n-th pause is drawn evenly from zero to ``initial * 2**n``, up to a ceiling. Clients
that failed together then return at different times. A pause is at least the ``retry_after_ms`` of
the node, if it sent one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from goq.errors import GoqError, TimedOut

_log = logging.getLogger("goq.client")
_HELD_S_MIN: Final = 1.0
_ATTEMPT_MS_MIN: Final = 5_000
OnRetry = Callable[[GoqError, float], bool]


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """How long failed requests are retried, in milliseconds from the first failure.

    ``refused_ms`` is the bound while no node can be connected to, by default the same. ``on_retry``
    is called with an error and the seconds since the first one, and says whether to try again.
    """

    total_ms: float
    initial_ms: int = 50
    pause_ms_max: int = 2000
    refused_ms: float = inf
    on_retry: OnRetry | None = None


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """One failed attempt: its error, and whether the request may have been carried out.

    ``is_refused`` if there was no connection.
    """

    error: GoqError
    maybe_done: bool
    is_refused: bool = False


class RetryAttempts:
    """The attempts of one request, which is of no use after ``until_s``.

    ``on_failed`` comes after each attempt that another follows. ``draw`` returns random numbers
    from 0 to 1, ``now_s`` monotonic seconds.
    """

    def __init__(
        self,
        policy: BackoffPolicy,
        *,
        draw: Callable[[], float],
        now_s: Callable[[], float],
        until_s: float = inf,
        on_failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._policy = policy
        self._draw = draw
        self._now_s = now_s
        self._until_s = until_s
        self._on_failed = on_failed
        self._failures = 0
        self._failing_since_s = 0.0

    def pause_s(self, failure: RequestFailure, *, repeatable: bool) -> float | None:
        """Return the pause before the next attempt in seconds, None for no further attempt.

        A request that may have been carried out is sent again only if it is ``repeatable``, that
        is, idempotent.
        """
        if not failure.error.retryable or (failure.maybe_done and not repeatable):
            return None
        if not self._failures:
            self._failing_since_s = self._now_s()
        total_ms = self._policy.total_ms
        if failure.is_refused:
            total_ms = min(total_ms, self._policy.refused_ms)
        ceiling_ms = min(
            self._policy.pause_ms_max, self._policy.initial_ms << min(self._failures, 16)
        )
        self._failures += 1
        pause_ms = max(self._draw() * ceiling_ms, failure.error.retry_after_ms or 0)
        now_s = self._now_s()
        failing_s = now_s - self._failing_since_s
        if failing_s + pause_ms / 1000 >= total_ms / 1000:
            return None
        if now_s + pause_ms / 1000 >= self._until_s:
            return None
        on_retry = self._policy.on_retry
        if on_retry is not None and not on_retry(failure.error, failing_s):
            return None
        _log.info(
            "attempt %d failed, the next is in %d ms: %s",
            self._failures,
            pause_ms,
            failure.error.detail,
        )
        self._on_failed()
        return pause_ms / 1000

    def timeout_ms(self) -> int | None:
        """Return how long the next attempt may wait for its answer, None for no bound of its own.

        That is half of the time that is left: if the node hangs, another can still be asked.
        """
        if self._until_s == inf:
            return None
        left_s = self._until_s - self._now_s()
        return max(_ATTEMPT_MS_MIN, int(left_s * 1000 / 2))

    def note_answer(self) -> None:
        """Note that an attempt was answered: the failures before are over."""
        if self._failures:
            _log.info("a node answered after %.1f s", self._now_s() - self._failing_since_s)
            self._failures = 0

    def note_held(self, failure: RequestFailure, held_s: float, wait_ms: int) -> None:
        """Note how long the node held the failed request before.

        A node that holds a long poll is well. If the connection breaks then, the failures before
        are over, and the time for retries begins anew.
        """
        if not failure.is_refused and _HELD_S_MIN <= held_s <= wait_ms / 1000:
            self._failures = 0


def answered(error: GoqError) -> RequestFailure:
    """Return a problem answer as a failure: only after a time-out it may have been done."""
    return RequestFailure(error, maybe_done=isinstance(error, TimedOut))
