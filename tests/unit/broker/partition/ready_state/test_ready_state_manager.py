"""The owner of a ready state: when it is made anew, how large frames enter, and who must wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from goq import limits
from goq.broker.partition.ready_state import ready_state_manager
from goq.broker.partition.ready_state.ready_state_manager import ReadyStateManager
from goq.broker.partition_context import Availability, PartitionId
from goq.config.topic import TopicSettings
from goq.delivery.events.event import Trimmed
from goq.delivery.partition_state import PartitionState
from goq.errors import PartitionOffline, TooManyRequests
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from tests.support.broker.context import context_on
from tests.support.storage.disk import InlineExecutor, SimulatedDisk

SETTINGS = TopicSettings()


class Case:
    """A manager whose ready state notes what enters; a rebuild is noted, and not made."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.rebuilds = 0
        self.state = PartitionState()
        self.state.extend_to(100)
        self.is_lacking, self.follows_settings, self.catches_up = False, True, True
        self.slots = range(1)
        self.ready = self
        self.fault: Exception | None = None
        self.availability = Availability(PartitionId("t", 0))
        given: Any = self
        self.manager = ReadyStateManager(
            given,
            given,
            self.state,
            context_on(SimulatedDisk(), executor=InlineExecutor()),
            self.availability,
            SETTINGS,
            on_rebuilt=lambda: self.steps.append("rebuilt"),
        )
        self.manager._rebuild = self._rebuild
        self.may_end = asyncio.Event()

    async def _rebuild(self) -> None:
        self.rebuilds += 1
        await self.may_end.wait()
        self.manager._rebuilding = None

    def lacks(self, _group: object) -> bool:
        return self.is_lacking

    def follows(self, _settings: TopicSettings) -> bool:
        return self.follows_settings

    def scheduler_of(self, _group: object) -> Any:
        return self

    def catch_up(self, _count: int) -> bool:
        return self.catches_up

    def published(self, start: int, end: int, rows: Any, time_ms: int) -> None:
        if self.fault is not None:
            raise self.fault
        offsets = None if rows is None else rows.offsets.tolist()
        self.steps.append((start, end, offsets, time_ms))

    def release(self) -> None:
        self.steps.append("released")


def frame(offset: int, count: int, *, is_plain: bool = False) -> FrameView:
    lanes = None if is_plain else [1] * count
    view = FrameView.parse(encode_frame(Columns([b"v"] * count, lanes=lanes)))
    header = view.header._replace(base_offset=offset, append_time_us=7_000_999)
    return FrameView(header, view.buffer)


def entered(case: Case) -> list[Any]:
    return [step for step in case.steps if isinstance(step, tuple)]


def test_large_frames_enter_in_slices_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_state_manager, "_ENTERED_AT_ONCE", 2)

    async def run() -> None:
        case = Case()
        one, plain = frame(10, 5), frame(15, 3, is_plain=True)
        for view in (one, plain):
            case.manager.enter_later(view)
        size_bytes = sum(view.header.frame_bytes for view in (one, plain))
        assert case.manager.entering_bytes == size_bytes
        assert case.manager.is_rebuilding
        await case.manager.rebuilt()
        assert entered(case) == [
            (10, 15, [10, 11], 7_000),
            (10, 15, [12, 13], 7_000),
            (10, 15, [14], 7_000),
            (15, 18, None, 7_000),
        ]
        assert case.steps[-1] == "rebuilt"
        assert (case.manager.entering_bytes, case.manager.is_rebuilding) == (0, False)
        assert case.rebuilds == 0

    asyncio.run(run())


def test_rows_that_retention_has_deleted_meanwhile_do_not_enter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ready_state_manager, "_ENTERED_AT_ONCE", 2)

    async def run() -> None:
        case = Case()
        case.state.apply(Trimmed(13), 0, 1)
        case.manager.enter_later(frame(10, 5))
        await case.manager.rebuilt()
        assert entered(case) == [(10, 15, [13], 7_000), (10, 15, [14], 7_000)]

    asyncio.run(run())


@pytest.mark.parametrize("is_online", [True, False])
def test_frames_that_cannot_enter_are_read_by_a_rebuild_of_a_partition_that_is_online(
    *, is_online: bool
) -> None:
    async def run() -> None:
        case = Case()
        case.fault = KeyError("a bug")
        case.manager.enter_later(frame(10, 2))
        if not is_online:
            case.availability.take_offline("is closed")
        entering = case.manager.entering
        assert entering is not None
        await asyncio.wait([entering])
        await asyncio.sleep(0)
        assert (case.rebuilds, case.manager.entering_bytes) == (int(is_online), 0)
        assert case.manager.entering is None
        assert "rebuilt" not in case.steps
        case.may_end.set()

    asyncio.run(run())


def test_a_group_waits_for_what_its_queues_lack_and_an_offline_partition_makes_nothing() -> None:
    async def run() -> None:
        case = Case()
        assert case.manager.is_ready_for("g")
        case.is_lacking = True
        case.availability.take_offline("is closed")
        assert case.manager.is_ready_for("g")
        case.availability.error = None
        assert not case.manager.is_ready_for("g")
        assert not case.manager.is_ready_for("g")
        await asyncio.sleep(0)
        assert case.rebuilds == 1
        waiting = asyncio.ensure_future(case.manager.rebuilt())
        await asyncio.sleep(0)
        assert not waiting.done()
        case.may_end.set()
        await waiting
        case.is_lacking = False
        assert case.manager.is_ready_for("g")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("queues", "catches_up", "is_ready"),
    [
        (limits.ROWS_ENTERED_AT_ONCE, False, True),
        (limits.ROWS_ENTERED_AT_ONCE + 1, True, True),
        (limits.ROWS_ENTERED_AT_ONCE + 1, False, False),
    ],
)
def test_a_group_with_more_new_queues_than_a_receive_may_look_at_waits(
    queues: int, catches_up: bool, is_ready: bool
) -> None:
    async def run() -> None:
        case = Case()
        case.slots, case.catches_up = range(queues), catches_up
        assert case.manager.is_ready_for("g") is is_ready
        assert (case.manager.entering is None) is is_ready
        case.catches_up = True
        await case.manager.rebuilt()
        assert case.manager.is_ready_for("g")
        assert case.rebuilds == 0

    asyncio.run(run())


def test_single_messages_are_not_changed_while_queues_are_made_anew_or_frames_enter() -> None:
    async def run() -> None:
        case = Case()
        case.manager.check_changeable()
        case.manager.enter_later(frame(10, 2))
        with pytest.raises(TooManyRequests) as refused:
            case.manager.check_changeable()
        assert refused.value.retry_after_ms == 100
        await case.manager.rebuilt()
        case.manager.check_changeable()
        case.manager.configure(SETTINGS)
        case.manager.check_changeable()
        case.follows_settings = False
        case.manager.configure(SETTINGS)
        with pytest.raises(TooManyRequests):
            case.manager.check_changeable()
        case.availability.take_offline("is closed")
        with pytest.raises(PartitionOffline):
            case.manager.check_changeable()
        case.may_end.set()

    asyncio.run(run())


def test_a_partition_that_closes_waits_for_a_rebuild_and_tells_nobody_of_it() -> None:
    async def run() -> None:
        case = Case()
        case.follows_settings = False
        case.manager.configure(SETTINGS)
        case.manager._large.append(frame(10, 2))
        case.manager.entering_bytes = 5
        closing = asyncio.ensure_future(case.manager.close())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not closing.done()
        assert (len(case.manager._large), case.manager.entering_bytes) == (0, 0)
        case.may_end.set()
        await closing
        case.manager._on_rebuilt()
        assert case.steps == []

    asyncio.run(run())
