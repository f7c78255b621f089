"""Waiting for another process, or a thread, to have done something."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S_MAX = 15.0


def eventually(condition: Callable[[], object]) -> None:
    """Return when ``condition`` holds; fail when it does not in time."""
    until = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < until, "the condition did not come true in time"
        time.sleep(0.005)
