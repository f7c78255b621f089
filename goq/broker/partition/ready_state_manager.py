"""Keeps the ready state of one partition, and rebuilds it where it no longer fits.

The ready state is derived: ready queues and delayed messages, from the columns of the messages and
the delivery state. It is rebuilt when the settings change lanes or tenants, and when a group needs
messages that the queues have let go of. The rebuild reads the log in a thread. Until it ends, no
message is received or matures, and nothing changes a single message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from goq.broker.partition.loader import LoadedPartition
from goq.broker.partition.ready_state import ReadyState, first_unfinished
from goq.broker.partition_context import Availability, PartitionContext
from goq.config.topic import TopicSettings
from goq.errors import TooManyRequests


class ReadyStateManager:
    """The current ready state of a partition; ``on_rebuilt`` is called when another replaced it."""

    def __init__(
        self,
        loaded: LoadedPartition,
        context: PartitionContext,
        availability: Availability,
        settings: TopicSettings,
        *,
        on_rebuilt: Callable[[], None],
    ) -> None:
        self.current = loaded.ready
        self._messages = loaded.messages
        self._state = loaded.state
        self._context = context
        self._availability = availability
        self._settings = settings
        self._on_rebuilt = on_rebuilt
        self._rebuilding: asyncio.Task[None] | None = None

    @property
    def is_rebuilding(self) -> bool:
        """Whether a rebuild is under way."""
        return self._rebuilding is not None

    def is_ready_for(self, group_name: str) -> bool:
        """Whether a group can receive; if not, wait for :meth:`rebuilt`."""
        if self._availability.error is None:
            group = self._state.ensure_group(group_name)
            if self.current.lacks(group):
                self._start()
        return self._rebuilding is None

    async def rebuilt(self) -> None:
        """Return when the ready state fits; raise why it cannot be rebuilt."""
        if self._rebuilding is not None:
            await asyncio.shield(self._rebuilding)

    def check_changeable(self) -> None:
        """Raise ``TooManyRequests`` while no single message may be changed."""
        self._availability.check()
        if self._rebuilding is not None:
            raise TooManyRequests("the partition is being rebuilt", retry_after_ms=100)

    def configure(self, settings: TopicSettings) -> None:
        """Take over changed settings, with a rebuild where they ask for one."""
        self._settings = settings
        if not self.current.follows(settings):
            self._start()

    async def close(self) -> None:
        """Wait for a rebuild that is under way."""
        if self._rebuilding is not None:
            await asyncio.wait([self._rebuilding])

    def _start(self) -> None:
        if self._rebuilding is None:
            self._rebuilding = self._context.tasks.start(self._rebuild())

    async def _rebuild(self) -> None:
        messages, state = self._messages, self._state
        try:
            end = state.end_offset
            start = first_unfinished(messages, state)
            build = partial(ReadyState.build, start=start, end=end)
            now_ms = self._context.clock.wall_ms()
            new = await asyncio.get_running_loop().run_in_executor(
                self._context.executor, build, messages, state, self._settings, now_ms
            )
            new.extend(messages, end, state.end_offset, now_ms)
            for group in state.groups.values():
                group.restart_reading()
                group.restore_attributes(new.renumbered(group.attributes, self.current))
            self.current = new
        finally:
            self._rebuilding = None
        self._on_rebuilt()
        if not self.current.follows(self._settings):
            self._start()
