"""A naive twin of ready queues and turns: lists of messages, and a referee for each group.

The referee is the source that ``FairScheduler`` offers messages to. It knows from its lists what
should
be offered and checks each offer: the right messages of the queue, each once, the lane that is due,
no tenant passed over for more than a round, no cap overrun; and that a call which returns with
less than it was asked for left nothing behind. It takes, skips and refuses at random.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from goq.delivery.queues.fair_scheduler import LEFT, FairScheduler, SingleTaker
from goq.delivery.queues.policy import SchedulingPolicy, TenantNumbers
from goq.delivery.queues.ready_queues import ReadyQueues

TENANTS = ["", "a", "b", "c", "d"]


class Entry(NamedTuple):
    offset: int
    ready_ms: int


class Referee:
    """One group: a source with opinions."""

    def __init__(
        self, world: World, policy: SchedulingPolicy, floor: int, rng: random.Random
    ) -> None:
        self.world, self.policy, self.rng, self.floor = world, policy, rng, floor
        self.scheduler = FairScheduler(world.ready, world.tenants, policy, floor_offset=floor)
        self.next_index: Counter[tuple[int, int]] = Counter()
        self.skipped: set[int] = set()
        self.out: Counter[int] = Counter()
        self.waiting: Counter[int] = Counter()
        self.budget = 0
        self.passed_over: dict[tuple[int, int], Counter[int]] = {}

    def rest(self, key: tuple[int, int]) -> list[Entry]:
        entries = self.world.queues[key][self.next_index[key] :]
        return [e for e in entries if e.offset >= max(self.floor, self.world.start)]

    def is_capped(self, tenant: int) -> bool:
        cap = self.policy.tenant_in_flight_max
        return cap is not None and bool(tenant) and self.out[tenant] >= cap

    def offerable(self) -> dict[tuple[int, int], list[Entry]]:
        """Return by queue what would be handed over if it were offered now."""
        found = {}
        for key in self.world.queues:
            entries = [e for e in self.rest(key) if e.offset not in self.skipped]
            if entries and not self.is_capped(key[1]):
                found[key] = entries
        return found

    def take(self, messages_max: int, budget: int) -> int:
        self.budget = budget
        known = self.offerable()
        self.passed_over = {key: self.passed_over.get(key, Counter()) for key in known}
        taken = self.scheduler.take(self, self.world.now_ms, messages_max)
        assert taken == budget - self.budget <= messages_max
        if taken < messages_max and self.budget:
            assert not self.offerable(), "something was left behind"
            assert not any(self.waiting.values())
        return taken

    def end_one(self, tenant: int) -> None:
        if self.out[tenant]:
            self.out[tenant] -= 1
            self.scheduler.on_tenant_freed(tenant)

    def waiting_lanes(self) -> Iterable[int]:
        return [lane for lane, count in self.waiting.items() if count]

    def take_waiting(self, lane: int, messages_max: int) -> int:
        assert messages_max > 0
        if self.waiting[lane]:  # whether there are more is found out by asking
            self._check_lane(lane)
        count = min(messages_max, self.waiting[lane], self.budget)
        self.waiting[lane] -= count
        self.budget -= count
        return count

    def take_fresh(
        self, lane: int, tenant: int, start: int, end: int, messages_max: int
    ) -> tuple[int, int]:
        assert start < end
        assert messages_max > 0
        assert not self.is_capped(tenant)
        key = (lane, tenant)
        expected = [e.offset for e in self.rest(key)[: end - start]]
        assert expected == list(range(start, end)), (expected, start, end)
        handed = 0
        for offset in range(start, end):
            is_skipped = offset in self.skipped
            if handed == messages_max and not (is_skipped and self.rng.random() < 0.5):
                return handed, offset
            if not is_skipped:
                if not self.budget:
                    return handed, offset
                self._hand_over(key, offset)
                handed += 1
            while self.world.queues[key][self.next_index[key]].offset != offset:
                self.next_index[key] += 1
            self.next_index[key] += 1
        return handed, end

    def single_taker(self) -> SingleTaker | None:
        return self._take_single if self.rng.random() < 0.7 else None

    def _take_single(self, lane: int, tenant: int, offset: int) -> int:
        if self.rng.random() < 0.2:
            return LEFT
        handed, reached = self.take_fresh(lane, tenant, offset, offset + 1, 1)
        return LEFT if reached == offset else handed

    def is_full(self) -> bool:
        return not self.budget

    def in_flight(self, tenant: int) -> int:
        assert self.policy.tenant_in_flight_max is not None
        return self.out[tenant]

    def _hand_over(self, key: tuple[int, int], offset: int) -> None:
        offerable = self.offerable()
        entry = offerable[key][0]
        assert entry.offset == offset
        bound_ms = self.policy.starvation_ms
        if bound_ms is None:
            self._check_lane(key[0])
            self._check_round(key, offerable)
        elif self.world.was_set_back:
            pass  # who is oldest is then known only roughly
        elif entry.ready_ms >= self.world.now_ms - bound_ms or entry.ready_ms > min(
            entries[0].ready_ms for entries in offerable.values()
        ):
            self._check_lane(key[0])
        self.out[key[1]] += 1
        self.budget -= 1
        if self.is_capped(key[1]):  # out of the rounds, it comes back at their end
            self.passed_over = {k: v for k, v in self.passed_over.items() if k[1] != key[1]}

    def _check_lane(self, lane: int) -> None:
        if self.policy.lane_weights is None:
            lanes = {key[0] for key in self.offerable()} | set(self.waiting_lanes())
            assert lane == min(lanes), (lane, lanes)

    def _check_round(
        self, served: tuple[int, int], offerable: dict[tuple[int, int], list[Entry]]
    ) -> None:
        self.passed_over.pop(served, None)
        for key, counts in self.passed_over.items():
            if key[0] == served[0] and key in offerable:
                counts[served[1]] += 1
                rounds = math.ceil(1 / min(1, self._weight(key[1])))
                allowed = rounds * math.ceil(self._weight(served[1]))
                assert counts[served[1]] <= allowed, (key, served, counts, allowed)
        if served in offerable:
            self.passed_over[served] = Counter()

    def _weight(self, tenant: int) -> float:
        return self.policy.tenant_weights.get(self.world.tenants.name(tenant), 1)


class World:
    """A partition with its groups; every step is done to both."""

    def __init__(self) -> None:
        self.tenants = TenantNumbers()
        self.numbers = [self.tenants.number(name) for name in TENANTS]
        self.ready = ReadyQueues()
        self.queues: dict[tuple[int, int], list[Entry]] = defaultdict(list)
        self.groups: list[Referee] = []
        self.delayed: list[int] = []
        self.start = self.end = 0
        self.now_ms = 1_000_000
        self.was_set_back = False

    def publish(self, rows: list[tuple[int, int]], rng: random.Random) -> None:
        """Rows of lane and tenant; each tenth message is delayed."""
        kept = []
        for lane, tenant in rows:
            if rng.random() < 0.1:
                self.delayed.append(self.end)
            else:
                kept.append((self.end, lane, tenant))
            self.end += 1
        self.enter(kept)

    def publish_run(self, lane: int, tenant: int, count: int) -> None:
        self.ready.add(lane, tenant, self.end, self.end + count, self.now_ms)
        for offset in range(self.end, self.end + count):
            self.queues[lane, tenant].append(Entry(offset, self.now_ms))
        self.end += count

    def mature(self, lane: int, tenant: int, count: int, rng: random.Random) -> None:
        rng.shuffle(self.delayed)
        self.enter([(offset, lane, tenant) for offset in self.delayed[:count]])
        del self.delayed[:count]

    def enter(self, rows: list[tuple[int, int, int]]) -> None:
        for offset, lane, tenant in rows:
            self.queues[lane, tenant].append(Entry(offset, self.now_ms))
        offsets, lanes, tenants = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        self.ready.add_rows(offsets, lanes.astype(np.uint8), tenants.astype(np.uint32), self.now_ms)

    def join(self, policy: SchedulingPolicy, rng: random.Random) -> None:
        floor = rng.randint(self.ready.complete_from, max(self.end, self.ready.complete_from))
        self.groups.append(Referee(self, policy, floor, rng))

    def leave(self, group: Referee) -> None:
        group.scheduler.close()
        self.groups.remove(group)

    def trim(self, start: int) -> None:
        self.start = max(self.start, start)
        self.ready.trim(start)

    def check(self) -> None:
        kept = [queue for queue in self.ready.slots if queue is not None]
        assert sum(len(queue.runs) for queue in kept) == self.ready.entry_count
        assert sorted(map(id, kept)) == sorted(map(id, self.ready))

    def drain(self) -> None:
        """Every group gets all there is, and then nothing is kept but one run without a tenant."""
        for group in self.groups:
            group.waiting.clear()
            while group.take(7, 1000) or any(group.out.values()):
                for tenant in self.numbers:
                    group.end_one(tenant)
            assert all(not group.rest(key) or group.skipped for key in self.queues)
        for _ in range(3 * (len(self.groups) + 1)):
            self.ready.release()
        assert all(queue.tenant == 0 for queue in self.ready)
        assert all(len(queue.runs) <= 1 for queue in self.ready)


def step(world: World, rng: random.Random) -> None:
    """Do one thing, chosen at random."""
    roll = rng.random()
    lane, tenant = rng.choice([0, 0, 1, 2, 7]), rng.choice(world.numbers)
    if roll < 0.2:
        shape = rng.choice([1, 4, 12])
        rows = [(rng.choice([0, 1, 2, 7]), rng.choice(world.numbers)) for _ in range(shape)]
        world.publish(rows, rng)
    elif roll < 0.27:
        world.publish_run(lane, tenant, rng.choice([1, 3, 9]))
    elif roll < 0.32 and world.delayed:
        world.mature(lane, tenant, rng.randint(1, 3), rng)
    elif roll < 0.4:
        step_ms = rng.choice([100, 100, 500, 2000] if rng.random() < 0.95 else [-300])
        world.now_ms += step_ms
        world.was_set_back |= step_ms < 0
    elif roll < 0.43:
        world.trim(rng.randint(world.start, min(world.end, world.start + 6)))
    elif roll < 0.55:
        world.ready.release()
    elif roll < 0.57 and len(world.groups) < 3:
        world.join(random_policy(rng), rng)
    elif roll < 0.58 and world.groups:
        world.leave(rng.choice(world.groups))
    elif world.groups:
        _step_of_group(rng.choice(world.groups), rng)


def _step_of_group(group: Referee, rng: random.Random) -> None:
    roll, world = rng.random(), group.world
    if roll < 0.1:
        group.skipped |= {rng.randint(world.start, world.end) for _ in range(3)}
    elif roll < 0.15:
        group.waiting[rng.choice([0, 1, 3])] += rng.randint(1, 3)
    elif roll < 0.35:
        group.end_one(rng.choice(world.numbers))
    elif roll < 0.37:
        group.policy = random_policy(rng)
        group.passed_over = {}
        group.scheduler.set_policy(group.policy)
    else:
        group.take(rng.choice([1, 1, 2, 5, 20]), rng.choice([0, 1, 3, 1000]))


def random_policy(rng: random.Random) -> SchedulingPolicy:
    return SchedulingPolicy(
        lane_weights=rng.choice([None, None, (), (8, 3, 1)]),
        starvation_ms=rng.choice([None, None, 500, 3000]),
        tenant_weights=rng.choice([{}, {"a": 3.0, "b": 0.4, "": 1.5}]),
        tenant_in_flight_max=rng.choice([None, None, 1, 4]),
    )
