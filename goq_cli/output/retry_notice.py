"""Notices on stderr while no node answers."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final

from goq.errors import GoqError

_SAID_AT_S: Final = (3.0, 30.0)
"""After how many seconds of failures to say so, then after each further period as the last."""


class RetryNotice:
    """Says that a command waits for a node, and since when; safe in all threads.

    ``is_over`` tells that the command is to end: nothing is tried again then. With ``is_once`` each
    wait is told once.
    """

    def __init__(
        self, servers: Sequence[str], is_over: Callable[[], bool], *, is_once: bool = False
    ) -> None:
        self._is_once = is_once
        self._servers = " ".join(servers)
        self._is_over = is_over
        self._lock = threading.Lock()
        self._next_s = _SAID_AT_S[0]

    def __call__(self, error: GoqError, failing_s: float) -> bool:
        """Perhaps say it; return whether to try again."""
        with self._lock:
            if failing_s < 1:
                self._next_s = _SAID_AT_S[0]
            if failing_s >= self._next_s:
                again_s = max(_SAID_AT_S[1], failing_s + _SAID_AT_S[1])
                self._next_s = math.inf if self._is_once else again_s
                sys.stderr.write(
                    f"goq: waiting for {self._servers} since {failing_s:.0f} s: {error.detail}\n"
                )
                sys.stderr.flush()
        return not self._is_over()
