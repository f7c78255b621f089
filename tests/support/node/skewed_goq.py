"""``goq`` with a wall clock that is ahead by ``CLOCK_AHEAD_MS``: a node with a wrong clock."""

from __future__ import annotations

import os
import time

from goq.clock import SystemClock
from goq_cli.main import main

AHEAD_MS = "CLOCK_AHEAD_MS"


def skew(ahead_ms: int) -> None:
    """Move the clock that the node reads; the library's clients in this process have it too."""

    def wall_us(_self: SystemClock) -> int:
        return time.time_ns() // 1000 + ahead_ms * 1000

    def wall_ms(_self: SystemClock) -> int:
        return time.time_ns() // 1_000_000 + ahead_ms

    SystemClock.wall_us = wall_us
    SystemClock.wall_ms = wall_ms


if __name__ == "__main__":
    skew(int(os.environ[AHEAD_MS]))
    main()
