"""Waits for what other processes, threads and tasks do: for a condition, never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

WAIT_S_MAX = 60.0
PAUSE_S = 0.005


def eventually(
    condition: Callable[[], object],
    what: str = "the condition holds",
    *,
    seconds: float = WAIT_S_MAX,
    pause_s: float = PAUSE_S,
) -> None:
    """Return when the condition holds; fail if it does not within ``seconds``.

    ``pause_s`` is between looks: longer where looking costs something.
    """
    until_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until_s, f"not within {seconds:g} s: {what}"
        time.sleep(pause_s)


async def until(condition: Callable[[], object], *, seconds: float = WAIT_S_MAX) -> None:
    """Let the loop and its threads work until the condition holds; it may be a coroutine."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.001)
