"""The timer of a partition: for lease ends, due retries and maturing delayed messages.

The timer is set for the next due time, at most one second ahead. So a wall clock that is set
forward takes effect within a second. Without due times no timer is set. A timer that fires early
finds nothing due and is set again. On a full disk all that is due waits.

A heap has the next time of each group. It may be too early, never too late: then the group has
nothing due and gets another time. So a partition with many groups looks at those that are due, and
at those before them whose leases have all ended: they get their times without a timer each.
"""

from __future__ import annotations

import asyncio
from functools import partial
from heapq import heappop, heappush

from goq.broker.events.deadline_clock import DeadlineClock
from goq.broker.events.writer import EventWriter
from goq.broker.partition.leases import Leases
from goq.broker.partition.loader import LoadedPartition
from goq.broker.partition.ready_state.ready_state import ReadyState
from goq.broker.partition.ready_state.ready_state_manager import ReadyStateManager
from goq.broker.partition_context import Availability, PartitionCallbacks, PartitionContext
from goq.broker.runtime.metrics import TopicStats
from goq.clock import TimeSlice
from goq.delivery.delay.delayed_messages import LoadRequest
from goq.delivery.events.event import CopyQueued, Dropped, Expired, Matured
from goq.delivery.settlement import expire_due
from goq.errors import GoqError

_TIMER_MS_MAX = 1_000
_LOAD_RETRY_S = 1.0


class Timers:
    """Ends leases, retries and matures messages of a partition when they are due."""

    def __init__(
        self,
        loaded: LoadedPartition,
        context: PartitionContext,
        callbacks: PartitionCallbacks,
        availability: Availability,
        ready_manager: ReadyStateManager,
        writer: EventWriter,
        clock: DeadlineClock,
        leases: Leases,
        stats: TopicStats,
    ) -> None:
        self._messages = loaded.messages
        self._state = loaded.state
        self._context = context
        self._callbacks = callbacks
        self._availability = availability
        self._ready_manager = ready_manager
        self._writer = writer
        self._clock = clock
        self._leases = leases
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._groups: list[tuple[int, str]] = []  # a heap, with entries that do not count any more
        self._times_ms: dict[str, int] = {}  # of each group the entry that counts

    def arm(self, due_ms: int | None) -> None:
        """Fire no later than ``due_ms`` of the wall clock; do nothing for None."""
        if due_ms is None:
            return
        delay_ms = min(max(0, due_ms - self._context.clock.wall_ms()), _TIMER_MS_MAX)
        at = self._loop.time() + delay_ms / 1000
        if self._timer is not None:
            if self._timer_s <= at:
                return
            self._timer.cancel()
        # uvloop's handle of a call that is due at once has no due time
        self._timer, self._timer_s = self._loop.call_at(at, self._on_time), at

    def arm_for_group(self, group: str) -> None:
        """Fire for the next lease end or retry of a group."""
        due_ms = self._state.next_timer_ms(group)
        known_ms = self._times_ms.get(group)
        if due_ms is not None and (known_ms is None or due_ms < known_ms):
            self._times_ms[group] = due_ms
            heappush(self._groups, (due_ms, group))
            self.arm(due_ms)

    def arm_for_delayed(self) -> None:
        """Fire for the next delayed message."""
        self.arm(self._ready_manager.current.schedule.next_ms())

    def arm_all(self) -> None:
        """Fire for the next due time of any kind."""
        for group in self._state.groups:
            self.arm_for_group(group)
        self.arm_for_delayed()

    def cancel(self) -> None:
        """Cancel the timer until it is armed again."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_time(self) -> None:
        """End leases and mature delayed messages that are due."""
        self._timer = None
        if self._availability.error is not None:
            return
        now_ms = self._clock.now_ms()
        if not self._writer.has_room:
            self.arm(now_ms + _TIMER_MS_MAX)
            return
        has_freed = self._mature(now_ms)
        time_slice = TimeSlice()
        while (group := self._pop_due(now_ms)) is not None:
            has_freed |= self._expire(group, now_ms, time_slice)
            has_freed |= self._state.advance_retries(group, now_ms)
            self.arm_for_group(group)
            if time_slice.is_over:
                break  # the timer is due at once again
        if has_freed:
            self._callbacks.on_ready(None)
        self._arm_for_first_group(time_slice)
        self.arm_for_delayed()

    def _arm_for_first_group(self, time_slice: TimeSlice) -> None:
        """Fire for the first group that still has something to end or to repeat at its time."""
        while self._groups:
            known_ms, group = self._groups[0]
            due_ms = self._state.next_timer_ms(group)
            is_current = self._times_ms.get(group) == known_ms
            if (is_current and due_ms == known_ms) or time_slice.is_over:
                self.arm(known_ms)
                return
            heappop(self._groups)
            if is_current:
                del self._times_ms[group]
                if due_ms is not None:
                    self._times_ms[group] = due_ms
                    heappush(self._groups, (due_ms, group))

    def _pop_due(self, now_ms: int) -> str | None:
        """Return a group that may have something due; it has no time until it is armed again."""
        while self._groups and self._groups[0][0] <= now_ms:
            due_ms, group = heappop(self._groups)
            if self._times_ms.get(group) == due_ms:
                del self._times_ms[group]
                return group
        return None

    def _expire(self, group: str, now_ms: int, time_slice: TimeSlice) -> bool:
        """End due leases of a group until the slice is over; return whether there were any."""
        has_expired = False
        failing_of = partial(self._leases.failure_context, group, now_ms)
        for events in expire_due(self._state, group, now_ms, failing_of):
            has_expired = True
            self._writer.record(events)
            for event in events:
                assert isinstance(event, Expired | CopyQueued | Dropped)
                count = sum(end - start for start, end, _ in event.spans)
                self._stats.expired_messages += count
                self._stats.groups[group].expired_messages += count
            if time_slice.is_over:
                break
        return has_expired

    def _mature(self, now_ms: int) -> bool:
        """Move due messages to their ready queues, and load those that are due soon.

        Many take several slices; the timer is due at once again for the next. A slice is over after
        its time and one more step of ``ReadyState.mature``.
        """
        if self._ready_manager.is_rebuilding:
            return False
        ready = self._ready_manager.current
        matured, time_slice = list[Matured](), TimeSlice()
        while ready.schedule.has_due(now_ms):
            event = ready.mature(now_ms)
            if event is not None:
                if matured and matured[-1].end_offset <= event.end_offset:
                    matured.pop()  # the later one covers it
                matured.append(event)
            if time_slice.is_over:
                break
        for event in matured:  # if lost, they are repeated: leases of the messages wait for them
            self._writer.record_later(event)
        load = ready.schedule.load_wanted(now_ms)
        if load is not None:
            self._context.tasks.start(self._load(load))
        return bool(matured)

    async def _load(self, load: LoadRequest) -> None:
        ready = self._ready_manager.current
        try:
            found = await self._loop.run_in_executor(
                self._context.executor, ready.load, self._messages, load
            )
        except (GoqError, OSError):
            self._loop.call_later(_LOAD_RETRY_S, self._allow_load, ready)
            raise
        if ready is self._ready_manager.current and self._availability.error is None:
            ready.loaded(load, found)
            self.arm_all()

    def _allow_load(self, ready: ReadyState) -> None:
        """Try a failed load again: nothing else may set the timer for what it should have read."""
        ready.schedule.load_failed()
        if ready is self._ready_manager.current and self._availability.error is None:
            self.arm_for_delayed()
