"""What a receive gets, in the small: each of these once went wrong."""

from __future__ import annotations

import pytest

from goq import limits
from goq.config.topic import Ordering, TopicSettings
from goq.delivery.events.event import Skipped
from goq.delivery.group.retry_policy import RetryPolicy
from goq.delivery.selection import redelivery
from goq.delivery.selection.redelivery import RetryRule
from goq.delivery.selection.selector import ANY_RETRY
from goq.model import Receipt
from tests.support.delivery.model import DONE, Message
from tests.support.delivery.pair import Pair

_NONE = {"g": Ordering.NONE}


def receive(
    pair: Pair, count: int = 100, *, group: str = "g", rule: RetryRule = ANY_RETRY
) -> list[int]:
    """Return the offsets that a receive hands out, in order."""
    known = len(pair.receipts)
    pair.receive(group, count, 1000, rule=rule)
    return [o for r in pair.receipts[known:] for o in range(r.start, r.end)]


def settle(pair: Pair, how: str, *offsets: int, delay_ms: int | None = 0) -> None:
    held = pair.twin.outstanding("g", "leased")
    receipts = [Receipt(0, held[o][4], o, o + 1) for o in offsets]
    pair.settle(how, "g", receipts, delay_ms)


def published(*messages: Message, **options: object) -> Pair:
    pair = Pair(**options)
    pair.publish(list(messages))
    return pair


def test_a_high_message_does_not_wait_behind_a_held_one_of_its_key_in_a_lower_lane() -> None:
    pair = published(Message(1, key=7), Message(2, key=7), Message(0, key=7))
    assert receive(pair, 1) == [2]
    pair.publish([Message(0, key=7), Message(2, key=7)])
    assert receive(pair) == []
    settle(pair, "ack", 2)
    assert receive(pair, 1) == [3]
    settle(pair, "ack", 3)
    assert receive(pair) == [0, 1, 4]


def test_what_is_held_in_one_lane_comes_though_what_was_held_before_it_in_another_is_gone() -> None:
    pair = published(Message(1, key=7), Message(1, key=7), Message(2, key=7))
    assert receive(pair, 1) == [0]
    assert receive(pair) == []
    pair.cancel(1)
    settle(pair, "ack", 0)
    assert receive(pair) == [2]


def test_a_retry_goes_before_one_of_its_key_that_waits_in_a_lower_lane() -> None:
    pair = published(Message(2, key=7), Message(0, key=7))
    assert receive(pair) == [1, 0]
    settle(pair, "nack", 0, delay_ms=500)
    settle(pair, "nack", 1)
    assert receive(pair) == [1]


def test_retries_and_held_messages_count_towards_the_cap_of_their_tenant() -> None:
    settings = TopicSettings(tenant_in_flight_max=2)
    pair = published(*[Message(1, "x", key=n) for n in (1, 1, 1, 2, 3)], settings=settings)
    assert receive(pair, 1) == [0]
    assert receive(pair) == [3]
    settle(pair, "nack", 3)
    assert receive(pair) == [3]
    settle(pair, "nack", 3, delay_ms=5)
    assert receive(pair) == [4]
    pair.move_clock(5)
    assert receive(pair) == []
    settle(pair, "ack", 0)
    assert receive(pair) == [3]
    settle(pair, "ack", 3)
    assert receive(pair) == [1]
    settle(pair, "ack", 1, 4)
    assert receive(pair) == [2]


def test_a_retry_that_waited_for_its_tenant_comes_with_the_later_retries_of_its_key() -> None:
    settings = TopicSettings(tenant_in_flight_max=1)
    pair = published(Message(1, "x", key=7), *[Message(1, key=7)] * 2, settings=settings)
    assert receive(pair) == [1, 0, 2]  # tenants take turns
    settle(pair, "nack", 0, 1, 2)
    pair.publish([Message(0, "x")])
    assert receive(pair) == [3]
    settle(pair, "ack", 3)
    assert receive(pair) == [0, 1, 2]


@pytest.mark.parametrize("cap", [None, 2])
def test_a_retry_that_waited_for_its_tenant_comes_with_those_of_its_key_once_the_cap_is_raised(
    cap: int | None,
) -> None:
    settings = TopicSettings(tenant_in_flight_max=1)
    pair = published(Message(1, "x", key=7), *[Message(1, key=7)] * 2, settings=settings)
    assert receive(pair) == [1, 0, 2]
    settle(pair, "nack", 0, 1, 2)
    pair.publish([Message(0, "x")])
    assert receive(pair) == [3]
    pair.configure(TopicSettings(tenant_in_flight_max=cap))
    assert receive(pair) == [0, 1, 2]


def test_the_tenants_of_what_is_leased_count_towards_a_cap_that_comes_later() -> None:
    pair = published(Message(1, "w"))
    pair.publish([Message(1, "x")] * 3)
    settle(pair, "ack", *receive(pair, 1))
    assert receive(pair, 2) == [1, 2]
    pair.trim(1)  # nothing of the first tenant is read again
    pair.configure(TopicSettings(tenant_in_flight_max=2))
    assert receive(pair) == []
    settle(pair, "ack", 1)
    assert receive(pair) == [3]


def test_a_receive_goes_on_behind_a_damaged_retry_that_waited_for_its_tenant() -> None:
    settings = TopicSettings(tenant_in_flight_max=1)
    pair = published(*[Message(1, "x")] * 2, settings=settings)
    for offset in (0, 1):
        assert receive(pair) == [offset]
        settle(pair, "nack", offset, delay_ms=5)
    pair.publish([Message(0, "x")])
    pair.move_clock(5)
    assert receive(pair) == [2]
    settle(pair, "ack", 2)
    pair.rotten[0] = 1
    assert receive(pair) == [1]


def test_of_a_run_of_retries_a_tenant_gets_as_many_as_it_may_have_and_the_rest_later() -> None:
    settings = TopicSettings(tenant_in_flight_max=4)
    pair = published(*[Message(1, "x")] * 4, settings=settings)
    assert receive(pair) == [0, 1, 2, 3]
    pair.give_back_all("g", pair.receipts[-1].token)
    pair.publish([Message(1, "x")] * 3)
    assert receive(pair, 1) == [0]
    assert receive(pair, 2) == [1, 2]
    settle(pair, "ack", 0)
    assert receive(pair) == [3, 4]


def test_what_waits_is_handed_out_once_where_a_partition_is_kept_in_order() -> None:
    pair = published(*[Message(1)] * 4, orderings={"g": Ordering.PARTITION})
    assert receive(pair, 2) == [0, 1]
    settle(pair, "nack", 0, 1)
    assert receive(pair) == [0, 1, 2, 3]


def test_what_was_taken_back_unseen_does_not_end_a_receive_in_order() -> None:
    pair = published(*[Message(1)] * 4, orderings={"g": Ordering.PARTITION})
    token = pair.receive("g", 2, 1000)
    assert token is not None
    pair.release_undelivered("g", token, [(0, 2, 1)])
    assert receive(pair) == [0, 1, 2, 3]


def test_a_ripe_retry_that_is_moved_comes_once() -> None:
    pair = published(Message(2), orderings=_NONE)
    assert receive(pair) == [0]
    settle(pair, "nack", 0)
    pair.move_clock(1)
    pair.check()
    pair.move(0, 1)
    assert receive(pair) == [0]


def test_a_message_that_is_moved_away_and_back_comes_once() -> None:
    pair = published(*[Message(1)] * 3, orderings=_NONE)
    pair.move(1, 0)
    pair.move(1, 1)
    assert receive(pair) == [0, 1, 2]


def test_a_held_message_that_is_moved_away_and_back_comes_once() -> None:
    pair = published(*[Message(1, key=7)] * 3)
    assert receive(pair, 1) == [0]
    assert receive(pair) == []
    for lane in (0, 1, 0, 1):
        pair.move(1, lane)
        assert receive(pair) == []
    settle(pair, "ack", 0)
    assert sorted(receive(pair)) == [1, 2]


def test_an_expired_message_that_is_moved_away_and_back_becomes_one_dead_letter() -> None:
    settings = TopicSettings(dead_letter_expired=True)
    pair = published(Message(1, expires_ms=1), settings=settings)
    pair.move(0, 0)
    pair.move(0, 1)
    assert receive(pair) == []
    assert [d.event.spans for d in pair.real.outbox.entries.values()] == [[(0, 1, 0)]]


def test_retries_that_lie_in_several_frames_all_come_before_what_is_fresh() -> None:
    pair = published(*[Message(1)] * 2, orderings=_NONE)
    pair.publish([Message(1)] * 2)
    assert receive(pair) == [0, 1, 2, 3]
    pair.give_back_all("g", pair.receipts[-1].token)
    pair.publish([Message(1)] * 2)
    assert receive(pair) == [0, 1, 2, 3, 4, 5]


def test_a_lane_with_a_small_weight_gets_all_of_its_retries_before_what_is_fresh() -> None:
    settings = TopicSettings(lane_weights=(1, 1, 1))
    pair = published(*[Message(1)] * 3, settings=settings, orderings=_NONE)
    assert receive(pair) == [0, 1, 2]
    pair.give_back_all("g", pair.receipts[-1].token)
    pair.publish([Message(1), Message(1)])
    assert receive(pair) == [0, 1, 2, 3, 4]


def test_retries_with_and_without_a_key_come_in_order_of_their_time() -> None:
    pair = published(Message(1), Message(1, key=7), Message(1))
    assert receive(pair) == [0, 1, 2]
    for offset, delay_ms in ((2, 1), (1, 2), (0, 3)):
        settle(pair, "nack", offset, delay_ms=delay_ms)
    pair.move_clock(10)
    assert receive(pair) == [2, 1, 0]


def test_retries_of_one_key_come_once_where_keys_do_not_matter_after_a_restart() -> None:
    pair = published(*[Message(1, key=7)] * 3, orderings=_NONE)
    assert receive(pair) == [0, 1, 2]
    pair.restart()
    settle(pair, "nack", 0)
    settle(pair, "nack", 1)
    settle(pair, "nack", 2)
    assert receive(pair) == [0, 1, 2]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_message_that_is_moved_while_it_is_out_is_tried_again_in_its_new_lane(
    restarts: bool,
) -> None:
    pair = Pair(orderings=_NONE)
    pair.publish([Message(1)] * 2, is_plain=True)
    assert receive(pair) == [0, 1]
    pair.move(1, 0)
    if restarts:
        pair.restart()
    settle(pair, "nack", 0, 1)
    assert receive(pair) == [1, 0]


def test_what_is_fresh_of_a_key_waits_until_its_retries_are_done() -> None:
    pair = published(*[Message(1, key=7)] * 2)
    assert receive(pair, 1) == [0]
    settle(pair, "nack", 0)
    assert receive(pair) == [0]
    settle(pair, "ack", 0)
    assert receive(pair) == [1]


def test_a_group_that_holds_back_all_it_may_still_gets_what_frees_the_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HELD_MESSAGES_MAX", 2)
    pair = published(Message(2, key=7))
    assert receive(pair) == [0]
    settle(pair, "nack", 0)
    pair.publish([Message(0, key=7)] * 5)
    assert receive(pair) == [0]
    settle(pair, "ack", 0)
    assert receive(pair, 2) == [1, 2]
    pair.drain()


def test_a_receive_that_finds_no_room_to_hold_messages_back_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HELD_MESSAGES_MAX", 2)
    monkeypatch.setattr(limits, "SELECTION_STEPS_MAX", 3)
    pair = published(*[Message(1, key=7)] * 12)
    assert receive(pair, 1) == [0]
    for _ in range(12):
        choice = pair.choice("g", 100, ANY_RETRY)
        choice.take(100)
        assert choice.spans == []
        if not choice.must_repeat:
            break
    assert not choice.must_repeat
    assert pair.real.group("g").locks.held_count == 2


@pytest.mark.parametrize("tenant", [None, "x"])
def test_messages_held_back_behind_their_key_do_not_use_up_a_receive(tenant: str | None) -> None:
    pair = published(*[Message(1, tenant, key=7)] * 9, Message(1, tenant, key=8))
    assert receive(pair, 1) == [0]
    assert pair.receive("g", 1, 1000, reads_max=3) is not None
    assert set(pair.twin.outstanding("g", "leased")) == {0, 9}
    assert pair.receive("g", 1, 1000, reads_max=3) is None


def test_many_retries_that_are_due_at_once_are_taken_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SELECTION_STEPS_MAX", 3)
    pair = published(*[Message(1 + n % 2, key=n + 1) for n in range(8)])
    while receive(pair):
        pass
    for offset in range(8):
        settle(pair, "nack", offset, delay_ms=5)
    pair.move_clock(10)
    choice = pair.choice("g", 100, ANY_RETRY)
    choice.take(100)
    assert (choice.spans, choice.must_repeat) == ([], True)
    assert receive(pair, 3) == [0]  # which takes as long as several fresh messages
    pair.drain()


@pytest.mark.parametrize("keys", [0, 1])
def test_a_large_lease_ends_in_several_pieces(monkeypatch: pytest.MonkeyPatch, keys: int) -> None:
    monkeypatch.setattr(limits, "EXPIRED_AT_ONCE", 3)
    pair = published(*[Message(1, key=keys * (n + 1)) for n in range(8)])
    assert receive(pair) == list(range(8))
    group = pair.real.group("g")
    pieces = []
    for token, parts in group.expired(pair.now_ms + 1000):
        pieces.append(sum(part.end - part.start for part in parts))
        for part in parts:
            group.finish(token, [(part.start, part.end)])
    assert pieces == ([3, 3, 2] if keys else [8])
    assert not group.leases


def test_an_expired_retry_lets_what_waits_behind_it_go() -> None:
    now_ms = Pair().now_ms
    pair = published(Message(1, key=7, expires_ms=now_ms + 5), Message(1, key=7))
    assert receive(pair) == [0, 1]
    settle(pair, "nack", 1, delay_ms=1)
    settle(pair, "nack", 0, delay_ms=2)
    pair.move_clock(10)
    assert receive(pair) == [1]


@pytest.mark.parametrize("lane", [0, 1])
def test_a_message_behind_an_expired_retry_of_its_key_comes_before_a_lower_lane(lane: int) -> None:
    now_ms = Pair().now_ms
    pair = published(Message(lane, key=7, expires_ms=now_ms + 5))
    assert receive(pair) == [0]
    settle(pair, "nack", 0)
    pair.publish([Message(0, key=7), Message(1), Message(2)])
    pair.move_clock(10)
    assert receive(pair) == [1, 2, 3]


def test_a_key_of_two_tenants_is_in_order_for_each_and_with_one_consumer_at_a_time() -> None:
    pair = published(*[Message(1, "x", key=7)] * 2, *[Message(1, "y", key=7)] * 2)
    found = list[int]()
    while offsets := receive(pair, 1):
        assert receive(pair) == []
        settle(pair, "ack", *offsets)
        found += offsets
    assert [offset for offset in found if offset < 2] == [0, 1]
    assert [offset for offset in found if offset >= 2] == [2, 3]


def test_a_tenant_whose_turn_was_cut_short_is_not_forgotten() -> None:
    pair = published(*[Message(1, "x")] * 8, orderings=_NONE)
    pair.publish([Message(1, "x")])
    assert pair.receive("g", 100, 1000, reads_max=1) is not None
    pair.publish([Message(1, "y")])
    assert sorted(receive(pair)) == [8, 9]


def test_a_damaged_message_that_was_held_back_is_not_handed_out() -> None:
    pair = published(*[Message(1, key=7)] * 3, Message(1), Message(1))
    assert receive(pair, 1) == [0]
    assert receive(pair) == [3, 4]
    pair.corrupt(1, 2)
    pair.corrupt(4, 5)
    settle(pair, "ack", 0)
    assert receive(pair) == [2]


def test_damage_met_on_the_way_is_noted_and_the_receive_goes_on_behind_it() -> None:
    pair = published(*[Message(1)] * 6, policy=RetryPolicy(attempts_max=None))
    pair.rotten[2] = 4
    assert receive(pair) == [0, 1, 4, 5]
    assert [tuple(r) for r in pair.real.corrupt] == [(2, 4)]


def test_recovery_keeps_what_waits_moved_or_cancelled_as_it_was() -> None:
    now_ms = Pair().now_ms
    settings = TopicSettings(tenant_in_flight_max=1)
    delayed = Message(1, "x", due_ms=now_ms + 50)
    pair = published(delayed, delayed, delayed, settings=settings, orderings=_NONE)
    pair.cancel(0)
    pair.move(1, 0)
    pair.restart()
    assert pair.dispatch.schedule.count == 2
    assert receive(pair) == []
    pair.move_clock(50)
    pair.restart()
    assert receive(pair) == [1]


def test_recovery_puts_plain_frames_and_others_in_order_of_offset() -> None:
    pair = Pair()
    pair.publish([Message(1, key=7)] * 2, is_plain=True)
    pair.publish([Message(1, key=7)] * 2)
    pair.publish([Message(1, key=7)] * 2, is_plain=True)
    pair.real.ensure_group("g")
    pair.restart()
    assert receive(pair) == [0, 1, 2, 3, 4, 5]


def test_messages_without_a_tenant_have_no_cap() -> None:
    settings = TopicSettings(tenant_in_flight_max=1)
    pair = published(*[Message(1)] * 5, settings=settings, orderings=_NONE)
    assert receive(pair, 3) == [0, 1, 2]
    assert receive(pair) == [3, 4]


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_what_stands_behind_much_that_a_group_with_an_end_passes_by_comes_all_the_same(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RUNS_PASSED_MAX", 3)
    pair = published(*[Message(n % 2) for n in range(2 + 2 * count)], orderings=_NONE)
    pair.move(1, 0)  # it stands in its lane behind all others now
    pair.reset("g", 0, 2)
    assert receive(pair, 1) == [0]
    assert receive(pair) == [1]
    pair.check()


def test_a_receive_passes_by_so_many_runs_behind_the_end_and_then_lets_others_have_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RUNS_PASSED_MAX", 3)
    for count, is_cut in ((2, False), (3, True), (4, True)):
        pair = published(*[Message(0, tenant=f"t{n}") for n in range(count)], orderings=_NONE)
        pair.reset("g", 0, 0)
        choice = pair.choice("g")
        choice.take(10)
        assert (choice.spans, choice.must_yield) == ([], is_cut)


@pytest.mark.parametrize("ordering", Ordering)
def test_a_retry_is_left_to_others_that_wait_by_the_consumer_that_let_it_expire(
    ordering: Ordering,
) -> None:
    pair = published(*[Message(1, key=n) for n in (1, 2, 3)], orderings={"g": ordering})
    hung = RetryRule("hung", others_wait=lambda: True)
    assert receive(pair, 2, rule=hung) == [0, 1]
    pair.move_clock(1000)
    assert receive(pair, rule=hung) == ([] if ordering is Ordering.PARTITION else [2])
    assert receive(pair, 1, rule=RetryRule("other", others_wait=lambda: True)) == [0]
    assert receive(pair, 1, rule=RetryRule("hung")) == [1]


@pytest.mark.parametrize("ordering", Ordering)
def test_a_silent_consumer_gets_no_retry_though_nobody_else_waits(ordering: Ordering) -> None:
    pair = published(*[Message(1, key=n) for n in (1, 2)], orderings={"g": ordering})
    assert receive(pair, 1, rule=RetryRule("other")) == [0]
    settle(pair, "nack", 0)
    silent = RetryRule("hung", is_silent=True)
    assert receive(pair, rule=silent) == ([] if ordering is Ordering.PARTITION else [1])
    assert receive(pair, rule=silent) == []
    left = [0, 1] if ordering is Ordering.PARTITION else [0]
    assert receive(pair, rule=RetryRule("hung")) == left


def test_many_retries_for_others_do_not_keep_a_consumer_from_fresh_messages() -> None:
    pair = published(*[Message(1)] * 300, orderings=_NONE)
    hung = RetryRule("hung", others_wait=lambda: True)
    for _ in range(250):
        assert len(receive(pair, 1, rule=hung)) == 1
    pair.move_clock(1000)
    assert receive(pair, 10, rule=hung) == list(range(250, 260))
    found: list[int] = []
    while len(found) < 290:  # retries take several turns
        found += receive(pair, 1000, rule=RetryRule("other"))
    assert sorted(found) == [*range(250), *range(260, 300)]


def test_a_receive_passes_by_so_many_retries_for_others_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redelivery, "_PASSED_OVER_MAX", 3)
    for count, expected in ((2, [2]), (3, [])):
        pair = published(*[Message(1)] * (count + 1), orderings=_NONE)
        hung = RetryRule("hung", others_wait=lambda: True)
        for _ in range(count):
            assert len(receive(pair, 1, rule=hung)) == 1
        assert receive(pair, 1, rule=RetryRule("other")) == [count]
        pair.move_clock(1000)
        assert receive(pair, rule=hung) == expected


@pytest.mark.parametrize("ordering", Ordering)
def test_a_group_is_done_with_what_compaction_removed_and_gets_the_rest(ordering: Ordering) -> None:
    pair = published(*[Message(1)] * 6, orderings={"g": ordering})
    pair.compact(1, 3)
    assert receive(pair) == [0, 3, 4, 5]
    assert [o for o, state in pair.twin.view("g").items() if state == DONE] == [1, 2]
    settle(pair, "nack", 0, 3, 4, 5)
    pair.compact(3, 5)
    assert receive(pair) == [0, 5]
    pair.publish([Message(1)])
    pair.compact(6, 7)
    assert receive(pair) == []
    pair.check()


def test_of_messages_held_behind_their_key_those_come_that_compaction_left() -> None:
    pair = published(*[Message(1, key=7)] * 3)
    assert receive(pair, 1) == [0]
    assert receive(pair) == []
    pair.compact(1, 2)
    settle(pair, "ack", 0)
    assert receive(pair) == [2]
    assert pair.twin.view("g")[1] == DONE
    pair.check()


@pytest.mark.parametrize("lane", [0, 2])
def test_a_message_that_was_moved_and_removed_is_counted_as_done_once(lane: int) -> None:
    pair = published(*[Message(1)] * 5, orderings=_NONE)
    pair.move(2, lane)
    pair.compact(1, 4)
    assert receive(pair) == [0, 4]
    done = [each for each, _, _ in pair.history if isinstance(each, Skipped)]
    assert sum(end - start for each in done for start, end in each.ranges) == 3
