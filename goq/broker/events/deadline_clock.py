"""The clock by which a partition's leases end and its retries are due.

Deadlines are wall time, so that they survive a restart. A wall clock may be set while the node
runs. That is noticed by the uptime, which nobody sets: the two go apart. Then all deadlines move
with the clock, as they do when another node takes over, and that is recorded.
"""

from __future__ import annotations

from collections.abc import Callable

from goq import limits
from goq.broker.events.writer import EventWriter
from goq.broker.partition_context import Availability
from goq.broker.runtime.callbacks import ignore
from goq.clock import Clock
from goq.delivery.clock_change import clock_set
from goq.delivery.events.event import ClockChanged
from goq.delivery.partition_state import PartitionState


class DeadlineClock:
    """The wall clock; it moves the deadlines of ``state`` when it was set.

    ``on_moved`` is called after a move. Nothing is moved before :meth:`follow`.
    """

    def __init__(
        self,
        clock: Clock,
        state: PartitionState,
        writer: EventWriter,
        availability: Availability,
        *,
        on_moved: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._state = state
        self._writer = writer
        self._availability = availability
        self._on_moved = on_moved
        self._ahead_us: int | None = None
        """By how much the wall clock was ahead of the uptime when deadlines were last moved."""

    def follow(self, change: ClockChanged | None) -> None:
        """Move deadlines from now on, and at once by what changed before."""
        wall_us = self._clock.wall_us()
        self._ahead_us = wall_us - self._clock.uptime_us()
        if change is not None:
            self._record(change)

    def now_ms(self) -> int:
        """Return the time in milliseconds, once deadlines are by it.

        Call it before deadlines are compared with the time, or new ones are made.
        """
        wall_us = self._clock.wall_us()
        if self._ahead_us is not None and self._availability.error is None:
            step_ms = (wall_us - self._clock.uptime_us() - self._ahead_us) // 1000
            if abs(step_ms) > limits.CLOCK_SKEW_WARN_MS:
                self._ahead_us += step_ms * 1000
                change = clock_set(self._state, step_ms)
                if change is not None:
                    self._record(change)
        return wall_us // 1000

    def close(self) -> None:
        """Move nothing any more: the partition is closing."""
        self._ahead_us = None
        self._on_moved = ignore

    def _record(self, change: ClockChanged) -> None:
        has_shift = bool(change.lease_shift_ms or change.retry_shift_ms)
        if has_shift and self._writer.has_room:
            self._writer.record([change])
        else:  # if lost, the next opening decides as this one did
            self._writer.record_later(change)
        if has_shift:
            self._on_moved()
