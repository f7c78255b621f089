"""Whose turn it is: a group's places in a partition's ready queues.

Lanes first: strictly by number, or in the ratio of their weights; a message that has waited for
longer than the starvation bound goes before either. Within a lane what waits for a retry, or was
held back, goes first; then tenants in turn, by deficit round robin counted in messages: each round
a tenant may take as many as its weight, and a fraction is carried over. Rounds go on from one call
to the next. A tenant with nothing to offer, or with as many out as it may have, leaves the ring.
(Shreedhar and Varghese, "Efficient fair queueing using deficit round robin", 1995.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from goq.delivery.policy import Policy
from goq.delivery.ready import Lane, Place, Ready, ReadyQueue


class Source(Protocol):
    """Where turns take from; what it hands over is for one receive."""

    def waiting_lanes(self) -> Iterable[int]:
        """Return the lanes in which something waits that goes before fresh messages."""
        ...

    def take_waiting(self, lane: int, messages_max: int) -> int:
        """Hand over such messages; return how many."""
        ...

    def take_fresh(
        self, lane: int, tenant: int, start: int, end: int, messages_max: int
    ) -> tuple[int, int]:
        """Hand over some of a run; return how many, and up to which offset it is dealt with.

        Short of ``end`` only when there is no more room, here or in the whole receive.
        """
        ...

    def is_full(self) -> bool:
        """Whether the receive takes no more."""
        ...

    def in_flight(self, tenant: int) -> int:
        """Return how many messages of a tenant are out."""
        ...


class _Ring:
    """The tenants of a lane that may have something for the group, in the order of their turns."""

    def __init__(self) -> None:
        self.tenants: deque[int] = deque()
        self.members: set[int] = set()
        self.capped: set[int] = set()
        self.credit = 0.0
        """What is left of the first tenant's turn."""
        self.carried: dict[int, float] = {}
        self.seen = 0

    def catch_up(self, lane: Lane) -> None:
        """Let the tenants join that got messages since the last time."""
        if self.seen == lane.arrivals_end:
            return
        if self.seen < lane.arrivals_first:
            for tenant in lane.queues:
                self.join(tenant)
        else:
            for tenant in lane.arrivals[self.seen - lane.arrivals_first :]:
                self.join(tenant)
        self.seen = lane.arrivals_end
        lane.arrivals_read = max(lane.arrivals_read, self.seen)

    def join(self, tenant: int) -> None:
        if tenant not in self.members and tenant not in self.capped:
            self.members.add(tenant)
            self.tenants.append(tenant)

    def leave(self) -> int:
        """Take the first out."""
        tenant = self.tenants.popleft()
        self.members.discard(tenant)
        self.carried.pop(tenant, None)
        self.credit = 0.0
        return tenant

    def pass_on(self) -> None:
        """End the first's turn; what it has left counts in its next."""
        if 0 < self.credit < 1:
            self.carried[self.tenants[0]] = self.credit
        self.credit = 0.0
        self.tenants.rotate(-1)


class Turns:
    """One group's places in the ready queues, and whose turn is next."""

    def __init__(self, ready: Ready, policy: Policy) -> None:
        self.places: dict[tuple[int, int], Place] = {}
        self._ready = ready
        self._policy = policy
        self._rings: dict[int, _Ring] = {}
        self._lane_credit: dict[int, int] = {}

    def take(self, source: Source, now_ms: int, messages_max: int) -> int:
        """Let the source hand over up to ``messages_max`` messages; return how many it did."""
        left = messages_max
        if self._policy.starvation_ms is not None:
            left -= self._take_starving(source, now_ms - self._policy.starvation_ms, left)
        if self._policy.lane_weights is None:
            for lane in self._lanes(source):
                if left <= 0 or source.is_full():
                    break
                left -= self._take_lane(source, lane, left)
        else:
            left -= self._take_by_weight(source, self._policy.lane_weights, left)
        return messages_max - left

    def room(self, source: Source, tenant: int, messages_max: int) -> int:
        """Return how many of so many messages a tenant may take."""
        return max(0, self._under_cap(source, tenant, messages_max)[0])

    def tenant_freed(self, tenant: int) -> None:
        """A message of a tenant is no longer out: it may have its turn again."""
        for ring in self._rings.values():
            if tenant in ring.capped:
                ring.capped.discard(tenant)
                ring.join(tenant)

    def _lanes(self, source: Source) -> list[int]:
        return sorted({*self._ready.lanes, *source.waiting_lanes()})

    def _take_by_weight(self, source: Source, weights: tuple[int, ...], messages_max: int) -> int:
        """Give each lane its weight of messages in turn; what a lane leaves is for the others."""
        left = messages_max
        idle = 0
        lanes = self._lanes(source)
        while left > 0 and not source.is_full() and idle < 2 and lanes:
            progress = 0
            for lane in lanes:
                credit = self._lane_credit.get(lane, 0)
                if credit <= 0:
                    continue
                taken = self._take_lane(source, lane, min(left, credit))
                progress += taken
                left -= taken
                if left <= 0 or source.is_full():
                    self._lane_credit[lane] = credit - taken
                    return messages_max - left
                self._lane_credit[lane] = 0
            for lane in lanes:
                self._lane_credit[lane] = weights[lane] if lane < len(weights) else 1
            idle = 0 if progress else idle + 1
        return messages_max - left

    def _take_lane(self, source: Source, number: int, messages_max: int) -> int:
        left = messages_max - source.take_waiting(number, messages_max)
        lane = self._ready.lanes.get(number)
        if lane is None or left <= 0 or source.is_full():
            return messages_max - left
        ring = self._rings.get(number)
        if ring is None:
            ring = self._rings[number] = _Ring()
        ring.catch_up(lane)
        while left > 0 and ring.tenants and not source.is_full():
            left -= self._take_turn(source, lane, ring, left)
        return messages_max - left

    def _take_turn(self, source: Source, lane: Lane, ring: _Ring, messages_max: int) -> int:
        """Let the first tenant of the ring take what is left of its turn."""
        tenant = ring.tenants[0]
        queue = lane.queues[tenant]
        if len(ring.tenants) == 1:
            room = messages_max  # nobody to share with
        else:
            if ring.credit < 1:
                ring.credit += self._weight(tenant) + ring.carried.pop(tenant, 0.0)
            room = min(messages_max, int(ring.credit))
            if room == 0:
                ring.pass_on()
                return 0
        room, is_capped = self._under_cap(source, tenant, room)
        if room <= 0:
            ring.capped.add(ring.leave())
            return 0
        taken = self._take_queue(source, queue, room)
        if self._is_done(queue):
            ring.leave()
        elif taken < room or source.is_full():
            ring.credit = max(0.0, ring.credit - taken)
        elif is_capped:
            ring.capped.add(ring.leave())
        elif len(ring.tenants) > 1:
            ring.credit -= taken
            if ring.credit < 1:
                ring.pass_on()
        return taken

    def _weight(self, tenant: int) -> float:
        weights = self._policy.tenant_weights
        name = self._ready.tenants.name(tenant) if weights else None
        return 1.0 if name is None else weights.get(name, 1.0)

    def _under_cap(self, source: Source, tenant: int, room: int) -> tuple[int, bool]:
        """Return what a tenant may take, and whether that is all until some comes back."""
        cap = self._policy.tenant_in_flight_max
        if cap is None or not tenant:
            return room, False
        left = cap - source.in_flight(tenant)
        return min(room, left), left <= room

    def _take_queue(self, source: Source, queue: ReadyQueue, messages_max: int) -> int:
        left = messages_max
        number, done = self._place(queue)
        while left > 0 and number < queue.end and not source.is_full():
            start, end = queue.run(number)
            if start + done < end:
                taken, reached = source.take_fresh(
                    queue.lane, queue.tenant, start + done, end, left
                )
                left -= taken
                done = reached - start
            if start + done < end or number + 1 == queue.end:  # the last may still grow
                break
            number, done = number + 1, 0
        self.places[queue.lane, queue.tenant] = (number, done)
        return messages_max - left

    def _place(self, queue: ReadyQueue) -> Place:
        number, done = self.places.get((queue.lane, queue.tenant), (queue.first, 0))
        return (number, done) if number >= queue.first else (queue.first, 0)

    def _is_done(self, queue: ReadyQueue) -> bool:
        number, done = self._place(queue)
        if number >= queue.end:
            return True
        start, end = queue.run(number)
        return number + 1 == queue.end and start + done >= end

    def _take_starving(self, source: Source, since_ms: int, messages_max: int) -> int:
        """Let messages go first that have been ready since then, the oldest first."""
        left = messages_max
        while left > 0 and not source.is_full():
            oldest: ReadyQueue | None = None
            oldest_ms = since_ms
            for lane in self._ready.lanes.values():
                for queue in lane.queues.values():
                    if not self._is_done(queue):
                        ready_ms = queue.ready_ms(self._place(queue)[0])
                        if ready_ms <= oldest_ms:
                            oldest, oldest_ms = queue, ready_ms
            if oldest is None:
                break
            before = self._place(oldest)
            room, _ = self._under_cap(source, oldest.tenant, 1)
            if room <= 0:
                break
            left -= self._take_queue(source, oldest, room)
            if self._place(oldest) == before:
                break
        return messages_max - left
