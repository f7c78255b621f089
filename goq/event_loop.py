"""The event loops of goq's threads, uvloop's where it is installed, and how tasks wait on them."""

from __future__ import annotations

import asyncio
from contextlib import suppress


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, for ``asyncio.Runner``."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def wait_for_event(event: asyncio.Event, timeout_s: float | None) -> None:
    """Return when an event is set, or after a timeout; None for none.

    Unlike ``asyncio.wait_for`` it never loses a cancellation.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
