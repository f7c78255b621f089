"""The writer of events: what waits for the next write, what is written by itself, and snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from goq import limits
from goq.broker.events import writer as event_writer
from goq.broker.events.group_changes import GroupChanges
from goq.broker.events.writer import EventWriter
from goq.broker.partition_context import PartitionId
from goq.broker.runtime.metrics import TopicStats
from goq.delivery.events.event import (
    AnyEvent,
    Cancelled,
    GroupDeleted,
    Leased,
    SnapshotStarted,
)
from goq.delivery.events.frame_codec import decode_event_frame
from goq.delivery.partition_state import PartitionState
from goq.delivery.snapshot import SnapshotLimits
from goq.errors import GoqError, NotLeader
from goq.storage.log.log import Log
from tests.support.broker.context import context_on
from tests.support.broker.harness import run
from tests.support.delivery.model import canonical
from tests.support.storage.disk import SimulatedDisk

LEASED = Leased("g", "c", 5_000, [(90, 91, 1)])


def cancelled(offset: int) -> Cancelled:
    return Cancelled([(offset, offset + 1)])


class Case:
    """A writer of events of 100 messages."""

    def __init__(self) -> None:
        disk = SimulatedDisk()
        self.log = Log.open(Path("/t/0/events"), disk)
        self.state = PartitionState()
        self.state.extend_to(100)
        self.changes = GroupChanges(TopicStats())
        self.recorded: list[AnyEvent] = []
        self.failures: list[GoqError] = []
        self.sealed: list[tuple[str, int]] = []
        context = context_on(
            disk,
            epoch=7,
            on_seal=lambda _identity, log, segment: self.sealed.append((log, segment.base_offset)),
            snapshot_limits=SnapshotLimits(entry_cost_bytes=1000),
        )
        self.writer = EventWriter(
            PartitionId("t", 0),
            self.log,
            self.state,
            context,
            messages=Log.open(Path("/t/0/messages"), disk),
            rebuilds_from=0,
            quorum=None,
            changes=self.changes,
            on_event=self.recorded.append,
            on_failure=self.failures.append,
        )

    def frames(self) -> list[list[AnyEvent]]:
        """Return the events of each frame on the disk."""
        if not self.log.end_offset:
            return []
        found = self.log.reader.read(0, self.log.end_offset).frames
        return [[each.event for each in decode_event_frame(view)] for view in found]

    async def written(self) -> list[list[AnyEvent]]:
        await self.writer.wait_for_commit()
        return self.frames()


def on_case(test: Callable[[Case], Awaitable[None]]) -> None:
    async def main() -> None:
        case = Case()
        await test(case)
        assert case.failures == []

    run(main())


def test_an_event_for_later_counts_at_once_and_is_written_before_the_next_one() -> None:
    async def steps(case: Case) -> None:
        writer = case.writer
        case.changes.watch()
        case.changes.take()
        writer.record_later(cancelled(1))
        early = writer.next_token
        writer.record_later(LEASED)
        assert list(case.state.group("g").leases) == [early]
        assert case.state.cancelled.count(0, 100) == 1
        assert case.changes.take() is None  # a cancelled message concerns all groups
        assert await case.written() == []
        token = writer.next_token
        await writer.record([LEASED, cancelled(3)])
        assert await case.written() == [[cancelled(1), LEASED, LEASED, cancelled(3)]]
        assert token in case.state.group("g").leases
        assert case.changes.take() is None
        assert case.recorded == [LEASED, cancelled(3)]
        assert case.state.cancelled.count(0, 100) == 2

    on_case(steps)


def test_events_for_later_are_written_once_they_are_many() -> None:
    async def steps(case: Case) -> None:
        events = [cancelled(offset) for offset in range(event_writer._DEFERRED_MAX)]
        for event in events[:-1]:
            case.writer.record_later(event)
        assert await case.written() == []
        case.writer.record_later(events[-1])
        assert await case.written() == [events]

    on_case(steps)


def test_an_event_for_later_that_a_request_waits_for_is_written_at_once() -> None:
    async def steps(case: Case) -> None:
        changed = asyncio.Event()
        with case.writer.live_index.watch(5, changed):
            changed.clear()
            case.writer.record_later(cancelled(4))
            assert await case.written() == []
            case.writer.record_later(cancelled(5))
            assert not changed.is_set()
            assert await case.written() == [[cancelled(4), cancelled(5)]]
            await asyncio.wait_for(changed.wait(), 5)

    on_case(steps)


def test_a_request_wakes_for_an_event_whose_own_request_was_cancelled_before_it_was_stored() -> (
    None
):
    async def steps(case: Case) -> None:
        changed = asyncio.Event()
        before = case.writer.record([cancelled(5)])
        with case.writer.live_index.watch(5, changed):
            before.cancel()
            await asyncio.sleep(0)
            assert not changed.is_set()
            await asyncio.wait_for(changed.wait(), 5)
            assert case.log.end_offset == 1
            changed.clear()
            case.writer.record([cancelled(5)]).cancel()
            await asyncio.sleep(0)
            assert not changed.is_set()
            await asyncio.wait_for(changed.wait(), 5)
            assert case.log.end_offset == 2

    on_case(steps)


def test_what_is_for_later_can_be_waited_for() -> None:
    async def steps(case: Case) -> None:
        await case.writer.write_deferred()
        assert case.frames() == []
        case.writer.record_later(cancelled(1))
        await case.writer.write_deferred()
        assert case.frames() == [[cancelled(1)]]
        await case.writer.write_deferred()
        assert len(case.frames()) == 1

    on_case(steps)


def test_the_last_snapshot_is_written_if_anything_has_changed() -> None:
    async def steps(case: Case) -> None:
        writer = case.writer
        changes: list[Callable[[], object]] = [
            lambda: writer.record_later(cancelled(1)),
            lambda: writer.record([cancelled(2)]),
            lambda: writer.count_published(1),
        ]
        for change in changes:
            before = len(await case.written())
            writer.record_last_snapshot()
            assert len(await case.written()) == before
            change()
            writer.record_last_snapshot()
            assert len(await case.written()) > before
        restored = PartitionState()
        for event in case.frames()[-1]:
            restored.apply(event, 0, 0)
        assert restored.cancelled.count(0, 100) == 2
        assert len(case.log.segments) == 1

    on_case(steps)


def test_a_snapshot_is_due_after_many_bytes_and_later_the_larger_it_is() -> None:
    async def steps(case: Case) -> None:
        writer, most = case.writer, limits.CHECKPOINT_INTERVAL_BYTES
        assert not writer.count_published(most)
        assert writer.count_published(1)
        writer.record([LEASED])
        writer.record_snapshot()
        assert not writer.count_published(most)
        assert not writer.count_published(1)
        weight = next(n for n in range(1, 100) if writer.count_published(1000))
        assert weight < 10

    on_case(steps)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_snapshot_is_written_after_many_events_and_begins_a_segment_if_that_is_full(
    is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 4)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MAX", 6)
    if is_full:
        monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 1)

    async def steps(case: Case) -> None:
        due = 4 if is_full else 6
        for offset in range(due - 1):
            await case.writer.record([cancelled(offset)])
        assert len(await case.written()) == due - 1
        await case.writer.record([cancelled(due)])
        assert len(await case.written()) == due + 1
        assert [s.base_offset for s in case.log.segments] == ([0, due] if is_full else [0])
        assert case.writer.rebuilds_from == (due if is_full else 0)
        assert case.sealed == ([("events", 0)] if is_full else [])
        assert list(case.writer.live_index.live_blocks()) == ([due] if is_full else [0])
        for offset in range(due - 1):
            await case.writer.record([cancelled(offset)])
        assert len(await case.written()) == due + 1 + due - 1

    on_case(steps)


GROUPS = event_writer.GROUPS_AT_ONCE + 1


async def fill(case: Case, groups: int) -> None:
    """Record a lease of each group, and write them all: a snapshot is begun next."""
    for number in range(groups):
        case.writer.record([Leased(f"g{number}", "c", 5_000, [(90, 91, 1)])])
    await case.written()


def restored(frames: list[list[AnyEvent]]) -> PartitionState:
    """Return the state that the snapshot in the last frames leads to."""
    state = PartitionState()
    state.extend_to(100)
    events = [event for frame in frames for event in frame]
    begins = max(n for n, event in enumerate(events) if isinstance(event, SnapshotStarted))
    for event in events[begins:]:
        state.apply(event, 0, 0)
    return state


def test_a_snapshot_of_many_groups_leaves_turns_to_others_and_has_what_they_change() -> None:
    async def steps(case: Case) -> None:
        await fill(case, GROUPS)
        case.writer.record_snapshot()
        assert not any(isinstance(e, SnapshotStarted) for f in await case.written() for e in f)
        case.writer.record([GroupDeleted("g0"), Leased("new", "c", 5_000, [(1, 2, 1)])])
        case.writer.record_later(cancelled(3))
        case.writer.record_snapshot()  # is due still, and begins no second one
        while case.writer._snapshot is not None:
            await asyncio.sleep(0)
        frames = await case.written()
        assert sum(isinstance(e, SnapshotStarted) for f in frames for e in f) == 1
        assert canonical(restored(frames)) == canonical(case.state)
        assert "g0" not in case.state.groups
        assert "new" in case.state.groups
        case.writer.record_snapshot()
        while case.writer._snapshot is not None:
            await asyncio.sleep(0)
        assert canonical(restored(await case.written())) == canonical(case.state)

    on_case(steps)


def test_a_snapshot_of_many_groups_begins_a_segment_if_that_is_full_at_its_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def steps(case: Case) -> None:
        await fill(case, GROUPS)
        case.writer.record_snapshot()
        monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 1)
        while case.writer._snapshot is not None:
            await asyncio.sleep(0)
        frames = await case.written()
        assert [segment.base_offset for segment in case.log.segments] == [0, GROUPS]
        assert case.writer.rebuilds_from == GROUPS
        assert canonical(restored(frames)) == canonical(case.state)

    on_case(steps)


def test_the_last_snapshot_takes_the_place_of_one_under_way() -> None:
    async def steps(case: Case) -> None:
        await fill(case, GROUPS)
        case.writer.record_snapshot()
        case.writer.record_later(cancelled(3))
        case.writer.record_last_snapshot()
        for _ in range(5):
            await asyncio.sleep(0)
        frames = await case.written()
        assert sum(isinstance(e, SnapshotStarted) for f in frames for e in f) == 1
        assert canonical(restored(frames)) == canonical(case.state)

    on_case(steps)


@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_log_that_ends_while_a_snapshot_is_under_way_gets_none(is_aborted: bool) -> None:
    async def steps(case: Case) -> None:
        failures: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: failures.append(told))
        await fill(case, GROUPS)
        case.writer.record_snapshot()
        if is_aborted:
            case.writer.commit.abort(NotLeader("another node leads"))
        else:
            await case.writer.commit.close()
        for _ in range(5):
            await asyncio.sleep(0)
        assert failures == []
        assert not any(isinstance(e, SnapshotStarted) for f in case.frames() for e in f)

    on_case(steps)
