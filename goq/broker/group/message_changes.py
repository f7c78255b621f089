"""Changes to single waiting messages: cancel, move to another lane, reschedule.

Between the decision and its record there is no ``await``, so no concurrent change can invalidate
the decision. Each call returns when its change is durable.
"""

from __future__ import annotations

from collections.abc import Iterable

from goq import limits
from goq.broker.partition.group_view import MessageStatus
from goq.broker.partition.partition import Partition
from goq.delivery.events.transitions import MessageState
from goq.errors import Conflict, TooManyRequests

_FINISHED = (MessageState.DONE, MessageState.DEAD)
_MOVABLE = (MessageState.READY, MessageState.RETRY, MessageState.SCHEDULED, MessageState.BLOCKED)


async def message_status(partition: Partition, offset: int) -> MessageStatus:
    """Return the current status of a message; raise ``MessageNotFound``."""
    partition.check_exists(offset)
    row = await partition.row(offset)
    partition.check_exists(offset)
    return partition.marks.status(offset, row)


class MessageChanges:
    """Changes to one message; ``groups`` are all groups of its topic."""

    def __init__(self, partition: Partition, offset: int, groups: Iterable[str]) -> None:
        self._partition = partition
        self._offset = offset
        self._groups = groups

    async def cancel(self, reason: str) -> None:
        """Cancel the message: groups that have not received it will not receive it.

        The consumer of a leased message can still settle it. A second cancel is allowed.
        Raises ``MessageNotFound``; ``Conflict`` when every group has finished it;
        ``TooManyRequests`` at the bound on marks.
        """
        status = await self._status()
        if not status.is_cancelled:
            states = self._states(status)
            if states and all(state in _FINISHED for state in states):
                raise Conflict(f"{self._name} is done: every group has finished it", field="id")
            self._check_room()
        due_ms = status.due_ms if status.is_scheduled else None
        await self._partition.marks.cancel(self._offset, reason, due_ms)

    async def move(self, lane: int) -> None:
        """Move the message to another lane, in every group in which it waits.

        Raises ``MessageNotFound``; ``Conflict`` when it waits in no group; ``TooManyRequests`` at
        the bound on marks.
        """
        status = await self._status()
        self._check_not_cancelled(status)
        states = self._states(status)
        if states and not any(state in _MOVABLE for state in states):
            raise Conflict(
                f"{self._name} does not wait: each group has it in hand or has finished it",
                field="priority",
            )
        is_moved = self._partition.marks.moved_lane(self._offset) is not None
        if lane == status.lane and not is_moved:
            return
        if not is_moved:
            self._check_room()
        tenant = None if status.is_scheduled else status.tenant
        await self._partition.marks.move(self._offset, lane, tenant)

    async def reschedule(self, due_ms: int) -> None:
        """Change the due time of the message; a time in the past means now.

        Raises ``MessageNotFound``; ``Conflict`` when it is not scheduled; ``TooManyRequests`` at
        the bound on marks.
        """
        status = await self._status()
        self._check_not_cancelled(status)
        if not status.is_scheduled or status.row is None:
            was = "is due already" if status.due_ms else "was not scheduled"
            raise Conflict(
                f"{self._name} {was}: only a message that waits for its time can get another",
                field="deliver_at",
            )
        if not self._partition.marks.is_rescheduled(self._offset):
            self._check_room()
        await self._partition.marks.reschedule(status.row, status.due_ms, max(1, due_ms))

    @property
    def _name(self) -> str:
        return f"{self._partition.identity}:{self._offset}"

    async def _status(self) -> MessageStatus:
        await self._partition.rebuilt()  # no change is allowed during a rebuild
        return await message_status(self._partition, self._offset)

    def _states(self, status: MessageStatus) -> list[MessageState]:
        names = {*self._groups, *self._partition.group_names}
        return [self._partition.group(name).message_status(status, 0).state for name in names]

    def _check_not_cancelled(self, status: MessageStatus) -> None:
        if status.is_cancelled:
            raise Conflict(f"{self._name} was cancelled", field="id")

    def _check_room(self) -> None:
        if self._partition.marks.count >= limits.MARKS_PER_PARTITION_MAX:
            raise TooManyRequests(
                f"a partition keeps at most {limits.MARKS_PER_PARTITION_MAX} messages cancelled,"
                " moved or rescheduled; they are forgotten when retention deletes the messages",
                field="id",
            )
