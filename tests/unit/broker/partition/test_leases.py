"""When leases are refused, what a settlement writes and wakes, and what is skipped."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.partition import leases as leases_module
from goq.broker.partition.leases import Leases
from goq.broker.partition_context import Availability, PartitionId
from goq.clock import ManualClock
from goq.config.topic import Ordering, TopicSettings
from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cause,
    CopyQueued,
    Expired,
    Leased,
    Nacked,
    Skipped,
    token_of,
)
from goq.delivery.partition_state import PartitionState
from goq.delivery.settlement import Settlement
from goq.errors import GoqError, PartitionOffline, StorageFull, TooManyRequests
from goq.model import Receipt
from tests.support.broker.context import context_on
from tests.support.storage.disk import SimulatedDisk

TOKEN = token_of(1, 0)
NOT_KEYED = TopicSettings(ordering=Ordering.NONE)


class Case:
    """The leases of 20 messages, of which a consumer has 0 to 3; events are applied at once."""

    def __init__(self, settings: TopicSettings = NOT_KEYED) -> None:
        self.clock, self.settings = ManualClock(), settings
        self.state = PartitionState()
        self.state.extend_to(20)
        self.recorded: list[list[AnyEvent]] = []
        self.woken: list[str | None] = []
        self.full: GoqError | None = None
        self.is_disk_full = False
        self.next_token = token_of(1, 1)
        self.has_room = True
        self.commit = self
        made: Any = Leases.__new__(Leases)
        self.leases = made
        made._state, made._writer = self.state, self
        made._availability = Availability(PartitionId("t", 3))
        made._callbacks = SimpleNamespace(
            on_ready=self.woken.append, settings_of=lambda _group: self.settings
        )
        made._context = context_on(
            SimulatedDisk(), clock=self.clock, is_disk_full=lambda: self.is_disk_full
        )
        made._clock = SimpleNamespace(now_ms=self.clock.wall_ms)
        made._events = SimpleNamespace(reader=None)
        self.live_index = SimpleNamespace(index=None, live_blocks=lambda: None)
        deadline_ms = self.clock.wall_ms() + 5_000
        self.state.apply(Leased("g", "c", deadline_ms, [(0, 4, 1)], "s"), 0, 1)

    def check_room(self, _size_bytes: int) -> None:
        if self.full is not None:
            raise self.full

    def record(self, events: list[AnyEvent]) -> asyncio.Future[None]:
        for event in events:
            self.state.apply(event, sum(map(len, self.recorded)) + 1, 1)
        self.recorded.append(list(events))
        return SimpleNamespace()

    async def wait_for_commit(self) -> None:
        return

    def committed(self) -> object:
        return "committed"


def receipt(start: int, end: int, token: int = TOKEN) -> Receipt:
    return Receipt(3, token, start, end)


def test_no_event_is_accepted_offline_nor_without_room_in_the_log_or_on_the_disk() -> None:
    case = Case()
    case.leases.check_room()
    case.is_disk_full = True
    with pytest.raises(StorageFull) as full:
        case.leases.check_room()
    assert full.value.retry_after_ms == 1000
    case.full = TooManyRequests("too many events wait")
    with pytest.raises(TooManyRequests):
        case.leases.check_room()
    case.leases._availability.take_offline("is closed")
    with pytest.raises(PartitionOffline):
        case.leases.check_room()
    with pytest.raises(PartitionOffline):
        case.leases.acknowledge("g", [receipt(0, 1)])
    assert case.recorded == []


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_a_settlement_of_many_events_is_written_in_frames_that_they_fit(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(leases_module, "_EVENTS_PER_FRAME_MAX", 2)
    case = Case()
    events: list[AnyEvent] = [Acked("g", TOKEN, [(n, n + 1)]) for n in range(count)]
    _, recorded = case.leases._settle("g", Settlement(events, count, []))
    assert [each for frame in case.recorded for each in frame] == events
    assert [len(frame) for frame in case.recorded] == [2] * (count // 2) + [1] * (count % 2)
    assert len(recorded) == len(case.recorded)


@pytest.mark.parametrize(
    ("settings", "is_woken"),
    [
        (NOT_KEYED, False),
        (TopicSettings(ordering=Ordering.NONE, tenant_in_flight_max=3), True),
        (TopicSettings(ordering=Ordering.PARTITION), True),
        (TopicSettings(ordering=Ordering.KEY), False),
    ],
)
def test_a_settlement_wakes_a_consumer_whom_it_may_have_held_back(
    settings: TopicSettings, is_woken: bool
) -> None:
    case = Case(settings)
    case.leases.acknowledge("g", [receipt(0, 1)])
    assert case.woken == ["g"] * is_woken
    case.leases.acknowledge("g", [receipt(0, 1)])  # was settled before: nothing has changed
    assert case.woken == ["g"] * is_woken


@pytest.mark.parametrize("why", ["keys are held", "a retry waits"])
def test_a_settlement_wakes_a_consumer_while_keys_are_held_or_retries_wait(why: str) -> None:
    case = Case()
    group = case.state.groups["g"]
    if why == "keys are held":
        group.locks.held_count = 1
    else:
        case.leases.nack("g", [receipt(3, 4)], 60_000, "later")
        case.woken.clear()
    case.leases.acknowledge("g", [receipt(0, 1)])
    assert case.woken == ["g"]


def test_each_way_to_settle_is_the_event_that_says_so() -> None:
    now_ms = Case().clock.wall_ms()
    ways = {
        "nack": lambda leases: leases.nack("g", [receipt(0, 2)], 700, "busy"),
        "release": lambda leases: leases.release("g", [receipt(0, 2)]),
        "reject": lambda leases: leases.reject("g", [receipt(0, 2)], "bad"),
        "extend": lambda leases: leases.extend("g", [receipt(0, 2)], now_ms + 9_000),
    }
    found = {}
    for name, settle in ways.items():
        case = Case()
        settlement, _ = settle(case.leases)
        assert settlement.settled == 2
        ((found[name],),) = case.recorded
    nacked, released, rejected = found["nack"], found["release"], found["reject"]
    assert (nacked.spans, nacked.due_ms, nacked.reason) == ([(0, 2, 1)], now_ms + 700, "busy")
    assert (released.spans, released.due_ms, released.time_ms) == ([(0, 2, 0)], now_ms, now_ms)
    assert isinstance(rejected, CopyQueued)
    assert (rejected.cause, rejected.reason, rejected.time_ms) == (Cause.REJECTED, "bad", now_ms)
    assert found["extend"].deadline_ms == now_ms + 9_000


def test_what_never_left_the_node_is_ready_again_unless_no_event_can_say_so() -> None:
    case = Case()
    spans = [(0, 2, 1)]
    assert case.leases.undo_receive("other", TOKEN, spans) is None
    assert case.leases.undo_receive("g", TOKEN + 1, spans) is None
    case.has_room = False
    with pytest.raises(StorageFull):
        case.leases.undo_receive("g", TOKEN, spans)
    case.has_room = True
    case.leases._availability.take_offline("is closed")
    with pytest.raises(PartitionOffline):
        case.leases.undo_receive("g", TOKEN, spans)
    assert (case.recorded, case.woken) == ([], [])
    case.leases._availability.error = None
    case.leases.undo_receive("g", TOKEN, spans)
    (((event,),), (woken,)) = case.recorded, case.woken
    assert isinstance(event, Nacked)
    assert (event.spans, woken) == ([(0, 2, 0)], "g")


def test_the_lease_of_a_consumer_that_is_gone_ends_at_once_if_an_event_can_say_so() -> None:
    case = Case()
    case.has_room = False
    with pytest.raises(StorageFull):
        case.leases.end_leases("g", [TOKEN], "connection closed")
    case.has_room = True
    assert case.leases.end_leases("g", [TOKEN + 1], "connection closed") is None
    assert case.leases.end_leases("other", [TOKEN], "connection closed") is None
    assert (case.recorded, case.woken) == ([], [])
    case.leases.end_leases("g", [TOKEN + 1, TOKEN], "connection closed")
    ((event,),) = case.recorded
    assert isinstance(event, Expired)
    assert (event.spans, event.reason) == ([(0, 4, 1)], "connection closed")
    assert event.due_ms == case.clock.wall_ms()
    assert case.woken == ["g"]
    case.leases._availability.take_offline("is closed")
    with pytest.raises(PartitionOffline):
        case.leases.end_leases("g", [TOKEN], "connection closed")


def test_leases_are_counted_and_their_members_named() -> None:
    case = Case()
    assert case.leases.held_by("g", "s") == [(TOKEN, 0, 4)]
    assert case.leases.held_by("g", "another") == case.leases.held_by("other", "s") == []
    assert case.leases.unsettled_count("g", TOKEN) == 4
    case.leases.acknowledge("g", [receipt(1, 3)])
    assert case.leases.unsettled_count("g", TOKEN) == 2
    assert case.leases.unsettled_count("g", TOKEN + 1) == 0
    (member,) = case.leases.members("g", [TOKEN, TOKEN + 1])
    assert case.leases.holder("g", None) == member
    assert case.leases.holder("g", "another") == member
    assert case.leases.holder("g", member) is None
    assert case.leases.holder("unknown", None) is None


@pytest.mark.parametrize(
    ("cause", "settings", "is_copied"),
    [
        (Cause.TTL, TopicSettings(dead_letter_expired=True, dead_letters=True), True),
        (Cause.TTL, TopicSettings(dead_letter_expired=False, dead_letters=True), False),
        (Cause.TTL, TopicSettings(dead_letter_expired=True, dead_letters=False), False),
        (Cause.COMPACTED, TopicSettings(dead_letter_expired=True, dead_letters=True), False),
    ],
)
def test_what_has_expired_is_a_dead_letter_where_that_is_asked_for_and_else_it_is_skipped(
    cause: Cause, settings: TopicSettings, is_copied: bool
) -> None:
    case = Case(settings)
    case.leases.nack("g", [receipt(1, 2)], 0, "")
    case.recorded.clear()
    case.leases._skip("g", [(1, 3), (8, 9)], cause, settings, 77)
    ((event,),) = case.recorded
    if not is_copied:
        assert event == Skipped("g", [(1, 3), (8, 9)], cause)
        return
    assert isinstance(event, CopyQueued)
    assert (event.group, event.token, event.cause, event.time_ms) == ("g", 0, Cause.TTL, 77)
    assert event.spans == [(1, 2, 1), (2, 3, 0), (8, 9, 0)]


def test_only_receipts_that_there_can_have_been_are_searched_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[list[Receipt]] = []

    def split(_log: object, _group: str, some: list[Receipt]) -> tuple[int, list[Receipt]]:
        searched.append(some)
        return 3, some[:1]

    monkeypatch.setattr(leases_module, "split_recorded", split)

    async def run() -> None:
        case = Case()
        never = [receipt(19, 21), receipt(0, 1, case.next_token), receipt(20, 21)]
        assert await case.leases.split_recorded("g", never) == (0, never)
        assert searched == []
        may_be = [receipt(0, 1), receipt(19, 20), receipt(0, 20, case.next_token - 1)]
        count, lost = await case.leases.split_recorded("g", [*never, *may_be])
        assert searched == [may_be]
        assert (count, sorted(lost)) == (3, sorted([*never, may_be[0]]))

    asyncio.run(run())
