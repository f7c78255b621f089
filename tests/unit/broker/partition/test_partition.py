"""What a partition does with each event, when it is offline or closed, and what it tells of itself.

Its parts only note what they are told.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.events.deadline_clock import DeadlineClock
from goq.broker.events.group_changes import GroupChanges
from goq.broker.partition import partition as partition_module
from goq.broker.partition.partition import Partition
from goq.broker.partition_context import Availability, PartitionId
from goq.broker.runtime.metrics import TopicStats
from goq.clock import ManualClock
from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cancelled,
    Cause,
    ClockChanged,
    CopyQueued,
    Corrupted,
    Dropped,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Nacked,
    Reset,
    Trimmed,
)
from goq.delivery.partition_state import PartitionState
from goq.errors import MessageNotFound, NotLeader, PartitionOffline, StorageFailed

SPANS = [(0, 2, 1), (5, 6, 2)]
RANGES = [(0, 2), (5, 6)]


class Case:
    """A partition of the messages 10 to 29, and what its parts are told, in order."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.stats, self.state = TopicStats(), PartitionState()
        self.state.extend_to(30)
        self.state.apply(Trimmed(10), 0, 1)
        self.has_room, self.faults = True, dict[str, Exception]()
        self.clock = ManualClock()
        made: Any = Partition.__new__(Partition)
        self.partition = made
        made.identity = PartitionId("t", 3)
        made._state, made._stats = self.state, self.stats
        made.availability = Availability(made.identity)
        made.group_changes = GroupChanges(self.stats)
        made._callbacks = self.part("told")
        made._timers = self.part("timers")
        made.leases = self.part("leases", record=self._record)
        made.compactor = self.part("compactor", stop=self._of("compactor", "stop"))
        made._context = SimpleNamespace(
            clock=self.clock, tasks=SimpleNamespace(start=lambda work: work.close())
        )
        ready = self.part("ready", ready=SimpleNamespace(containers=lambda: iter(())))
        made.ready_manager = self.part(
            "manager", current=ready, close=self._of("manager", "close"), is_rebuilding=False
        )
        made.appender = self.part("appender", close=self._of("appender", "close"))
        made.appender.commit = self.part("appends")
        made._writer = self.part("writer", close=self._of("writer", "close"), record=self._record)
        made._writer.commit = self.part("commit")
        made._writer.has_room = True
        made._clock = DeadlineClock(
            self.clock,
            self.state,
            made._writer,
            made.availability,
            on_moved=lambda: made._timers.arm_all(),
        )

    def part(self, name: str, **known: Any) -> Any:
        """Return a part that notes what is called, by its name."""

        class Part(SimpleNamespace):
            def __getattr__(_, method: str) -> Any:
                return lambda *given, **_named: self.steps.append((name, method, *given))

        return Part(**known)

    def _of(self, name: str, method: str) -> Any:
        async def call(*given: object) -> None:
            self.steps.append((name, method, *given))
            if name in self.faults:
                raise self.faults[name]

        return call

    def _record(self, events: list[AnyEvent], **_options: object) -> asyncio.Future[None]:
        self.steps.append(("record", *events))
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def follow(self, event: AnyEvent) -> list[Any]:
        self.steps.clear()
        self.partition._on_event(event)
        return self.steps


def armed(group: str = "g") -> tuple[str, str, str]:
    return ("timers", "arm_for_group", group)


def settled(*what: object) -> tuple[object, ...]:
    return ("told", "on_settled", *what)


OUTBOX = ("told", "on_outbox_entry")
READY = ("told", "on_ready", None)


@pytest.mark.parametrize(
    ("event", "steps"),
    [
        (Leased("g", "c", 9, SPANS), [armed()]),
        (Extended("g", 7, RANGES, 9), [armed()]),
        (Acked("g", 7, RANGES), [settled("g", 7, 3, False)]),
        (Nacked("g", 7, SPANS, 9), [armed(), settled("g", 7, 3, False)]),
        (Expired("g", 7, SPANS, 9), [armed(), settled("g", 7, 3, True)]),
        (Dropped("g", 7, SPANS, Cause.EXPIRED), [settled("g", 7, 3, True)]),
        (Dropped("g", 7, SPANS, Cause.NACKED), [settled("g", 7, 3, False)]),
        (
            CopyQueued("g", 7, SPANS, Cause.EXPIRED, "", 9, "dead", 0, 1),
            [OUTBOX, settled("g", 7, 3, True)],
        ),
        (
            CopyQueued("g", 7, SPANS, Cause.REJECTED, "", 9, "dead", 0, 1),
            [OUTBOX, settled("g", 7, 3, False)],
        ),
        (
            CopyQueued("", 0, SPANS, Cause.REDRIVEN, "", 9, "t", 0, 1),
            [OUTBOX, settled("", 0, 3, False)],
        ),
        (Reset("g", 4), [settled("g", None, 0, False)]),
        (GroupDeleted("g"), [settled("g", None, 0, False)]),
        (Trimmed(12), [("ready", "trim", 12), settled(None, None, 0, False), READY]),
        (Corrupted(1, 2, "bad"), [settled(None, None, 0, False), READY]),
        (Cancelled([(1, 2)]), []),
    ],
)
def test_each_event_sets_timers_and_tells_the_topic_of_messages_that_left_their_consumer(
    event: AnyEvent, steps: list[Any]
) -> None:
    assert Case().follow(event) == steps


def test_only_copies_for_a_group_are_counted_as_its_dead_letters() -> None:
    case = Case()
    case.follow(CopyQueued("g", 7, SPANS, Cause.EXPIRED, "", 9, "dead", 0, 1))
    case.follow(CopyQueued("g", 8, SPANS[:1], Cause.TTL, "", 9, "dead", 0, 1))
    case.follow(CopyQueued("", 0, SPANS, Cause.REDRIVEN, "", 9, "t", 0, 1))
    assert {name: each.dead_messages for name, each in case.stats.groups.items()} == {"g": 5}


@pytest.mark.parametrize(
    ("offset", "text"),
    [(9, "is gone: retention keeps t:3 from offset 10"), (10, ""), (29, ""), (30, "not exist yet")],
)
def test_a_message_is_there_from_the_first_offset_up_to_the_end(offset: int, text: str) -> None:
    partition = Case().partition
    if not text:
        partition.check_exists(offset)
        return
    with pytest.raises(MessageNotFound, match=text):
        partition.check_exists(offset)


@pytest.mark.parametrize(
    ("is_rebuilding", "known", "untaken", "delayed", "expected"),
    [
        (False, [(0, 0, 5)], 5, 0, [(0, 0, 5)]),
        (False, None, 5, 4, None),
        (False, None, 5, 5, []),
        (True, [(0, 0, 5)], 5, 4, None),
        (True, [(0, 0, 5)], 4, 5, []),
    ],
)
def test_what_waits_by_queue_is_known_unless_the_queues_are_made_anew_and_something_is_ready(
    is_rebuilding: bool, known: Any, untaken: int, delayed: int, expected: Any
) -> None:
    case = Case()
    partition, manager = case.partition, case.partition.ready_manager
    manager.is_rebuilding = is_rebuilding
    manager.current.waiting = lambda _group, queues_max: known
    manager.current.schedule = SimpleNamespace(count=delayed)
    case.state.ensure_group("g")
    partition.group = lambda _name: SimpleNamespace(untaken_count=lambda: untaken)
    assert partition.waiting("g", 100) == expected


def test_a_reset_names_the_ends_before_and_after_and_wakes_the_group() -> None:
    async def run() -> None:
        case = Case()
        for end, before in ((None, -1), (25, -1), (None, 25)):
            case.steps.clear()
            await case.partition.reset("g", 12, end)
            recorded = Reset("g", 12, -1 if end is None else end, before)
            assert case.steps == [
                ("leases", "check_room"),
                ("record", recorded),
                ("told", "on_ready", "g"),
            ]
            case.state.apply(recorded, 1, 1)

    asyncio.run(run())


def test_a_group_that_is_not_here_is_deleted_without_an_event() -> None:
    async def run() -> None:
        case = Case()
        await case.partition.delete_group("g")
        assert case.steps == []
        case.state.ensure_group("g")
        await case.partition.delete_group("g")
        assert case.steps == [("record", GroupDeleted("g"))]
        case.partition.availability.take_offline("is closed")
        with pytest.raises(PartitionOffline):
            await case.partition.delete_group("g")

    asyncio.run(run())


def test_a_partition_goes_offline_once_and_tells_the_topic() -> None:
    case, error = Case(), StorageFailed("the disk failed")
    case.partition.group_changes.watch()
    case.partition.group_changes.take()
    case.partition._on_events_lost(error)
    assert case.steps == [
        ("told", "on_disk_failure", error),
        ("timers", "cancel"),
        ("told", "on_failure"),
    ]
    offline = case.partition.availability.error
    assert offline.retry_after_ms == 1000
    assert "is offline: the disk failed" in offline.detail
    assert case.partition.group_changes.take() is None
    case.steps.clear()
    case.partition._on_events_lost(error)
    assert case.steps == [("told", "on_disk_failure", error)]
    assert case.partition.availability.error is offline


def test_queues_that_were_made_anew_set_the_timers_and_wake_all_groups() -> None:
    case = Case()
    case.partition.group_changes.watch()
    case.partition.group_changes.take()
    case.partition._on_rebuilt()
    assert case.steps == [("timers", "arm_all"), ("told", "on_ready", None)]
    assert case.partition.group_changes.take() is None


CLOSED = [
    ("manager", "close"),
    ("appender", "close"),
    ("writer", "close"),
]
STOPPED = [("compactor", "stop"), ("timers", "cancel")]
SNAPSHOT = ("writer", "record_last_snapshot")


@pytest.mark.parametrize(
    ("is_needed", "is_online", "has_snapshot"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_the_state_is_written_at_the_end_if_it_is_sound_and_somebody_opens_it_again(
    is_needed: bool, is_online: bool, has_snapshot: bool
) -> None:
    async def run() -> None:
        case = Case()
        if not is_online:
            case.partition.availability.take_offline("is damaged")
        case.faults["appender"] = StorageFailed("it failed before")
        await case.partition.close(is_needed=is_needed)
        assert case.steps == [*STOPPED, *[SNAPSHOT] * has_snapshot, *CLOSED]
        assert not case.partition.is_online

    asyncio.run(run())


def test_the_progress_of_groups_is_given_up_only_where_nobody_opens_the_partition_again() -> None:
    for with_groups, left in ((False, {"g", "h"}), (True, set())):
        case = Case()
        for group in ("g", "h"):
            case.state.ensure_group(group)
        list(case.partition._take_containers(with_groups=with_groups))
        assert case.state.groups.keys() == left


def test_a_partition_that_another_node_leads_ends_with_that_reason_and_writes_nothing() -> None:
    async def run() -> None:
        case, reason = Case(), NotLeader("another node leads")
        await case.partition.resign(reason)
        assert case.partition.availability.error is reason
        assert case.steps == [
            ("appends", "abort", reason),
            ("commit", "abort", reason),
            *STOPPED,
            *CLOSED,
        ]
        before = Case()
        first = before.partition.availability.take_offline("is damaged")
        await before.partition.resign(reason)
        assert before.partition.availability.error is first

    asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "has_room", "is_written", "is_armed"),
    [
        (None, True, None, False),
        (ClockChanged("n1"), True, "later", False),
        (ClockChanged("n1", 500), True, "now", True),
        (ClockChanged("n1", 0, 500), True, "now", True),
        (ClockChanged("n1", 500), False, "later", True),
    ],
)
def test_times_that_move_to_another_clock_are_written_at_once_and_set_the_timers(
    monkeypatch: pytest.MonkeyPatch,
    change: ClockChanged | None,
    has_room: bool,
    is_written: str | None,
    is_armed: bool,
) -> None:
    monkeypatch.setattr(partition_module, "clock_change", lambda *_: change)

    async def run() -> None:
        case = Case()
        case.partition._writer.has_room = has_room
        case.partition.take_over_times("n1", None, lambda _node: None)
        written = {
            None: [],
            "now": [("record", change)],
            "later": [("writer", "record_later", change)],
        }
        assert case.steps == written[is_written] + [("timers", "arm_all")] * is_armed

    asyncio.run(run())


def test_a_partition_is_sound_and_quiet_only_if_both_of_its_logs_are() -> None:
    partition = Case().partition
    partition._messages = SimpleNamespace(reader=SimpleNamespace(damage=[]))
    partition._events = SimpleNamespace(reader=SimpleNamespace(damage=[]))
    assert partition.is_sound
    for log in (partition._messages, partition._events):
        log.reader.damage = ["bad"]
        assert not partition.is_sound
        log.reader.damage = []
    for one, two in ((True, True), (True, False), (False, True)):
        partition.appender.commit.is_quiet, partition._writer.commit.is_quiet = one, two
        assert partition.is_quiet is (one and two)
    partition.availability.take_offline("is closed")
    assert not partition.is_sound
