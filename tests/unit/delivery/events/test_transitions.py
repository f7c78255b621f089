"""The table of transitions, row by row, against what applying the events does."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from goq.broker.partition.group_view import GroupView, MessageStatus
from goq.broker.partition.partition import Partition
from goq.delivery.events.event import (
    SNAPSHOT_PARTS,
    Acked,
    AnyEvent,
    Cancelled,
    Cause,
    ClockChanged,
    Compacted,
    CopyQueued,
    CopyStored,
    Corrupted,
    Dropped,
    Event,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Matured,
    Moved,
    Nacked,
    Named,
    Repaired,
    Rescheduled,
    Reset,
    Skipped,
    SnapshotEnded,
    SnapshotStarted,
    Trimmed,
    Truncated,
    token_of,
)
from goq.delivery.events.transitions import TRANSITIONS, MessageState, Transition
from goq.delivery.group.key_locks import HeldMessage, MessageAttributes
from goq.delivery.partition_state import PartitionState
from goq.errors import MessageNotFound

NOW_MS, DUE_MS, LANE = 1000, 5000, 1


class Scene:
    """A partition of two messages, and what is known of the first, for the group ``g``."""

    def __init__(self) -> None:
        self.state = PartitionState()
        self.state.extend_to(2)
        self.group = self.state.ensure_group("g")
        self.due_ms = self.expires_ms = self.sequence = self.token = 0
        self.now_ms = NOW_MS

    def apply(self, event: Event) -> int:
        self.sequence += 1
        self.state.apply(event, self.sequence, 1)
        return token_of(1, self.sequence)

    def seen(self) -> MessageState | None:
        partition: Any = SimpleNamespace(_state=self.state, identity=("topic", 0))
        try:
            Partition.check_exists(partition, 0)
        except MessageNotFound:
            return None
        waits = bool(self.due_ms) and not self.state.maturity.has_matured(
            0, self.state.rescheduled.get(0, self.due_ms)
        )
        is_cancelled = 0 in self.state.cancelled
        lane = self.state.moved.get(0, LANE)
        standing = MessageStatus(
            0, lane, 0, self.due_ms, waits and not is_cancelled, is_cancelled, None
        )
        found = GroupView(self.state, "g").message_status(
            standing, self.now_ms, expires_ms=self.expires_ms
        )
        return found.state


def departing(group: str, token: int) -> CopyQueued:
    return CopyQueued(group, token, [(0, 1, 1)], Cause.REJECTED, "", NOW_MS, "topic.dlq", 0, 7)


def bring_to(state: MessageState) -> Scene:
    scene = Scene()
    if state in (MessageState.LEASED, MessageState.RETRY, MessageState.DEAD, MessageState.DONE):
        scene.token = scene.apply(Leased("g", "c", DUE_MS, [(0, 1, 1)]))
    if state is MessageState.RETRY:
        scene.apply(Nacked("g", scene.token, [(0, 1, 1)], DUE_MS))
    elif state is MessageState.DEAD:
        scene.token = scene.apply(departing("g", scene.token))
    elif state is MessageState.DONE:
        scene.apply(Acked("g", scene.token, [(0, 1)]))
    elif state is MessageState.SCHEDULED:
        scene.due_ms = DUE_MS
    elif state is MessageState.EXPIRED:
        scene.expires_ms = NOW_MS
    elif state is MessageState.CANCELLED:
        scene.apply(Cancelled([(0, 1)]))
    elif state is MessageState.BLOCKED:
        scene.group.locks.add_leases([7])
        scene.group.locks.hold(HeldMessage(0, MessageAttributes(7, LANE, 0), 0))
    assert scene.seen() is state
    return scene


def departing_as(row: Transition, token: int) -> CopyQueued:
    return departing("" if row.target is MessageState.CANCELLED else "g", token)


EVENTS: dict[type[Event], Callable[[Transition, int], Event]] = {
    Leased: lambda _row, _token: Leased("g", "c", DUE_MS, [(0, 1, 1)]),
    Acked: lambda _row, token: Acked("g", token, [(0, 1)]),
    Nacked: lambda _row, token: Nacked("g", token, [(0, 1, 1)], DUE_MS),
    Expired: lambda _row, token: Expired("g", token, [(0, 1, 1)], DUE_MS),
    Extended: lambda _row, token: Extended("g", token, [(0, 1)], DUE_MS),
    Dropped: lambda _row, token: Dropped("g", token, [(0, 1, 1)], Cause.NACKED),
    CopyQueued: departing_as,
    CopyStored: lambda _row, token: CopyStored(token, 0),
    Skipped: lambda _row, _token: Skipped("g", [(0, 1)], Cause.TTL),
    Cancelled: lambda _row, _token: Cancelled([(0, 1)]),
    Moved: lambda _row, _token: Moved(0, 0),
    Rescheduled: lambda _row, _token: Rescheduled(0, DUE_MS + 1),
    Matured: lambda _row, _token: Matured(DUE_MS, 2),
    Reset: lambda row, _token: Reset("g", 0 if row.target is MessageState.READY else 1),
    GroupDeleted: lambda _row, _token: GroupDeleted("g"),
    Corrupted: lambda _row, _token: Corrupted(0, 1, "crc"),
    Repaired: lambda _row, _token: Repaired(0, 1),
    Compacted: lambda _row, _token: Compacted(0, 1),
    Trimmed: lambda _row, _token: Trimmed(1),
    Truncated: lambda _row, _token: Truncated(0),
}

CASES = [
    pytest.param(row, source, id=f"{row.event.__name__}-{source}-{row.target}")
    for row in TRANSITIONS
    if row.event is not None
    for source in row.sources
]


@pytest.mark.parametrize(("row", "source"), CASES)
def test_an_event_makes_of_a_message_what_the_table_says(
    row: Transition, source: MessageState
) -> None:
    scene = bring_to(source)
    if source is MessageState.LEASED and row.target is MessageState.CANCELLED:
        scene.apply(Cancelled([(0, 1)]))
        assert scene.seen() is MessageState.LEASED
    assert row.event is not None
    scene.apply(EVENTS[row.event](row, scene.token))
    if row.event is Truncated:
        scene.state.extend_to(0)  # the log ends there, as it does when the partition is opened
    assert scene.seen() is row.target


def test_the_table_speaks_of_every_event_that_is_about_messages() -> None:
    told = {row.event for row in TRANSITIONS} - {None}
    others = {*SNAPSHOT_PARTS, SnapshotStarted, SnapshotEnded, Named, ClockChanged}
    assert told == {*get_args(AnyEvent)} - others


def test_what_the_table_says_of_no_event_follows_from_the_message_the_keys_and_the_time() -> None:
    def published(due_ms: int) -> MessageState | None:
        scene = Scene()
        scene.due_ms = due_ms
        return scene.seen()

    def later(source: MessageState, expires_ms: int = 0) -> MessageState | None:
        scene = bring_to(source)
        scene.now_ms, scene.expires_ms = DUE_MS, expires_ms
        return scene.seen()

    def met(source: MessageState) -> MessageState | None:
        scene = bring_to(source)
        scene.group.locks.add_leases([7])
        scene.group.locks.hold(HeldMessage(0, MessageAttributes(7, LANE, 0), 0))
        return scene.seen()

    assert {(row.sources, row.target) for row in TRANSITIONS if row.event is None} == {
        ((), published(0)),
        ((), published(DUE_MS)),
        ((MessageState.RETRY,), later(MessageState.RETRY)),
        ((MessageState.READY,), met(MessageState.READY)),
        (
            (MessageState.READY, MessageState.BLOCKED),
            later(MessageState.READY, expires_ms=NOW_MS + 1),
        ),
    }
    assert later(MessageState.BLOCKED, expires_ms=NOW_MS + 1) is MessageState.EXPIRED


def test_every_state_can_be_come_to_and_left_but_those_that_are_an_end() -> None:
    assert {row.target for row in TRANSITIONS} == {*MessageState, None}
    for state in MessageState:
        ways_out = {row.target for row in TRANSITIONS if state in row.sources}
        assert None in ways_out


def test_a_message_that_was_held_back_behind_its_key_and_moved_away_is_not_blocked() -> None:
    scene = bring_to(MessageState.BLOCKED)
    scene.apply(Moved(0, 0))
    assert scene.seen() is MessageState.READY
