"""FairScheduler: lanes, tenants, starvation and caps; nothing skipped, nothing offered twice."""

from __future__ import annotations

import gc
import random
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goq import limits
from goq.delivery.queues.fair_scheduler import LEFT, FairScheduler, SingleTaker
from goq.delivery.queues.policy import SchedulingPolicy, TenantNumbers
from goq.delivery.queues.ready_queues import ReadyQueues
from goq.delivery.queues.weighted_shares import UNIT, WeightedShares
from goq.errors import InvalidInput
from tests.support.delivery.scheduler_model import World, random_policy, step


class Group:
    """Takes all it is offered, up to its budget, and notes it as ``(lane, tenant, offset)``."""

    def __init__(
        self, partition: Partition, policy: SchedulingPolicy, floor_offset: int = 0
    ) -> None:
        self.partition = partition
        self.scheduler = FairScheduler(
            partition.ready, partition.tenants, policy, floor_offset=floor_offset
        )
        self.taken: list[tuple[int, str, int]] = []
        self.offers: list[tuple[int, int]] = []
        self.out: Counter[int] = Counter()
        self.waiting: Counter[int] = Counter()
        self.budget = 10**9

    def take(self, messages_max: int, now_ms: int = 0) -> list[tuple[int, str, int]]:
        before = len(self.taken)
        assert self.scheduler.take(self, now_ms, messages_max) == len(self.taken) - before
        return self.taken[before:]

    def names(self, messages_max: int, now_ms: int = 0) -> str:
        return "".join(name for _, name, _ in self.take(messages_max, now_ms))

    def lanes(self, messages_max: int, now_ms: int = 0) -> list[int]:
        return [lane for lane, _, _ in self.take(messages_max, now_ms)]

    def end(self, name: str, count: int = 1) -> None:
        tenant = self.partition.tenants.number(name)
        self.out[tenant] -= count
        self.scheduler.on_tenant_freed(tenant)

    def waiting_lanes(self) -> Iterable[int]:
        return [lane for lane, count in self.waiting.items() if count]

    def take_waiting(self, lane: int, messages_max: int) -> int:
        count = min(messages_max, self.budget, self.waiting[lane])
        self.waiting[lane] -= count
        self.budget -= count
        self.taken += [(lane, "retry", -1)] * count
        return count

    def take_fresh(
        self, lane: int, tenant: int, start: int, end: int, messages_max: int
    ) -> tuple[int, int]:
        self.offers.append((start, end))
        count = min(messages_max, self.budget, end - start)
        self.budget -= count
        self.out[tenant] += count
        name = self.partition.tenants.name(tenant)
        self.taken += [(lane, name, offset) for offset in range(start, start + count)]
        return count, start + count

    def single_taker(self) -> SingleTaker:
        def take(lane: int, tenant: int, offset: int) -> int:
            return self.take_fresh(lane, tenant, offset, offset + 1, 1)[0] or LEFT

        return take

    def is_full(self) -> bool:
        return not self.budget

    def in_flight(self, tenant: int) -> int:
        return self.out[tenant]


class Partition:
    def __init__(self) -> None:
        self.ready, self.tenants, self.end = ReadyQueues(), TenantNumbers(), 0

    def publish(self, name: str = "", count: int = 1, *, lane: int = 0, now_ms: int = 0) -> None:
        start, self.end = self.end, self.end + count
        self.ready.add(lane, self.tenants.number(name), start, self.end, now_ms)

    def group(self, floor_offset: int = 0, **policy: Any) -> Group:
        return Group(self, SchedulingPolicy(**policy), floor_offset)


@pytest.fixture
def partition() -> Partition:
    return Partition()


def run_history(world: World, rng: random.Random, steps: int) -> None:
    for _ in range(steps):
        step(world, rng)
        world.check()
    world.drain()


def test_the_messages_that_wait_are_told_by_lane_and_tenant(partition: Partition) -> None:
    group = partition.group()
    partition.publish("a", 3, lane=1)
    partition.publish("b", 2)
    partition.publish("a", 4, lane=1)
    a, b = partition.tenants.number("a"), partition.tenants.number("b")
    assert sorted(group.scheduler.waiting()) == [(0, b, 2), (1, a, 7)]
    group.take(4)
    assert list(group.scheduler.waiting()) == [(1, a, 5)]
    group.take(5)
    assert list(group.scheduler.waiting()) == []


def test_new_queues_are_caught_up_with_when_each_group_has_seen_them(partition: Partition) -> None:
    groups = [partition.group(), partition.group()]
    for number in range(5):
        partition.publish(f"tenant-{number}")
    assert groups[0].scheduler.catch_up(100)
    assert not partition.ready.catch_up(2)
    while not partition.ready.catch_up(2):
        pass
    assert groups[1].scheduler.catch_up(1)


def test_random_histories_break_no_rule_that_the_referee_knows() -> None:
    for seed in range(250):
        try:
            run_history(World(), random.Random(seed), 80)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.integers(1, 25))
def test_histories_chosen_by_hypothesis_break_no_rule(rng: random.Random, steps: int) -> None:
    world = World()
    world.join(random_policy(rng), rng)
    run_history(world, rng, steps)


@pytest.mark.long
def test_many_long_random_histories_break_no_rule() -> None:
    first = random.SystemRandom().randrange(2**32)
    print(f"seeds from {first}")
    for seed in range(first, first + 5000):
        try:
            run_history(World(), random.Random(seed), 300)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_lower_lane_waits_until_those_above_are_empty_and_is_then_complete(
    partition: Partition,
) -> None:
    group = partition.group()
    for _ in range(5):
        for lane in (2, 0, 1):
            partition.publish(count=3, lane=lane)
    assert group.lanes(17) == [0] * 15 + [1] * 2
    partition.publish(lane=0)
    assert group.lanes(100) == [0] + [1] * 13 + [2] * 15
    assert sorted(offset for _, _, offset in group.taken) == list(range(partition.end))


def test_retries_of_a_lane_come_before_its_fresh_messages(partition: Partition) -> None:
    group = partition.group()
    for lane in range(3):
        partition.publish(count=2, lane=lane)
    group.waiting.update({1: 2, 3: 1})
    names = [(lane, name) for lane, name, _ in group.take(100)]
    fresh = [[(lane, "")] * 2 for lane in range(3)]
    assert names == [*fresh[0], *[(1, "retry")] * 2, *fresh[1], *fresh[2], (3, "retry")]


def test_all_256_lanes_take_part(partition: Partition) -> None:
    group = partition.group()
    for lane in reversed(range(limits.LANES_MAX)):
        partition.publish(lane=lane)
    assert group.lanes(1000) == list(range(limits.LANES_MAX))


@pytest.mark.parametrize("batch", [1, 5, 7, 1200])
def test_weights_share_exactly_whatever_the_batches(partition: Partition, batch: int) -> None:
    group = partition.group(lane_weights=(8, 3))
    for lane in (0, 1, 2):
        partition.publish(count=2000, lane=lane)
    while len(group.taken) < 1200:
        group.take(min(batch, 1200 - len(group.taken)))
        cycles = -(-len(group.taken) // 12)
        counts = Counter(lane for lane, _, _ in group.taken)
        assert all(counts[lane] <= cycles * weight for lane, weight in enumerate((8, 3, 1)))
    assert counts == {0: 800, 1: 300, 2: 100}


def test_retries_count_in_the_share_of_their_lane(partition: Partition) -> None:
    group = partition.group(lane_weights=(3, 1))
    partition.publish(count=100, lane=0)
    partition.publish(count=100, lane=1)
    group.waiting[1] = 10
    assert Counter(group.lanes(40)) == {0: 30, 1: 10}
    assert group.waiting[1] == 0


def test_an_idle_lane_leaves_its_share_to_others_and_saves_nothing(partition: Partition) -> None:
    group = partition.group(lane_weights=(8, 3, 1))
    partition.publish(count=1000, lane=2)
    assert group.lanes(500) == [2] * 500
    partition.publish(count=1000, lane=0)
    assert Counter(group.lanes(8 + 90)) == {0: 8 + 80, 2: 10}


def test_a_message_over_the_bound_goes_before_lane_0(partition: Partition) -> None:
    group = partition.group(starvation_ms=30_000)
    partition.publish(lane=2, now_ms=1000)
    partition.publish(count=10, lane=0, now_ms=31_000)
    assert group.lanes(1, now_ms=31_000) == [0]
    assert group.lanes(2, now_ms=31_001) == [2, 0]


def test_those_over_the_bound_go_oldest_first(partition: Partition) -> None:
    group = partition.group(starvation_ms=1000)
    order = [(2, "a", 100), (1, "b", 300), (2, "c", 500), (3, "a", 700), (1, "a", 900)]
    for lane, name, now_ms in order:
        partition.publish(name, lane=lane, now_ms=now_ms)
    partition.publish("z", count=100, lane=0, now_ms=5000)
    taken = [group.take(2, now_ms=5000) for _ in order]
    assert [pair[0][:2] for pair in taken] == [(lane, name) for lane, name, _ in order]
    assert all(pair[1][0] == 0 for pair in taken)


@pytest.mark.parametrize("batch", [1, 10])
def test_the_usual_order_keeps_half_when_all_is_over_the_bound(
    partition: Partition, batch: int
) -> None:
    group = partition.group(starvation_ms=1000)
    partition.publish(count=1000, lane=1, now_ms=0)
    partition.publish(count=1000, lane=0, now_ms=90_000)
    lanes = [lane for _ in range(200 // batch) for lane in group.lanes(batch, now_ms=90_000)]
    assert Counter(lanes) == {0: 100, 1: 100}
    assert lanes[0] == 1
    assert Counter(lanes[:10]) == {0: 5, 1: 5}


def test_only_those_over_the_bound_go_ahead_of_their_run(partition: Partition) -> None:
    group = partition.group(starvation_ms=1000)
    partition.publish(count=2, lane=1, now_ms=0)
    partition.publish(count=8, lane=1, now_ms=5000)
    partition.publish(count=10, lane=0, now_ms=5000)
    assert partition.ready.entry_count == 2
    assert group.lanes(10, now_ms=5500) == [1, 1] + [0] * 8


def test_a_message_that_comes_over_the_bound_goes_next_when_none_was_before(
    partition: Partition,
) -> None:
    group = partition.group(starvation_ms=1000)
    partition.publish("a", count=5, lane=1, now_ms=0)
    partition.publish("b", count=2, lane=0, now_ms=5000)
    assert group.names(9, now_ms=5000) == "aaaaabb"
    partition.publish("c", lane=1, now_ms=6000)
    partition.publish("d", count=9, lane=0, now_ms=8000)
    assert group.names(2, now_ms=8000) == "cd"


def test_with_nothing_else_to_do_all_over_the_bound_are_taken(partition: Partition) -> None:
    group = partition.group(starvation_ms=1000)
    partition.publish("a", count=50, lane=1)
    partition.publish("b", count=50, lane=2)
    assert len(group.take(1000, now_ms=9000)) == 100


def test_no_message_waits_longer_than_the_bound_while_consumers_are_fast_enough(
    partition: Partition,
) -> None:
    group, published_ms, bound_ms = partition.group(starvation_ms=1000), {}, 1000
    for now_ms in range(0, 4000, 100):
        for lane in [0] * 10 + [1, 2]:
            published_ms[partition.end] = now_ms
            partition.publish(f"t{partition.end % 7}", lane=lane, now_ms=now_ms)
        for lane, _, offset in group.take(10, now_ms):
            assert lane == 0 or now_ms - published_ms[offset] <= bound_ms + 200


def test_a_starving_message_of_a_capped_tenant_goes_when_it_may(partition: Partition) -> None:
    group = partition.group(starvation_ms=1000, tenant_in_flight_max=1)
    partition.publish("a", lane=2, count=3)
    partition.publish("b", lane=1, now_ms=5000)
    assert group.names(10, now_ms=5000) == "ab"
    partition.publish("c", lane=0, now_ms=5000)
    group.end("a")
    assert group.names(1, now_ms=5000) == "a"
    assert group.names(10, now_ms=5000) == "c"


def test_a_million_messages_of_one_tenant_delay_another_by_one_message(
    partition: Partition,
) -> None:
    group = partition.group()
    partition.publish("a", count=1_000_000)
    assert group.names(3) == "aaa"
    partition.publish("b")
    partition.publish("c")
    assert group.names(4) in ("abca", "bcaa")


def test_each_waits_one_message_of_every_other(partition: Partition) -> None:
    group = partition.group()
    for n in range(100):
        partition.publish(chr(200 + n), count=50)
    first = group.names(100)
    assert len(set(first)) == 100
    assert group.names(1) + group.names(60) + group.names(39) == first


def test_weights_of_tenants_are_messages_in_each_round(partition: Partition) -> None:
    group = partition.group(tenant_weights={"a": 2, "c": 0.5})
    for name in "abc":
        partition.publish(name, count=100)
    assert group.names(14) == "aabc" + "aab" + "aabc" + "aab"


@pytest.mark.parametrize("weight", [0.001, 0.3, 1.7, 33.333, 1000])
def test_any_weight_is_kept_to_in_the_long_run(partition: Partition, weight: float) -> None:
    group = partition.group(tenant_weights={"b": weight})
    partition.publish("a", count=50_000)
    partition.publish("b", count=50_000)
    counts = Counter(group.names(20_000))
    assert counts["b"] == pytest.approx(weight * counts["a"], abs=weight + 1)


def test_small_weights_alone_cost_no_more_turns_than_others(partition: Partition) -> None:
    names = [chr(200 + n) for n in range(50)]
    group = partition.group(tenant_weights=dict.fromkeys(names, 0.001))
    for name in names:
        partition.publish(name, count=10)
    assert _calls(lambda: group.take(100)) < 100 * 40
    assert set(Counter(name for _, name, _ in group.taken).values()) == {2}


def test_messages_without_a_tenant_are_one_more_tenant(partition: Partition) -> None:
    group = partition.group()
    partition.publish("", count=100)
    partition.publish("a", count=100)
    counts = Counter(name for _, name, _ in group.take(100))
    assert counts == {"": 50, "a": 50}


def test_a_tenant_that_is_refilled_again_and_again_gets_no_more_turns(
    partition: Partition,
) -> None:
    group = partition.group()
    partition.publish("a", count=1000)
    partition.publish("b", count=1000)
    taken = ""
    for _ in range(300):
        if taken[-1:] in ("", "x"):
            partition.publish("x")
        taken += group.names(1)
    assert max(Counter(taken).values()) - min(Counter(taken).values()) <= 3


def test_a_stream_of_new_tenants_does_not_hold_up_those_who_wait(partition: Partition) -> None:
    group = partition.group()
    partition.publish("a", count=1000)
    for n in range(200):
        for m in range(3):
            partition.publish(f"new-{n}-{m}")
        group.take(3)
        partition.ready.release()
    assert sum(name == "a" for _, name, _ in group.taken) > 5


@pytest.mark.parametrize("already", [0, 2, 3, 4])
def test_a_tenant_has_no_more_out_than_its_cap(partition: Partition, already: int) -> None:
    group = partition.group(tenant_in_flight_max=3)
    group.out[partition.tenants.number("a")] = already
    partition.publish("a", count=10)
    partition.publish("b", count=10)
    taken = Counter(group.names(100))
    assert taken == Counter({"a": max(0, 3 - already), "b": 3})
    assert group.names(100) == ""


def test_a_capped_tenant_goes_on_when_one_of_its_messages_ends(partition: Partition) -> None:
    group = partition.group(tenant_in_flight_max=2)
    partition.publish("a", count=10)
    partition.publish("a", count=10, lane=1)
    assert group.names(100) == "aa"
    for _ in range(9):
        group.end("a")
        assert group.names(100) == "a"
    assert [lane for lane, _, _ in group.taken] == [0] * 10 + [1]
    group.end("b")
    assert group.names(100) == ""


@pytest.mark.parametrize("starvation_ms", [None, 100])
def test_what_arrives_for_a_capped_tenant_costs_nothing(
    partition: Partition, starvation_ms: int | None
) -> None:
    group = partition.group(tenant_in_flight_max=1, starvation_ms=starvation_ms)
    for n in range(200):
        partition.publish("a", now_ms=1000 * n)
        partition.publish("b", now_ms=1000 * n)
        group.take(10, now_ms=1000 * n)
    assert sorted(len(slots) for slots in group.scheduler._parked.values()) == [1, 1]


def test_a_capped_tenant_costs_nothing_while_others_are_served(partition: Partition) -> None:
    group = partition.group(tenant_in_flight_max=5)
    partition.publish("b", count=1000)
    for n in range(500):
        partition.publish(f"t{n}", count=6)
    group.take(10_000)
    assert len(group.taken) == 501 * 5
    group.end("b", 3)
    assert _calls(lambda: group.take(2)) < 100


def test_a_source_that_is_full_goes_on_where_it_stopped(partition: Partition) -> None:
    group = partition.group()
    partition.publish("a", count=5)
    partition.publish("b", count=5)
    for _ in range(20):
        group.budget = 1
        group.take(10)
        assert group.take(10) == []
    assert sorted(offset for _, _, offset in group.taken) == list(range(10))


def test_a_source_that_retries_have_filled_is_offered_nothing_more(partition: Partition) -> None:
    group = partition.group()
    partition.publish(count=5)
    group.waiting[0] = 5
    group.budget = 3
    assert group.take(10) == [(0, "retry", -1)] * 3
    assert group.offers == []


def test_groups_have_each_their_own_way(partition: Partition) -> None:
    one, other = partition.group(), partition.group(lane_weights=(1, 1))
    partition.publish(count=4, lane=1)
    partition.publish(count=4, lane=0)
    assert one.lanes(6) == [0] * 4 + [1] * 2
    assert other.lanes(8) == [0, 1] * 4
    assert one.lanes(8) == [1, 1]
    late = partition.group(floor_offset=3)
    assert [offset for _, _, offset in late.take(100)] == [4, 5, 6, 7, 3]


def test_what_lies_before_the_floor_is_never_offered(partition: Partition) -> None:
    for offset in range(20_000):
        partition.publish(lane=offset % 2)
    group = partition.group(floor_offset=15_001)
    assert _calls(lambda: group.take(2)) < 60
    group.take(10**6)
    assert sorted(offset for _, _, offset in group.taken) == list(range(15_001, 20_000))


def test_deleted_messages_are_not_offered(partition: Partition) -> None:
    group = partition.group()
    partition.publish(count=10)
    partition.publish("a", count=10)
    group.take(2)
    partition.ready.trim(15)
    assert [offset for _, _, offset in group.take(100)] == list(range(15, 20))


def test_a_run_that_grows_is_offered_to_its_end(partition: Partition) -> None:
    group = partition.group()
    for _ in range(10):
        partition.publish(count=3)
        assert len(group.take(100)) == 3
        partition.ready.release()
    assert partition.ready.entry_count == 1


def test_a_matured_message_is_offered_though_all_before_it_was_forgotten(
    partition: Partition,
) -> None:
    group = partition.group()
    for lane in range(20):
        partition.publish("a", count=5, lane=lane)
        group.take(100)
        partition.ready.release()
    partition.ready.add(3, partition.tenants.number("a"), 2, 3, 0)
    assert group.take(100) == [(3, "a", 2)]


def test_new_rules_hold_from_the_next_call_and_repeat_nothing(partition: Partition) -> None:
    group = partition.group(tenant_in_flight_max=1)
    for name in "ab":
        partition.publish(name, count=10)
    assert group.names(100) == "ab"
    group.scheduler.set_policy(SchedulingPolicy(tenant_weights={"a": 3}))
    assert group.names(8) == "aaabaaab"
    group.take(100)
    assert len({offset for _, _, offset in group.taken}) == len(group.taken) == 20


@pytest.mark.parametrize(
    "policy",
    [
        {"lane_weights": (0,)},
        {"lane_weights": (limits.LANE_WEIGHT_MAX + 1,)},
        {"lane_weights": (1,) * (limits.LANES_MAX + 1)},
        {"tenant_weights": {"a": 0}},
        {"tenant_weights": {"a": limits.TENANT_WEIGHT_MAX + 1}},
        {"tenant_weights": {"a": float("nan")}},
        {"starvation_ms": 0},
        {"tenant_in_flight_max": 0},
    ],
)
def test_rules_out_of_bounds_are_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        SchedulingPolicy(**policy)


@pytest.mark.parametrize("weight", [1, limits.LANE_WEIGHT_MAX])
def test_each_lane_may_have_a_weight_up_to_the_bound(weight: int) -> None:
    weights = (weight,) * limits.LANES_MAX
    assert SchedulingPolicy(lane_weights=weights).lane_weights == weights


def test_a_large_run_is_offered_whole(partition: Partition) -> None:
    group = partition.group()
    partition.publish(count=60_000)
    group.take(10_000)
    assert group.offers == [(0, 60_000)]
    assert _calls(lambda: group.take(10_000)) < 60


def test_a_group_that_takes_nothing_costs_nothing(partition: Partition) -> None:
    group = partition.group()
    for offset in range(5000):
        partition.publish(f"t{offset % 100}")
    assert len(group.scheduler._cursors) == 0
    assert len(partition.ready.arrivals) <= 100
    assert len(group.take(10_000)) == 5000


def test_a_group_far_behind_finds_everything(partition: Partition) -> None:
    slow, fast = partition.group(), partition.group()
    slow.take(1)
    partition.publish("early", lane=3)
    for n in range(1, 10_000):
        partition.publish(f"t{n % 50}")
        fast.take(1)
    assert len(partition.ready.arrivals) < 2000
    assert len(slow.take(20_000)) == 10_000


def _calls(action: Any) -> int:
    """Return how many calls of Python functions an action makes."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    gc.disable()  # its callbacks are functions too
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def _crowd(tenant_count: int, policy: SchedulingPolicy) -> Group:
    partition = Partition()
    group = Group(partition, policy)
    for name in range(tenant_count):
        partition.tenants.number(f"t{name}")
    numbers = np.arange(1, tenant_count + 1)
    for frame in range(2):
        offsets = np.arange(frame * tenant_count, (frame + 1) * tenant_count)
        partition.ready.add_rows(offsets, np.zeros(tenant_count, np.uint8), numbers, frame)
    group.take(1)
    return group


@pytest.mark.long
@pytest.mark.parametrize(
    "policy",
    [
        SchedulingPolicy(),
        SchedulingPolicy((8, 3, 1), 100, {"t3": 7, "t5": 0.01}, tenant_in_flight_max=5),
    ],
)
def test_a_message_costs_the_same_among_ten_tenants_and_among_100_000(
    policy: SchedulingPolicy,
) -> None:
    few, many = _crowd(1000, policy), _crowd(100_000, policy)
    assert _calls(lambda: many.take(1000)) <= 1.1 * _calls(lambda: few.take(1000))
    assert _calls(lambda: many.take(1)) <= 40


def test_tenants_without_messages_are_forgotten() -> None:
    group = _crowd(20_000, SchedulingPolicy())
    group.take(40_000)
    ready = group.partition.ready
    for _ in range(4000):
        ready.release()
    assert len(ready) == ready.entry_count == 0
    group.partition.publish("new")
    ready.release()
    assert group.names(10) == "new"


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=5), st.integers(1, 200))
def test_after_any_number_of_turns_each_has_had_its_weight_of_rounds(
    weights: list[int], turns: int
) -> None:
    rounds, served = WeightedShares([0] * len(weights)), [0] * len(weights)
    for slot, weight in enumerate(weights):
        rounds.add(slot, weight)
    for _ in range(turns):
        turn = rounds.next_queue()
        assert turn is not None
        slot, allowance = turn
        count = 1 if len(weights) == 1 else allowance
        served[slot] += count
        rounds.charge(slot, count, weights[slot])
    shares = [count * UNIT / weight for count, weight in zip(served, weights, strict=True)]
    slack = 2 + max(UNIT / weight for weight in weights)
    assert len(weights) == 1 or max(shares) - min(shares) <= slack
