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
from goq.clock import Clock, WallSteps
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
        self._steps: WallSteps | None = None  # since deadlines were last moved

    def follow(self, change: ClockChanged | None) -> None:
        """Move deadlines from now on, and at once by what changed before."""
        self._steps = WallSteps(self._clock, limits.CLOCK_SKEW_WARN_MS)
        if change is not None:
            self._record(change)

    def now_ms(self) -> int:
        """Return the time in milliseconds, once deadlines are by it.

        Call it before deadlines are compared with the time, or new ones are made.
        """
        if self._steps is None or self._availability.error is not None:
            return self._clock.wall_ms()
        wall_us, step_ms = self._steps.read()
        change = clock_set(self._state, step_ms) if step_ms else None
        if change is not None:
            self._record(change)
        return wall_us // 1000

    def close(self) -> None:
        """Move nothing any more: the partition is closing."""
        self._steps = None
        self._on_moved = ignore

    def _record(self, change: ClockChanged) -> None:
        has_shift = bool(change.lease_shift_ms or change.retry_shift_ms)
        if has_shift and self._writer.has_room:
            self._writer.record([change])
        else:  # if lost, the next opening decides as this one did
            self._writer.record_later(change)
        if has_shift:
            self._on_moved()
