"""The owner of a partition's ready state: rebuilds it, and lets large frames enter it.

A rebuild follows a change of the settings of lanes or tenants, or a group that needs messages that
the queues have dropped. It reads the log in a thread. During a rebuild no message is received,
matures or is changed singly.

Large frames with lanes, tenants or delays enter in slices, because each tenant costs a queue. Later
frames of the partition wait behind them, and what waits for a rebuild waits for them too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from goq import limits
from goq.broker.partition.ready_state.ready_state import ReadyState, first_unfinished
from goq.broker.partition_context import Availability, PartitionContext
from goq.broker.runtime.callbacks import ignore
from goq.broker.runtime.disposal import dispose
from goq.clock import TimeSlice
from goq.config.topic import TopicSettings
from goq.delivery.group.group import Group
from goq.delivery.partition_state import PartitionState
from goq.errors import TooManyRequests
from goq.frame.view import FrameView
from goq.storage.column_index.rows import rows_of
from goq.storage.log.log import Log

_ENTERED_AT_ONCE = 512  # messages or queues
_CATCH_UPS_MAX = 8  # of a rebuild, then the event loop reads the rest


class ReadyStateManager:
    """The owner of a partition's ready state; ``on_rebuilt`` is called after each rebuild."""

    def __init__(
        self,
        ready: ReadyState,
        messages: Log,
        state: PartitionState,
        context: PartitionContext,
        availability: Availability,
        settings: TopicSettings,
        *,
        on_rebuilt: Callable[[], None],
    ) -> None:
        self.current = ready
        self._messages = messages
        self._state = state
        self._context = context
        self._availability = availability
        self._settings = settings
        self._on_rebuilt = on_rebuilt
        self._rebuilding: asyncio.Task[None] | None = None
        self._large: deque[FrameView] = deque()
        self.entering: asyncio.Task[None] | None = None
        """Adds large frames; later ones wait behind them."""
        self.entering_bytes = 0

    @property
    def is_rebuilding(self) -> bool:
        """Whether a rebuild is under way, or large frames enter."""
        return self._rebuilding is not None or self.entering is not None

    def is_ready_for(self, group_name: str) -> bool:
        """Return whether a group can receive; if not, wait for :meth:`rebuilt`."""
        if self._availability.error is None:
            group = self._state.ensure_group(group_name)
            if group.scheduler is None and self.current.lacks(group):
                self._start()
            elif self._is_behind(group):
                self._enter_soon()
        return self._rebuilding is None and self.entering is None

    def _is_behind(self, group: Group) -> bool:
        """Return whether a group has more new queues to look at than one receive may."""
        return len(self.current.ready.slots) > limits.ROWS_ENTERED_AT_ONCE and not (
            self.current.scheduler_of(group).catch_up(_ENTERED_AT_ONCE)
        )

    async def rebuilt(self) -> None:
        """Wait for a rebuild under way; raise if it fails. Wait for frames that enter, too."""
        for task in (self._rebuilding, self.entering):
            if task is not None:
                await asyncio.shield(task)

    def enter_later(self, view: FrameView) -> None:
        """Add the messages of a committed frame in slices; ``view`` has its offset and time."""
        self._large.append(view)
        self.entering_bytes += view.header.frame_bytes
        self._enter_soon()

    def _enter_soon(self) -> None:
        if self.entering is None:
            self.entering = self._context.tasks.start(self._enter())

    async def _enter(self) -> None:
        """Add the large frames; a rebuild meanwhile reads them from the log instead."""
        time_slice = TimeSlice()
        try:
            while self._large or not self.current.ready.catch_up(_ENTERED_AT_ONCE):
                if self._large:
                    await self._enter_frame(self._large[0], time_slice)
                else:
                    await time_slice.next()
        except BaseException:
            self._forget_large()
            if self._availability.error is None:
                self._start()
            raise
        finally:
            self.entering = None
        self._on_rebuilt()

    async def _enter_frame(self, view: FrameView, time_slice: TimeSlice) -> None:
        ready, header = self.current, view.header
        loop, executor = asyncio.get_running_loop(), self._context.executor
        rows = await loop.run_in_executor(executor, rows_of, view)
        first, last = 0, 1 if rows is None else len(rows.offsets)
        while self._large and self._large[0] is view and ready is self.current and first < last:
            part = None
            if rows is not None:
                part = rows.select(slice(first, first + _ENTERED_AT_ONCE))
                part = part.select(part.offsets >= self._state.start_offset)
            if part is None or len(part.offsets):
                time_ms = header.append_time_us // 1000
                ready.published(header.base_offset, header.end_offset, part, time_ms)
            ready.ready.catch_up(_ENTERED_AT_ONCE)
            ready.release()
            first += _ENTERED_AT_ONCE
            if time_slice.is_over:
                await time_slice.next()
        if self._large and self._large[0] is view:
            self._large.popleft()
            self.entering_bytes -= header.frame_bytes

    def _forget_large(self) -> None:
        self._large.clear()
        self.entering_bytes = 0

    def check_changeable(self) -> None:
        """Raise ``TooManyRequests`` during a rebuild: single messages cannot be changed."""
        self._availability.check()
        if self.is_rebuilding:
            raise TooManyRequests("the partition is being rebuilt", retry_after_ms=100)

    def configure(self, settings: TopicSettings) -> None:
        """Apply changed settings; start a rebuild if they need one."""
        self._settings = settings
        if not self.current.follows(settings):
            self._start()

    async def close(self) -> None:
        """Wait for a rebuild under way; frames enter when the partition is opened again."""
        self._forget_large()
        under_way = [task for task in (self._rebuilding, self.entering) if task is not None]
        if under_way:
            await asyncio.wait(under_way)
        self._on_rebuilt = ignore

    def _start(self) -> None:
        if self._rebuilding is None:
            self._rebuilding = self._context.tasks.start(self._rebuild())

    async def _rebuild(self) -> None:
        messages, state = self._messages, self._state
        try:
            end = state.end_offset
            start = first_unfinished(messages, state)
            # Outstanding messages, of which there may be many, have these numbers of tenants.
            tenants = self.current.tenants.copy()
            build = partial(ReadyState.build, start=start, end=end, tenants=tenants)
            now_ms = self._context.clock.wall_ms()
            loop, executor = asyncio.get_running_loop(), self._context.executor
            new = await loop.run_in_executor(
                executor, build, messages, state, self._settings, now_ms
            )
            built = end
            for _ in range(_CATCH_UPS_MAX):  # with what was published meanwhile
                end = state.end_offset
                if end - built <= _ENTERED_AT_ONCE:
                    break
                await loop.run_in_executor(executor, new.extend, messages, built, end, now_ms)
                built = end
            new.extend(messages, built, state.end_offset, now_ms)
            held = [each for group in state.groups.values() for each in group.restart_reading()]
            old, self.current = self.current, new
            self._forget_large()
        finally:
            self._rebuilding = None
        self._on_rebuilt()
        if not self.current.follows(self._settings):
            self._start()
        await dispose([*held, *old.ready.containers()])
