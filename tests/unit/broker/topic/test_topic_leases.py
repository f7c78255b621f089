"""One receive over the partitions of a topic: where it begins, goes on and ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from goq import limits
from goq.broker.partition.leases import LeasedBatch, MessagesNotCached, MustRepeat
from goq.broker.topic.ready_partitions import ReadyPartitions
from goq.broker.topic.topic_leases import Leased, ReceiveRequest, TopicLeases
from goq.config.topic import Ordering
from goq.delivery.group.lease import member_id
from goq.delivery.selection.redelivery import RetryRule
from goq.errors import PartitionOffline, StorageFailed, TimedOut


class Part:
    """A partition that gives batches, or raises errors, one at a time, then nothing."""

    def __init__(self, number: int, *given: int | Exception, lane: int = 1, **batch: Any) -> None:
        self.identity = SimpleNamespace(number=number)
        self.is_online = True
        self.ready_manager = SimpleNamespace(is_ready_for=lambda _group: self.is_ready)
        self.leases = self
        self.is_ready = True
        self.has_passed_over = False
        self.lane = lane
        self.asked: list[int] = []
        self.bytes_asked: list[int] = []
        self.sessions: list[str] = []
        self.rules: list[RetryRule] = []
        self.undone: list[int] = []
        self.undoing: asyncio.Future[None] | None = None
        self.warmed: list[tuple[int, int]] = []
        self.warm_asked: list[bool] = []
        self._given = list(given)
        self._batch = batch

    def next_lane(self, _group: str) -> int:
        return self.lane

    def receive(self, _group: str, _consumer: str, messages: int, *_: Any, **options: Any) -> Any:
        self.asked.append(messages)
        self.bytes_asked.append(options["bytes_max"])
        self.sessions.append(options["session_id"])
        self.rules.append(options["rule"])
        self.warm_asked.append(options["wait"])
        each = self._given.pop(0) if self._given else 0
        if isinstance(each, Exception):
            raise each
        if not each:
            return None
        spans: Any = [(0, each, 1)]
        number = self.identity.number
        batch = LeasedBatch(number, number, "c", 0, spans, [], **{"is_cut": False, **self._batch})
        return batch, None

    def undo_receive(self, _group: str, token: int, _spans: object) -> Any:
        self.undone.append(token)
        if self.undoing is None:
            raise StorageFailed("it is closed")
        return self.undoing

    async def warm(self, offset: int, messages: int) -> None:
        self.warmed.append((offset, messages))

    async def rebuilt(self) -> None:
        self.is_ready = True


class Table(dict[int, Part]):
    count = 3
    change_count = 1

    def changed_since(self, _change_count: int) -> list[int]:
        return [*self]


class Woken:
    """Notes whom a receive wakes."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.others: list[str | None] = []
        self.returned: list[tuple[str, int]] = []

    def return_lease(self, group: str, batch: LeasedBatch) -> None:
        self.returned.append((group, batch.partition))

    def wake_other(self, _group: str, consumer: str | None) -> None:
        self.others.append(consumer)

    def other_takes_retries(self, _group: str, consumer: str) -> bool:
        return consumer != "c"

    def partitions_for(self, _group: str, member: str) -> set[int]:
        return {1} if member == member_id("c", "session") else {0, 2}


def leases_of(
    *parts: Part, weights: Any = None, ordering: Ordering = Ordering.NONE
) -> tuple[TopicLeases, Woken]:
    settings: Any = {"g": SimpleNamespace(ordering=ordering)}
    woken = Woken()

    class Settings(dict[str, Any]):
        topic = SimpleNamespace(lane_weights=weights)

    table: Any = Table({part.identity.number: part for part in parts})
    table.count = len(parts)
    stand_ins: Any = woken
    leases = TopicLeases(
        Settings(settings),
        table,
        ReadyPartitions(table),
        stand_ins,
        stand_ins,
        woken.groups.append,
        woken.return_lease,
    )
    return leases, woken


def request(messages_max: int = 10, room: Any = None, **given: Any) -> ReceiveRequest:
    return ReceiveRequest("c", messages_max, 2**20, 0, None, room=room, **given)


def counts(leased: Leased) -> dict[int, int]:
    found: dict[int, int] = {}
    for batch, _ in leased:
        found[batch.partition] = found.get(batch.partition, 0) + batch.message_count
    return found


def receive(leases: TopicLeases, asked: ReceiveRequest) -> dict[int, int]:
    return counts(asyncio.run(leases.lease_cached("g", asked)))


def test_a_receive_takes_from_one_partition_after_the_other_until_it_is_full() -> None:
    parts = [Part(0, 3), Part(1, 4), Part(2, 9)]
    leases, woken = leases_of(*parts)
    leases._turn = 2  # the next receive begins at the first one
    assert receive(leases, request(7)) == {0: 3, 1: 4}
    assert [part.asked for part in parts] == [[7], [4], []]
    assert woken.groups == ["g"]


def test_who_got_all_that_there_was_wakes_nobody() -> None:
    leases, woken = leases_of(Part(0, 3), Part(1))
    assert receive(leases, request(7)) == {0: 3}
    assert (woken.groups, woken.others) == ([], [])


def test_receives_begin_in_turn_and_where_the_most_urgent_message_is() -> None:
    parts = [Part(0, 1, 1, 1), Part(1, 1, 1, 1), Part(2, 1, 1, 1)]
    leases, _ = leases_of(*parts)
    assert [receive(leases, request(1)) for _ in range(4)] == [{1: 1}, {2: 1}, {0: 1}, {1: 1}]
    parts[0].lane = 0
    leases._ready.note_change(0, None)
    assert receive(leases, request(1)) == {0: 1}
    by_weight, _ = leases_of(Part(0, 1), Part(1, 1, lane=2), Part(2, 1), weights=(2, 1))
    assert receive(by_weight, request(1)) == {1: 1}


def test_a_partition_that_fails_or_is_offline_does_not_hide_what_others_have() -> None:
    broken = PartitionOffline("its disk failed")
    offline = Part(2, 5)
    offline.is_online = False
    leases, _ = leases_of(Part(0, broken), Part(1, 2), offline)
    assert receive(leases, request()) == {1: 2}
    alone, _ = leases_of(Part(0, broken), Part(1), offline)
    with pytest.raises(PartitionOffline):
        receive(alone, request())


def test_a_receive_that_finds_only_what_is_skipped_goes_on_until_it_has_a_message() -> None:
    part, empty = Part(0, MustRepeat(), MustRepeat(), 4), Part(1)
    leases, _ = leases_of(part, empty)
    assert receive(leases, request()) == {0: 4}
    assert len(part.asked) == 3
    leases, _ = leases_of(Part(0, MustRepeat(), lane=2), Part(1, 1))
    leased, is_paused = leases.lease_at_once("g", request())
    assert (counts(leased), is_paused) == ({1: 1}, True)


def test_a_turn_that_ended_early_is_gone_on_with_until_the_receive_is_full() -> None:
    leases, _ = leases_of(Part(0, 2, 3, 9, is_paused=True))
    assert receive(leases, request(5)) == {0: 5}
    leases, _ = leases_of(Part(0, 2, 3, is_paused=True))
    assert receive(leases, request(9)) == {0: 5}


def test_a_turn_ends_when_as_many_were_decided_on_as_one_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SELECTION_STEPS_MAX", 5)
    for first, is_over in ((3, False), (5, True)):
        second = Part(1, 1, lane=2)
        leases, _ = leases_of(Part(0, first), second)
        leased, is_paused = leases.lease_at_once("g", request())
        assert is_paused is is_over
        assert counts(leased) == ({0: first} if is_over else {0: first, 1: 1})


def test_a_receive_leases_no_more_than_its_sender_has_room_for() -> None:
    class Room:
        def __init__(self, room: int) -> None:
            self.room = room

        def left(self) -> int:
            return self.room

        def take(self, messages: int) -> None:
            self.room -= messages

    room = Room(5)
    part, other = Part(0, 2), Part(1, 3, lane=2)
    leases, _ = leases_of(part, other)
    assert receive(leases, request(10, room)) == {0: 2, 1: 3}
    assert (part.asked, other.asked, room.room) == ([5], [3], 0)
    assert receive(leases, request(10, room)) == {}
    assert part.asked == [5]
    assert not request(1, room).has_room
    assert request(1, Room(1)).has_room


def test_what_is_not_in_memory_is_read_first_and_what_is_is_given_at_once() -> None:
    missing = MessagesNotCached((7, 3))
    cold = Part(0, missing, 2)
    leases, _ = leases_of(cold, Part(1, lane=2))
    assert receive(leases, request()) == {0: 2}
    assert cold.warmed == [(7, 3)]
    assert cold.warm_asked == [False, True]
    cold, warm = Part(1, missing, lane=2), Part(0, 2)
    leases, woken = leases_of(warm, cold)
    assert receive(leases, request()) == {0: 2}
    assert cold.warmed == []
    assert woken.groups == ["g"]


def test_a_receive_waits_for_queues_that_are_made_anew() -> None:
    part = Part(0, 2)
    part.is_ready = False
    leases, _ = leases_of(part)
    assert leases.lease_at_once("g", request()) == ([], False)
    assert receive(leases, request()) == {0: 2}


def test_a_receive_that_is_cancelled_between_its_turns_gives_everything_back() -> None:
    parts = [Part(0, 2, is_paused=True), Part(1)]
    leases, _ = leases_of(*parts)

    async def run() -> None:
        receiving = asyncio.ensure_future(leases.lease_cached("g", request()))
        await asyncio.sleep(0)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving

    asyncio.run(run())
    assert parts[0].undone == [0]


def test_a_lease_of_a_partition_that_moved_is_returned_to_its_leader() -> None:
    parts = [Part(0, 2), Part(1, 1)]
    leases, woken = leases_of(*parts)
    leased = asyncio.run(leases.lease_cached("g", request()))
    table: Any = leases._partitions
    del table[1]
    leases.undo("g", leased)
    assert parts[0].undone == [0]
    assert parts[1].undone == []
    assert sorted(woken.returned) == [("g", 0), ("g", 1)]


def test_a_lease_whose_release_is_lost_with_the_leadership_is_returned_to_the_next_leader() -> None:
    async def run() -> None:
        parts = [Part(0, 1), Part(1, 1)]
        leases, woken = leases_of(*parts)
        leased = await leases.lease_cached("g", request())
        for part in parts:
            part.undoing = asyncio.get_running_loop().create_future()
        leases.undo("g", leased)
        lost, committed = (part.undoing for part in parts)
        assert lost is not None
        assert committed is not None
        lost.set_exception(TimedOut("another node leads"))
        committed.set_result(None)
        await asyncio.sleep(0)
        assert woken.returned == [("g", 0)]

    asyncio.run(run())


def test_what_a_consumer_may_not_take_is_offered_to_others() -> None:
    part = Part(0, 1)
    part.has_passed_over = True
    leases, woken = leases_of(part)
    receive(leases, request())
    assert woken.others == ["c"]


def test_a_receive_ends_when_its_bytes_are_used_up_whichever_partition_they_are_of() -> None:
    half = 2**19
    parts = [Part(0, 3, size_bytes=half), Part(1, 3, size_bytes=half), Part(2, 3, lane=2)]
    leases, woken = leases_of(*parts)
    leases._turn = 2
    assert receive(leases, request()) == {0: 3, 1: 3}
    assert [part.bytes_asked for part in parts] == [[2**20], [half], []]
    assert woken.groups == ["g"], "there may be more"
    paused = Part(0, 3, 3, 3, size_bytes=half, is_paused=True)
    leases, _ = leases_of(paused)
    assert receive(leases, request()) == {0: 6}
    assert paused.bytes_asked == [2**20, half]


def test_a_member_gets_the_messages_of_its_own_partitions_and_leases_them_as_itself() -> None:
    for session, numbers in (("session", {1}), ("another", {0, 2})):
        parts = [Part(number, 1) for number in range(3)]
        leases, _ = leases_of(*parts, ordering=Ordering.PARTITION)
        assert receive(leases, request(session_id=session)) == dict.fromkeys(numbers, 1)
        asked = [part for part in parts if part.sessions]
        assert [part.sessions for part in asked] == [[session]] * len(numbers)
    anybody = Part(0, 1)
    leases, _ = leases_of(anybody)
    assert receive(leases, request(session_id="session")) == {0: 1}
    assert anybody.sessions == [""]


def test_retries_that_were_passed_over_are_for_others_and_of_a_silent_consumer_for_anyone() -> None:
    for expired, woken_but in ((0, "c"), (2, None)):
        part = Part(0, 1)
        part.has_passed_over = True
        leases, woken = leases_of(part)
        account: Any = SimpleNamespace(expired_count=expired, room=10)
        receive(leases, request(account=account))
        (rule,) = part.rules
        assert (rule.consumer, rule.is_silent) == ("c", expired > 0)
        assert not rule.others_wait()
        assert woken.others == [woken_but]


def test_what_was_read_from_the_disk_is_taken_first_whatever_is_more_urgent_by_then() -> None:
    cold = Part(1, MessagesNotCached((7, 3)), 2, lane=1)
    urgent = Part(0, 5, lane=2)
    leases, _ = leases_of(urgent, cold)

    async def warm(_offset: int, _messages: int) -> None:
        urgent.lane = 0

    cold.warm = warm
    assert receive(leases, request(2)) == {1: 2}
    assert urgent.asked == []


def test_a_turn_that_ended_with_a_full_receive_is_not_gone_on_with() -> None:
    part = Part(0, 5, 5, is_paused=True)
    leases, woken = leases_of(part)
    assert receive(leases, request(5)) == {0: 5}
    assert part.asked == [5]
    assert woken.groups == ["g"]


def test_a_cut_batch_wakes_the_group_for_the_rest() -> None:
    leases, woken = leases_of(Part(0, 3, is_cut=True))
    assert receive(leases, request(7)) == {0: 3}
    assert woken.groups == ["g"]
