"""Where one message stands: in its partition, and for each group."""

from __future__ import annotations

from typing import NamedTuple

from goq.broker.partition.partition import Partition
from goq.delivery.events.transitions import MessageState
from goq.delivery.group.group import Group
from goq.errors import MessageNotFound
from goq.storage.column_index.rows import ColumnRows


class MessageStatus(NamedTuple):
    """What holds for a message in its partition, by its frame and by what was changed since.

    ``due_ms`` is when it is or was due, 0 if it was never delayed. ``row`` is what its frame
    says, None for one in a plain frame.
    """

    offset: int
    lane: int
    tenant: int
    due_ms: int
    is_scheduled: bool
    is_cancelled: bool
    row: ColumnRows | None


class GroupMessageStatus(NamedTuple):
    """What a message is for a group; the time is a lease's end, or when a retry is due."""

    state: MessageState
    attempt: int = 0
    consumer: str | None = None
    time_ms: int | None = None


def check_exists(partition: Partition, offset: int) -> None:
    """Raise ``MessageNotFound`` for a message that is not there yet, or no longer."""
    topic, number = partition.identity
    name = f"{topic}:{number}:{offset}"
    if offset >= partition.state.end_offset:
        raise MessageNotFound(f"{name} does not exist yet", field="id")
    if offset < partition.state.start_offset:
        raise MessageNotFound(
            f"{name} is gone: retention keeps {topic}:{number} from offset"
            f" {partition.state.start_offset} on",
            field="id",
        )


async def message_status(partition: Partition, offset: int) -> MessageStatus:
    """Return where a message stands now; raise ``MessageNotFound`` where there is none."""
    check_exists(partition, offset)
    row = await partition.row(offset)
    check_exists(partition, offset)
    state, dispatch = partition.state, partition.dispatch
    lane, tenant, due_ms = dispatch.default_lane, 0, 0
    if row is not None:
        (lane,), (tenant,) = (column.tolist() for column in dispatch.places(row))
        due_ms = int(row.deliver_at_ms[0])
    if due_ms:
        due_ms = state.rescheduled.get(offset, due_ms)
    is_cancelled = offset in state.cancelled
    waits = bool(due_ms) and not state.frontier.has_matured(offset, due_ms)
    lane = state.moved.get(offset, lane)
    return MessageStatus(
        offset, lane, tenant, due_ms, waits and not is_cancelled, is_cancelled, row
    )


def group_message_status(
    partition: Partition, name: str, standing: MessageStatus, now_ms: int, *, expires_ms: int = 0
) -> GroupMessageStatus:
    """Return what a message is for a group; ``expires_ms`` 0 for never."""
    group, offset = partition.state.groups.get(name), standing.offset
    if group is not None and (held := _outstanding(group, offset, now_ms)) is not None:
        return held
    if standing.is_cancelled:
        return GroupMessageStatus(MessageState.CANCELLED)
    if group is not None and offset in group.taken:
        leaving = partition.state.outbox.departures.values()
        is_leaving = any(
            each.event.group == name and start <= offset < end
            for each in leaving
            for start, end, _ in each.event.spans
        )
        return GroupMessageStatus(MessageState.DEAD if is_leaving else MessageState.DONE)
    if standing.is_scheduled:
        return GroupMessageStatus(MessageState.SCHEDULED, time_ms=standing.due_ms)
    if expires_ms and expires_ms <= now_ms:
        return GroupMessageStatus(MessageState.EXPIRED)
    if group is not None and any(
        held.offset == offset and held.attributes.lane == standing.lane
        for held in group.locks.held()
    ):
        return GroupMessageStatus(MessageState.BLOCKED)
    return GroupMessageStatus(MessageState.READY)


def _outstanding(group: Group, offset: int, now_ms: int) -> GroupMessageStatus | None:
    for lease in group.leases.values():
        part = lease.parts.at(offset)
        if part is not None:
            return GroupMessageStatus(
                MessageState.LEASED, part.attempt, lease.consumer, part.time_ms
            )
    for part in group.retries.within(offset, offset + 1):
        state = MessageState.READY if part.time_ms <= now_ms else MessageState.RETRY
        return GroupMessageStatus(state, part.attempt, time_ms=part.time_ms)
    return None
