"""What a partition takes, when it names a producer, and what follows from a commit or a failure."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from goq import limits
from goq.broker.log.pending_appends import Appended, WrittenFrame
from goq.broker.partition.appender import Appender
from goq.broker.partition_context import Availability, PartitionId
from goq.broker.runtime.metrics import TopicStats
from goq.delivery.events.event import Named
from goq.delivery.partition_state import PartitionState
from goq.errors import GoqError, PartitionOffline, StorageFailed, TooManyRequests
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.view import FrameView
from goq.model import Acks, Message

PRODUCER, NAME = 7, "orders"


class Case:
    """An appender whose log and ready queues note what they get."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.state = PartitionState()
        self.stats = TopicStats()
        self.availability = Availability(PartitionId("t", 0))
        self.is_awaited = True
        self.full: GoqError | None = None
        self.event_log_full: GoqError | None = None
        self.has_room, self.is_snapshot_due = True, False
        self.counted_bytes = 0
        self.current = self  # the ready state
        self.entering_bytes, self.entering, self.is_rebuilding = 0, None, False
        self.failed = ""
        self.appender: Any = Appender.__new__(Appender)
        appender = self.appender
        appender._log = appender._ready_manager = appender._callbacks = appender.commit = self
        appender._state, appender._stats, appender._availability = (
            self.state,
            self.stats,
            self.availability,
        )
        appender._frames = SimpleNamespace(add=lambda frames: self.steps.append("cached"))
        appender._writer = SimpleNamespace(
            commit=SimpleNamespace(check_room=self._check_events),
            record=self.steps.append,
            count_published=self._count,
            record_snapshot=lambda: self.steps.append("snapshot"),
            has_room=True,
        )
        appender._on_delayed = lambda: self.steps.append("delayed")
        appender._on_failure = lambda error: self.steps.append(("failed", error))
        appender._is_staged = False
        self.is_disk_full = False
        appender._is_disk_full = lambda: self.is_disk_full
        appender._loop = SimpleNamespace(time=lambda: 1.0)
        awaited: Any = SimpleNamespace(
            is_awaited=lambda: self.is_awaited,
            on_ready=lambda group: self.steps.append(("ready", group)),
            on_staged=lambda: self.steps.append("staged"),
            on_disk_failure=lambda error: self.steps.append(("disk failure", error)),
        )
        appender._callbacks = awaited

    def _check_events(self, _size_bytes: int) -> None:
        if self.event_log_full is not None:
            raise self.event_log_full

    def _count(self, size_bytes: int) -> bool:
        self.counted_bytes += size_bytes
        return self.is_snapshot_due

    # The writer of the log

    def check_room(self, _frame_bytes: int) -> None:
        if self.full is not None:
            raise self.full

    def append(self, view: FrameView, *, acks: Acks) -> asyncio.Future[Appended]:
        self.steps.append(("append", acks))
        return asyncio.get_running_loop().create_future()

    def append_frame(self, view: FrameView, done: Any, *, acks: Acks) -> None:
        self.steps.append(("append", acks))

    def append_message(self, message: Message, size_bytes: int, by: Any, done: Any) -> None:
        self.steps.append("append message")

    # The ready state

    def published(self, start: int, end: int, rows: Any, now_ms: int) -> None:
        count = None if rows is None else len(rows.offsets)
        self.steps.append(("published", start, end, count, now_ms))

    def enter_later(self, view: FrameView) -> None:
        self.steps.append(("later", view.header.base_offset, view.header.append_time_us))

    def release(self) -> None:
        self.steps.append("released")


def frame(count: int, *, producer_id: int = 0, **columns: Any) -> FrameView:
    mark = ProducerMark(producer_id, 1, 0)
    return FrameView.parse(encode_frame(Columns([b"v"] * count, **columns), producer=mark))


def written(view: FrameView, offset: int, time_us: int = 5_000_000) -> WrittenFrame:
    return WrittenFrame(view, Appended(offset, time_us), None, Acks.QUORUM)


OFFLINE = PartitionOffline("partition 0 is offline")


def test_a_partition_takes_nothing_while_it_is_offline_full_or_behind_with_what_it_took() -> None:
    case = Case()
    case.appender.check_publish(1)
    case.entering_bytes = limits.COMMIT_QUEUE_BYTES_MAX
    case.appender.check_publish(1)
    case.entering_bytes += 1
    with pytest.raises(TooManyRequests) as behind:
        case.appender.check_publish(1)
    assert behind.value.retry_after_ms == 100
    case.entering_bytes, case.full = 0, TooManyRequests("the disk cannot keep up")
    for take in (
        lambda: case.appender.check_publish(1),
        lambda: case.appender.append_frame_for(None, frame(1), None, Acks.QUORUM),
    ):
        with pytest.raises(TooManyRequests):
            take()
    case.availability.error = OFFLINE
    for take in (
        lambda: case.appender.check_publish(1),
        lambda: case.appender.publish(frame(1)),
    ):
        with pytest.raises(PartitionOffline):
            take()
    assert case.steps == []


@pytest.mark.parametrize(
    ("producer_id", "name", "known", "is_new"),
    [
        (PRODUCER, NAME, {}, True),
        (PRODUCER, NAME, {PRODUCER: "other"}, True),
        (PRODUCER, NAME, {PRODUCER: NAME}, False),
        (0, NAME, {}, False),
        (PRODUCER, None, {}, False),
    ],
)
def test_a_frame_under_a_new_name_takes_a_future_and_names_its_producer_once_it_is_stored(
    producer_id: int, name: str | None, known: dict[int, str], is_new: bool
) -> None:
    async def run() -> None:
        case, view = Case(), frame(1, producer_id=producer_id)
        case.state.producer_names.update(known)
        is_queued = case.appender.append_frame_for(None, view, name, Acks.LEADER)
        assert is_queued is not is_new
        assert case.steps == [("append", Acks.LEADER)] * is_queued
        case.steps.clear()
        done = case.appender.publish(view, name, acks=Acks.LEADER)
        done.set_result(Appended(0, 0))
        await asyncio.sleep(0)
        named = [[Named(PRODUCER, NAME)]] if is_new else []
        assert case.steps == [("append", Acks.LEADER), *named]

    asyncio.run(run())


WHYS = ["cancelled", "not stored", "named meanwhile", "offline", "log full", "disk full"]


@pytest.mark.parametrize("why", WHYS)
def test_a_name_is_not_recorded_where_nothing_is_stored_or_no_event_is_taken(why: str) -> None:
    async def run() -> None:
        case = Case()
        done = case.appender.publish(frame(1, producer_id=PRODUCER), NAME)
        case.steps.clear()
        if why == "cancelled":
            done.cancel()
        elif why == "not stored":
            done.set_exception(TooManyRequests("no room"))
        else:
            done.set_result(Appended(0, 0))
        if why == "named meanwhile":
            case.state.producer_names[PRODUCER] = NAME
        if why == "offline":
            case.availability.error = OFFLINE
        if why == "log full":
            case.event_log_full = TooManyRequests("too many events wait")
        if why == "disk full":
            case.appender._writer.has_room = False
        await asyncio.sleep(0)
        assert case.steps == []

    asyncio.run(run())


def test_consumers_are_served_ahead_only_by_a_partition_that_can_serve_them() -> None:
    case = Case()
    assert case.appender.is_awaited
    case.is_awaited = False
    assert not case.appender.is_awaited
    case.is_awaited = case.is_rebuilding = True
    assert not case.appender.is_awaited
    case.is_rebuilding, case.is_disk_full = False, True
    assert not case.appender.is_awaited
    case.is_disk_full, case.availability.error = False, OFFLINE
    assert not case.appender.is_awaited


def test_what_is_committed_enters_state_queues_and_counts_and_wakes_consumers() -> None:
    case = Case()
    plain, delayed = frame(2, producer_id=PRODUCER), frame(3, deliver_at_ms=[9, 9, 9])
    case.appender._on_commit([written(plain, 0), written(delayed, 2, 7_000_999)])
    assert case.steps == [
        ("published", 0, 2, None, 5_000),
        ("published", 2, 5, 3, 7_000),
        "delayed",
        "released",
        ("ready", None),
    ]
    assert case.state.end_offset == 5
    assert case.state.producers.progress(PRODUCER) is not None
    stats, size_bytes = case.stats, sum(view.header.frame_bytes for view in (plain, delayed))
    assert (stats.published_messages, stats.published_bytes) == (5, size_bytes)
    assert (stats.last_append_ms, case.counted_bytes) == (7_000, size_bytes)


def test_frames_with_many_rows_and_those_behind_them_enter_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ROWS_ENTERED_AT_ONCE", 4)
    small, plain = frame(2, lanes=[1, 1]), frame(9)
    case = Case()
    case.appender._on_commit([written(small, 0), written(plain, 2), written(small, 11)])
    assert [step[:3] for step in case.steps if isinstance(step, tuple)][:3] == [
        ("published", 0, 2),
        ("published", 2, 11),
        ("published", 11, 13),
    ]
    case = Case()
    case.appender._on_commit([written(small, 0), written(small, 2), written(small, 4)])
    assert ("later", 4, 5_000_000) in case.steps
    case = Case()
    case.entering = "a large frame"
    case.appender._on_commit([written(plain, 0)])
    assert case.steps == [("later", 0, 5_000_000), "released", ("ready", None)]
    assert case.state.end_offset == 9


def test_what_was_staged_enters_once() -> None:
    case, view = Case(), frame(1)
    batch: Any = SimpleNamespace(frames=lambda: [view])
    case.appender.stage(batch, [written(view, 0)])
    entered = ["cached", ("published", 0, 1, None, 5_000), "released", "staged"]
    assert case.steps == entered
    case.appender._on_commit([written(view, 0)])
    assert case.steps == entered
    assert case.counted_bytes == view.header.frame_bytes
    case.appender._on_commit([written(view, 1)])
    assert ("published", 1, 2, None, 5_000) in case.steps
    assert case.stats.published_messages == 2


def test_a_snapshot_that_is_due_is_written_by_a_partition_that_is_online() -> None:
    case = Case()
    case.is_snapshot_due = True
    case.appender._on_commit([])
    assert case.steps[-1] == "snapshot"
    case.steps.clear()
    case.availability.error = OFFLINE
    case.appender._on_commit([])
    assert "snapshot" not in case.steps


@pytest.mark.parametrize(
    ("has_failed", "is_staged", "is_over"),
    [(False, False, False), (True, False, True), (False, True, True)],
)
def test_a_failed_write_ends_the_partition_if_its_log_failed_or_consumers_saw_the_messages(
    has_failed: bool, is_staged: bool, is_over: bool
) -> None:
    case, error = Case(), StorageFailed("the disk failed")
    case.failed = "the disk failed" if has_failed else ""
    case.appender._is_staged = is_staged
    case.appender._on_commit_failure(error)
    assert case.steps == [("disk failure", error), ("failed", error)][: 1 + is_over]
