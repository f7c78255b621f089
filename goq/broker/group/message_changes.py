"""Changing single messages that wait: cancel one, move it to another lane, give it another time.

What was read of a message before stays true, and between the decision and its record nothing is
awaited; so a decision holds against all that happens meanwhile. Each call returns when what it
did is durable.
"""

from __future__ import annotations

from collections.abc import Iterable

from goq import limits
from goq.broker.group.message_status import (
    GroupMessageStatus,
    MessageStatus,
    group_message_status,
    message_status,
)
from goq.broker.partition.partition import Partition
from goq.delivery.events.transitions import MessageState
from goq.errors import Conflict, TooManyRequests

_FINISHED = (MessageState.DONE, MessageState.DEAD)
_MOVABLE = (MessageState.READY, MessageState.RETRY, MessageState.SCHEDULED, MessageState.BLOCKED)


class MessageChanges:
    """Changes to one message, of which ``groups`` are all that take from its topic."""

    def __init__(self, partition: Partition, offset: int, groups: Iterable[str]) -> None:
        self._partition = partition
        self._offset = offset
        self._groups = groups

    async def cancel(self, reason: str) -> None:
        """Deliver the message to no group that has not got it; who holds it may still settle it.

        To cancel what is cancelled is no error. Raises ``MessageNotFound``; ``Conflict`` when
        every group has finished it; ``TooManyRequests`` at the bound on marks.
        """
        standing = await self._standing()
        if not standing.is_cancelled:
            states = [each.state for each in self._standings(standing)]
            if states and all(state in _FINISHED for state in states):
                raise Conflict(f"{self._name} is done: every group has finished it", field="id")
            self._check_room()
        due_ms = standing.due_ms if standing.is_scheduled else None
        await self._partition.cancel(self._offset, reason, due_ms)

    async def move(self, lane: int) -> None:
        """Let the message go on in another lane, in every group for which it waits.

        Raises ``MessageNotFound``; ``Conflict`` when it waits for none; ``TooManyRequests``.
        """
        standing = await self._standing()
        self._check_not_cancelled(standing)
        states = [each.state for each in self._standings(standing)]
        if states and not any(state in _MOVABLE for state in states):
            raise Conflict(
                f"{self._name} does not wait: each group has it in hand or has finished it",
                field="priority",
            )
        state = self._partition.state
        if lane == standing.lane and self._offset not in state.moved:
            return
        if self._offset not in state.moved:
            self._check_room()
        tenant = None if standing.is_scheduled else standing.tenant
        await self._partition.move(self._offset, lane, tenant)

    async def reschedule(self, due_ms: int) -> None:
        """Let the message, which waits for its time, be due at another; a past one is now.

        Raises ``MessageNotFound``; ``Conflict`` when it does not wait for its time;
        ``TooManyRequests``.
        """
        standing = await self._standing()
        self._check_not_cancelled(standing)
        if not standing.is_scheduled or standing.row is None:
            was = "is due already" if standing.due_ms else "was not scheduled"
            raise Conflict(
                f"{self._name} {was}: only a message that waits for its time can get another",
                field="deliver_at",
            )
        if self._offset not in self._partition.state.rescheduled:
            self._check_room()
        await self._partition.reschedule(standing.row, standing.due_ms, max(1, due_ms))

    @property
    def _name(self) -> str:
        topic, number = self._partition.identity
        return f"{topic}:{number}:{self._offset}"

    async def _standing(self) -> MessageStatus:
        await self._partition.rebuilt()  # until then nothing may be changed
        return await message_status(self._partition, self._offset)

    def _standings(self, standing: MessageStatus) -> list[GroupMessageStatus]:
        names = {*self._groups, *self._partition.state.groups}
        return [group_message_status(self._partition, name, standing, 0) for name in names]

    def _check_not_cancelled(self, standing: MessageStatus) -> None:
        if standing.is_cancelled:
            raise Conflict(f"{self._name} was cancelled", field="id")

    def _check_room(self) -> None:
        if self._partition.state.mark_count() >= limits.MARKS_PER_PARTITION_MAX:
            raise TooManyRequests(
                f"a partition keeps at most {limits.MARKS_PER_PARTITION_MAX} messages cancelled,"
                " moved or rescheduled; they are forgotten when retention deletes the messages",
                field="id",
            )
