"""Letting work in a thread leave time to the event loop, and end early."""

from __future__ import annotations

import time
from collections.abc import Callable

from goq.errors import ShuttingDown

_REST_S_MAX = 0.05


class Pace:
    """Called between pieces of work: rests for a share of the time that the last piece took.

    Even a rest of 0 lets threads go first that wait for the interpreter. Raises ``ShuttingDown``
    once ``is_over`` says so: nobody wants the work any more.
    """

    def __init__(
        self,
        share: float,
        is_over: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share = share
        self._is_over = is_over
        self._clock = clock
        self._sleep = sleep
        self._began_s = clock()

    def __call__(self) -> None:
        """Rest, or end the work."""
        if self._is_over():
            raise ShuttingDown("the node is stopping; ask another, or this one later")
        worked_s = self._clock() - self._began_s
        self._sleep(min(worked_s * self._share, _REST_S_MAX))
        self._began_s = self._clock()
