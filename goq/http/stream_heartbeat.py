"""Heartbeats of idle streams, on one timer for a whole server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from goq.http.response_writer import ResponseWriter

SLOTS: Final = 16


class StreamHeartbeat:
    """Has each of its writers beat once in a period, a share of them at each tick.

    One timer for each of thousands of idle streams would make a large timer heap, and all beats in
    one tick would block the event loop for as long as the writes take. A writer that has sent
    something since its last turn is skipped, so a stream is silent for one to two periods at most.
    Without writers the timer does not run.
    """

    def __init__(self, period_ms: int) -> None:
        self._tick_s = period_ms / 1000 / SLOTS
        self._slots: list[dict[ResponseWriter, None]] = [{} for _ in range(SLOTS)]
        self._slot_of: dict[ResponseWriter, int] = {}
        self._next_slot = 0
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._slot_of)

    def add(self, writer: ResponseWriter) -> None:
        """Start the heartbeats of a writer."""
        slot = self._slot_of[writer] = self._next_slot
        self._next_slot = (slot + 1) % SLOTS
        self._slots[slot][writer] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def remove(self, writer: ResponseWriter) -> None:
        """Stop the heartbeats of a writer."""
        slot = self._slot_of.pop(writer, None)
        if slot is not None:
            del self._slots[slot][writer]

    def _tick(self) -> None:
        self._timer = None
        if not self._slot_of:
            return
        self._turn = (self._turn + 1) % SLOTS
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)
        for writer in list(self._slots[self._turn]):
            writer.beat()
