"""The marks of a partition's messages: cancelled, moved to another lane, or rescheduled.

A mark is an event. It is applied to the state and to the ready queues at once, and is durable when
the future of the change completes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from goq.broker.events.writer import EventWriter
from goq.broker.log.pending_appends import Appended
from goq.broker.partition.group_view import MessageStatus
from goq.broker.partition.leases import Leases
from goq.broker.partition.ready_state.ready_state_manager import ReadyStateManager
from goq.broker.partition_context import PartitionCallbacks, PartitionContext
from goq.delivery.events.event import Cancelled, Moved, Range, Rescheduled
from goq.delivery.partition_state import PartitionState
from goq.storage.column_index.rows import ColumnRows


class MessageMarks:
    """Reads and changes the marks of one partition.

    A change raises an error if the ready state is being rebuilt, or if no event can be accepted.
    """

    def __init__(
        self,
        state: PartitionState,
        context: PartitionContext,
        callbacks: PartitionCallbacks,
        ready_manager: ReadyStateManager,
        writer: EventWriter,
        leases: Leases,
        *,
        on_rescheduled: Callable[[], None],
    ) -> None:
        self._state = state
        self._context = context
        self._callbacks = callbacks
        self._ready_manager = ready_manager
        self._writer = writer
        self._leases = leases
        self._on_rescheduled = on_rescheduled

    @property
    def count(self) -> int:
        """The number of marks: messages cancelled, moved or rescheduled."""
        return self._state.mark_count()

    def status(self, offset: int, row: ColumnRows | None) -> MessageStatus:
        """Return the status of a message; ``row`` holds its columns, see :meth:`Partition.row`."""
        state, ready = self._state, self._ready_manager.current
        lane, tenant, due_ms = ready.default_lane, 0, 0
        if row is not None:
            (lane,), (tenant,) = (column.tolist() for column in ready.places(row))
            due_ms = int(row.deliver_at_ms[0])
        if due_ms:
            due_ms = state.rescheduled.get(offset, due_ms)
        is_cancelled = offset in state.cancelled
        waits = bool(due_ms) and not state.maturity.has_matured(offset, due_ms)
        lane = state.moved.get(offset, lane)
        is_scheduled = waits and not is_cancelled
        return MessageStatus(offset, lane, tenant, due_ms, is_scheduled, is_cancelled, row)

    def moved_lane(self, offset: int) -> int | None:
        """Return the lane that a message was moved to, None if it was not moved."""
        return self._state.moved.get(offset)

    def is_rescheduled(self, offset: int) -> bool:
        """Whether a message's due time was changed."""
        return offset in self._state.rescheduled

    def is_cancelled(self, offset: int) -> bool:
        """Whether a message was cancelled."""
        return offset in self._state.cancelled

    def uncancelled(self, offsets: Iterable[int]) -> list[int]:
        """Return those of ``offsets`` whose message was not cancelled."""
        cancelled = self._state.cancelled
        return [offset for offset in offsets if offset not in cancelled]

    def uncancelled_count(self) -> int:
        """Return how many messages were not cancelled."""
        start, end = self._state.start_offset, self._state.end_offset
        return end - start - self._state.cancelled.count(start, end)

    def next_uncancelled(self, start: int) -> Range | None:
        """Return the next run of uncancelled messages from ``start`` on."""
        state = self._state
        start = max(start, state.start_offset)
        return next(iter(state.cancelled.missing(start, state.end_offset)), None)

    def cancel(self, offset: int, reason: str, due_ms: int | None) -> asyncio.Future[Appended]:
        """Cancel a message; ``due_ms`` is the due time in force of a delayed message."""
        self._check_changeable()
        done = self._writer.record([Cancelled([(offset, offset + 1)], reason)])
        if due_ms is not None:
            self._ready_manager.current.cancelled(offset, due_ms)
        self._callbacks.on_ready(None)  # messages that it blocked by its key may be ready
        return done

    def move(self, offset: int, lane: int, tenant: int | None) -> asyncio.Future[Appended]:
        """Move a message to another lane; ``tenant`` is None for a delayed message."""
        self._check_changeable()
        done = self._writer.record([Moved(offset, lane)])
        if tenant is not None:
            self._ready_manager.current.moved(offset, lane, tenant, self._context.clock.wall_ms())
            self._callbacks.on_ready(None)
        return done

    def reschedule(self, row: ColumnRows, due_ms: int, new_due_ms: int) -> asyncio.Future[Appended]:
        """Change the due time of a delayed message; ``due_ms`` is the one in force."""
        self._check_changeable()
        done = self._writer.record([Rescheduled(int(row.offsets[0]), new_due_ms)])
        self._ready_manager.current.rescheduled(row, due_ms, new_due_ms)
        self._on_rescheduled()
        return done

    def _check_changeable(self) -> None:
        self._ready_manager.check_changeable()
        self._leases.check_room()
