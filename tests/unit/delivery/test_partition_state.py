"""A partition's delivery against its naive twin, over random histories."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from goq import limits
from goq.config.topic import TopicSettings
from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cancelled,
    Cause,
    CopyQueued,
    CopyStored,
    Corrupted,
    Dropped,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Matured,
    Moved,
    Nacked,
    Rescheduled,
    Reset,
    Skipped,
    Trimmed,
    decode_events,
)
from goq.delivery.group.retry_policy import RetryPolicy
from goq.delivery.partition_state import PartitionState
from goq.model import Receipt
from tests.support.delivery.model import DONE, FRESH, Message, skipped
from tests.support.delivery.pair import Pair
from tests.support.delivery.steps import GROUPS, random_pair, run_history, step
from tests.support.effort import first_of

_STEPS = 36
_LOSSY: tuple[type[AnyEvent], ...] = (
    Leased,
    Acked,
    Nacked,
    Expired,
    Extended,
    Corrupted,
    Trimmed,
    Cancelled,
    CopyStored,
    CopyQueued,
    Dropped,
    Matured,
    Moved,
    Rescheduled,
    Skipped,
)


@pytest.mark.parametrize("part", first_of(range(12), quick=1))
def test_random_histories_agree_with_the_twin_after_every_step(part: int) -> None:
    for seed in range(part * 150, (part + 1) * 150):
        run_history(seed, _STEPS)


def test_histories_agree_when_few_messages_may_be_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HELD_MESSAGES_MAX", 2)
    for seed in range(100):
        run_history(seed, _STEPS)


@pytest.mark.long
def test_a_million_steps_agree_with_the_twin() -> None:
    first = random.SystemRandom().randrange(2**32)
    print(f"seeds from {first}")
    for seed in range(first, first + 10_000):
        run_history(seed, 100)


class Histories(RuleBasedStateMachine):
    """The same steps, chosen by hypothesis, so that a failure comes out small."""

    @initialize(
        cap=st.sampled_from([None, 1, 2]),
        weights=st.sampled_from([None, (2, 1, 1)]),
        attempts_max=st.sampled_from([None, 2]),
        wait_ms=st.sampled_from([0, 4]),
    )
    def begin(
        self,
        cap: int | None,
        weights: tuple[int, ...] | None,
        attempts_max: int | None,
        wait_ms: int,
    ) -> None:
        topic = TopicSettings(lane_weights=weights, tenant_in_flight_max=cap)
        policy = RetryPolicy(attempts_max, wait_ms, 50, jitter=0.0)
        self.pair = Pair(topic, GROUPS, policy)

    @rule(
        kinds=st.lists(
            st.tuples(
                st.integers(0, 2),
                st.sampled_from([None, "x"]),
                st.integers(0, 2),
                st.sampled_from([0, 0, 3]),
                st.sampled_from([0, 0, 5]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def publish(self, kinds: list[tuple[int, str | None, int, int, int]]) -> None:
        now_ms = self.pair.now_ms
        self.pair.publish(
            [
                Message(lane, tenant, key, due and now_ms + due, ttl and now_ms + ttl)
                for lane, tenant, key, due, ttl in kinds
            ]
        )

    @rule(
        group=st.sampled_from(sorted(GROUPS)),
        count=st.integers(1, 6),
        visibility_ms=st.sampled_from([0, 5, 1000]),
        reads_max=st.sampled_from([0, 1, 1000]),
    )
    def receive(self, group: str, count: int, visibility_ms: int, reads_max: int) -> None:
        self.pair.receive(group, count, visibility_ms, reads_max)

    @rule(
        how=st.sampled_from(["ack", "nack", "reject", "extend"]),
        group=st.sampled_from(sorted(GROUPS)),
        which=st.lists(
            st.tuples(st.integers(0, 5), st.integers(-1, 2), st.integers(-1, 2)),
            min_size=1,
            max_size=3,
        ),
        delay_ms=st.sampled_from([0, 3, 60]),
    )
    def settle(
        self, how: str, group: str, which: list[tuple[int, int, int]], delay_ms: int
    ) -> None:
        receipts = []
        for number, before, after in which:
            if self.pair.receipts:
                known = self.pair.receipts[-1 - number % len(self.pair.receipts)]
                start = max(0, known.start + before)
                end = max(start + 1, known.end + after)
                receipts.append(known._replace(start=start, end=end))
        time_ms = self.pair.now_ms + delay_ms if how == "extend" else delay_ms
        self.pair.settle(how, group, receipts, time_ms)

    @rule(step_ms=st.sampled_from([-40, -1, 1, 5, 60]))
    def move_clock(self, step_ms: int) -> None:
        self.pair.move_clock(step_ms)

    @rule(which=st.integers(0, 20), lane=st.integers(0, 2), what=st.sampled_from("mcr"))
    def change(self, which: int, lane: int, what: str) -> None:
        twin = self.pair.twin
        if twin.start < twin.end:
            offset = twin.start + which % (twin.end - twin.start)
            if what == "m":
                self.pair.move(offset, lane)
            elif what == "c" and offset not in twin.cancelled:
                self.pair.cancel(offset)
            elif what == "r" and offset in twin.waiting:
                self.pair.reschedule(offset, self.pair.now_ms + 5 * lane - 5)

    @rule(
        group=st.sampled_from(sorted(GROUPS)),
        share=st.floats(0, 1),
        end_share=st.none() | st.floats(0, 1),
    )
    def reset(self, group: str, share: float, end_share: float | None) -> None:
        twin = self.pair.twin
        offset = twin.start + int(share * (twin.end - twin.start))
        end = None if end_share is None else offset + int(end_share * (twin.end - offset))
        self.pair.reset(group, offset, end)

    @rule(group=st.sampled_from(sorted(GROUPS)))
    def delete_group(self, group: str) -> None:
        self.pair.delete_group(group)

    @rule(count=st.integers(0, 4))
    def trim(self, count: int) -> None:
        self.pair.trim(min(self.pair.twin.start + count, self.pair.twin.end))

    @rule(share=st.floats(0, 1), count=st.integers(1, 3), is_met=st.booleans())
    def corrupt(self, share: float, count: int, is_met: bool) -> None:
        twin = self.pair.twin
        start = twin.start + int(share * (twin.end - twin.start))
        if start < twin.end:
            end = min(start + count, twin.end)
            if is_met:
                self.pair.rotten[start] = end
            else:
                self.pair.corrupt(start, end)

    @rule(is_snapshot=st.booleans())
    def recover(self, is_snapshot: bool) -> None:
        if is_snapshot:
            self.pair.restore()
        else:
            self.pair.restart()

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "pair"):
            self.pair.check()

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            self.pair.restart()
            self.pair.drain()


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def _history(seed: int, steps: int) -> tuple[Pair, random.Random]:
    rng = random.Random(seed)
    pair = random_pair(rng)
    for _ in range(steps):
        step(pair, rng)
    return pair, rng


def test_damaged_events_let_messages_come_back_but_never_skip_one() -> None:
    for seed in range(120):
        pair, rng = _history(seed, 40)
        damaged = pair.replay_damaged(rng, _LOSSY)
        found = skipped(damaged, pair.real)
        deleted = {n for n in found if n not in pair.real.groups}
        assert all(not offsets for n, offsets in found.items() if n not in deleted), (seed, found)


def test_any_damage_to_the_events_leads_to_a_sound_state_that_goes_on() -> None:
    for seed in range(120):
        pair, rng = _history(seed, 40)
        pair.go_on_damaged(pair.replay_damaged(rng, (*_LOSSY, Reset, GroupDeleted)))
        pair.drain()


def _without(pair: Pair, kind: type[AnyEvent]) -> PartitionState:
    state = PartitionState()
    state.extend_to(pair.real.end_offset)
    for event, sequence, epoch in pair.history:
        if not isinstance(event, kind):
            state.apply(event, sequence, epoch)
    return state


def _ten() -> Pair:
    pair = Pair()
    pair.publish([Message(1)] * 10, is_plain=True)
    return pair


def test_a_lost_reset_is_made_up_for_by_the_first_lease_after_it() -> None:
    pair = _ten()
    token = pair.receive("a", 10, 1000)
    assert token is not None
    pair.settle("ack", "a", [Receipt(0, token, 0, 10)])
    pair.reset("a", 3)
    pair.receive("a", 2, 1000)
    assert skipped(_without(pair, Reset), pair.real) == {"a": []}


def test_a_lost_reset_that_lifts_a_groups_end_is_made_up_for_by_the_first_lease_behind_it() -> None:
    pair = _ten()
    pair.reset("a", 0, 4)
    pair.receive("a", 10, 1000)
    pair.reset("a", 4)
    lifting = pair.history[-1][0]
    pair.receive("a", 2, 1000)
    damaged = PartitionState()
    damaged.extend_to(pair.real.end_offset)
    for event, sequence, epoch in pair.history:
        if event is not lifting:
            damaged.apply(event, sequence, epoch)
    assert damaged.group("a").end_offset is None
    assert skipped(damaged, pair.real) == {"a": []}


def test_what_gets_the_offsets_of_lost_messages_is_not_for_a_group_that_ended_behind_them() -> None:
    pair = _ten()
    pair.reset("a", 2, 8)
    assert pair.real.known_end() == 8
    pair.lose(5)
    pair.publish([Message(1)] * 5, is_plain=True)
    pair.check()
    assert [o for o, state in pair.twin.view("a").items() if state == FRESH] == [2, 3, 4]


def test_a_group_that_has_come_to_its_end_keeps_nothing_of_the_queues() -> None:
    pair = _ten()
    pair.reset("a", 0, 4)
    token = pair.receive("a", 10, 1000)
    assert token is not None
    pair.settle("ack", "a", [Receipt(0, token, 0, 4)])
    pair.restart()
    assert pair.dispatch.ready.complete_from == 10
    assert not pair.dispatch.lacks(pair.real.group("a"))
    assert pair.receive("a", 10, 1000) is None


def test_an_old_reset_is_read_as_one_without_an_end() -> None:
    (event,) = decode_events(msgspec.msgpack.encode([[6, "g", 3]]))
    assert event == Reset("g", 3, -1)


def test_what_was_dropped_without_a_word_has_neither_reason_nor_time() -> None:
    (event,) = decode_events(msgspec.msgpack.encode([[20, "g", 5, [[0, 1, 0]], "nacked"]]))
    assert event == Dropped("g", 5, [(0, 1, 0)], Cause.NACKED, "", 0)


def test_a_lease_whose_predecessors_end_was_lost_takes_its_messages_over() -> None:
    pair = _ten()
    pair.receive("a", 10, 5)
    pair.move_clock(10)
    pair.receive("a", 10, 1000)
    damaged = _without(pair, Expired)
    assert damaged.groups["a"].leased_count == 10
    assert len(damaged.groups["a"].leases) == 1


def test_offsets_that_were_lost_take_nothing_along_of_what_was_known_of_them() -> None:
    pair = _ten()
    pair.move(9, 0)
    assert pair.real.known_end() == 10
    pair.lose(5)
    pair.publish([Message(1)] * 5, is_plain=True)
    pair.check()
    assert pair.real.moved == {}
    assert pair.twin.view("a") == dict.fromkeys(range(10), FRESH)


def test_what_was_cancelled_before_the_log_begins_is_not_remembered_one_by_one() -> None:
    pair = _ten()
    for offset in (1, 5, 9):
        pair.cancel(offset)
    pair.trim(8)
    assert pair.real.cancelled.encode()[0] == 8
    assert pair.twin.view("a") == {8: FRESH, 9: DONE}
