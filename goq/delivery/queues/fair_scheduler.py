"""What a group is offered next: lanes first, then tenants, each in its turn.

**Lanes.** Strict: lane 0 first, another only when no lower one has anything. With weights: see
:mod:`goq.delivery.queues.weighted_sharing`. Retries and released messages of a lane come before its
fresh ones and count in its share.

**TenantNumbers** of a lane share it by :mod:`goq.delivery.queues.weighted_sharing`. A tenant at
its cap
leaves the rounds until one of its messages ends.

**Starvation.** A fresh message that has been ready for longer than the bound goes next, before
all lanes and tenants, the oldest first. But of those that are over the bound and the rest each
gets every other message while both have something: otherwise, after an hour without consumers,
an urgent message would wait behind the hour's whole backlog. So the promise is: as long as
consumers take twice as many messages as come over the bound, none waits longer than the bound
and the taking of those that came over it before; and however slow they are, half of what they
take is in the usual order, and nothing waits for ever. What went ahead this way is not counted in
shares and rounds. Ages are as exact as :mod:`goq.delivery.queues.ready_queue` tells them.

All this is kept between calls: many calls for one message give what one call for many would.
Nothing is skipped: a position moves over a message only when the group said that it is dealt with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from goq.delivery.queues.cursors import IS_ACTIVE, IS_PARKED, Cursors
from goq.delivery.queues.policy import NO_TENANT, SchedulingPolicy, TenantNumbers
from goq.delivery.queues.ready_queues import ReadyQueues
from goq.delivery.queues.starvation_bound import StarvationBound
from goq.delivery.queues.weighted_sharing import (
    UNIT,
    UNLIMITED,
    LaneShares,
    WeightedSharing,
    lowest,
)


class MessageTaker(Protocol):
    """The group: what it has outstanding, and what it makes of the messages it is offered."""

    def waiting_lanes(self) -> Iterable[int]:
        """Return the lanes that have due retries or released messages now."""

    def take_waiting(self, lane: int, messages_max: int) -> int:
        """Hand over such messages; return how many. Fewer than asked: there are no more now."""

    def take_fresh(
        self, lane: int, tenant: int, start: int, end: int, messages_max: int
    ) -> tuple[int, int]:
        """Hand over of ``[start, end)`` what may be; return how many, and up to where.

        Everything before the offset returned is handed over or never to be offered again (taken,
        gone, or held back and released later). It is ``end`` unless ``messages_max`` was reached
        or the source is full.
        """

    def is_full(self) -> bool:
        """Return whether this call can take no more: its bytes are spent, data is missing."""

    def in_flight(self, tenant: int) -> int:
        """Return how many messages of a tenant are out; asked only if there is a cap."""


_NEVER_READ = -1


class FairScheduler:
    """One group's way through the ready queues of a partition, from their beginnings.

    Nothing before ``floor_offset`` is offered: the group is done with it.
    """

    def __init__(
        self,
        ready: ReadyQueues,
        tenants: TenantNumbers,
        policy: SchedulingPolicy,
        *,
        floor_offset: int = 0,
    ) -> None:
        self._ready = ready
        self._tenants = tenants
        self._places = Cursors(ready, floor_offset)
        self._is_full = False
        self._waiting = 0
        self.set_policy(policy)
        ready.join(self)

    def close(self) -> None:
        """Let the queues go that are kept for this group."""
        self._ready.leave(self)

    def set_policy(self, policy: SchedulingPolicy) -> None:
        """Follow other rules from now on; positions stay, turns begin anew."""
        self._policy = policy
        self._weights = {name: round(w * UNIT) for name, w in policy.tenant_weights.items()}
        self._cap = (
            UNLIMITED if policy.tenant_in_flight_max is None else policy.tenant_in_flight_max
        )
        self._shares = None if policy.lane_weights is None else LaneShares(policy.lane_weights)
        self._aging = StarvationBound(self._places)
        self._owed = 0
        self._rounds: dict[int, WeightedSharing] = {}
        self._lanes = 0
        self._parked: dict[int, list[int]] = {}
        self._places.flags[:] = bytes(len(self._places))
        self._arrival = _NEVER_READ

    def take(self, source: MessageTaker, now_ms: int, messages_max: int) -> int:
        """Offer messages to the group until it has ``messages_max`` or there are no more.

        Returns how many it took.
        """
        self._catch_up()
        self._is_full = source.is_full()
        self._waiting = 0
        for lane in source.waiting_lanes():
            self._waiting |= 1 << lane
        left = messages_max
        while left > 0 and not self._is_full:
            starving = self._starving(now_ms)
            if starving is None:
                self._owed = 0
            if starving is not None and not self._owed:
                handed = self._owed = self._offer_starving(source, starving, (left + 1) // 2)
            elif self._lanes | self._waiting:
                quota = left if starving is None else min(left, self._owed)
                handed = self._offer_lane(source, quota)
                self._owed = max(0, self._owed - handed)
            elif starving is not None:
                self._owed = handed = 0
            else:
                break
            left -= handed
        return messages_max - left

    def room(self, source: MessageTaker, tenant: int, messages_max: int) -> int:
        """Return how many of so many messages a tenant may have out more."""
        return max(0, min(messages_max, self._under_cap(source, tenant)))

    def next_lane(self) -> int | None:
        """Return the most urgent lane that may have fresh messages, None if none has."""
        self._catch_up()
        return lowest(self._lanes) if self._lanes else None

    def tenant_freed(self, tenant: int) -> None:
        """Offer a tenant's messages again: one that it had in flight has ended."""
        for slot in self._parked.pop(tenant, ()):
            self._places.flags[slot] &= ~IS_PARKED
            self._activate(slot)

    def oldest_ready_ms(self) -> int | None:
        """Return when the message that waited longest for its first offer became ready.

        Looks at every queue: for people and metrics. None if there is none.
        """
        self._catch_up()
        heads = ((slot, self._places.head(slot)) for slot in range(len(self._places)))
        times = (self._places.ready_ms(slot, head[0])[0] for slot, head in heads if head)
        return min(times, default=None)

    def passed(self, slot: int) -> int:
        """Return the number of the first run of a queue that this group still needs."""
        return self._places.passed(slot)

    def forget(self, slot: int) -> None:
        """Forget a queue: the slot may become another's."""
        self._places.forget(slot)

    def _catch_up(self) -> None:
        arrivals = self._ready.arrivals
        self._places.floor_offset = max(self._places.floor_offset, self._ready.start_offset)
        if self._arrival == arrivals.end:
            return
        self._places.grow(len(self._ready.slots))
        slots = arrivals.since(self._arrival)
        self._arrival = arrivals.end
        for slot in range(len(self._places)) if slots is None else slots:
            self._activate(slot)

    def _activate(self, slot: int) -> None:
        """Let a queue take part, if it does not yet; it leaves if it has nothing."""
        queue = self._ready.slots[slot]
        if queue is None:
            return
        if not self._places.flags[slot] & (IS_ACTIVE | IS_PARKED):
            rounds = self._rounds.get(queue.lane)
            if rounds is None:
                rounds = self._rounds[queue.lane] = WeightedSharing(self._places.credits)
            self._places.flags[slot] |= IS_ACTIVE
            self._lanes |= 1 << queue.lane
            rounds.enter(slot, self._weight(queue.tenant) if self._weights else UNIT)
        if self._policy.starvation_ms is not None:
            self._aging.enter(slot)

    def _starving(self, now_ms: int) -> int | None:
        bound_ms = self._policy.starvation_ms
        if bound_ms is None or (len(self._aging) <= 1 and not self._waiting):
            return None
        return self._aging.oldest(now_ms - bound_ms)

    def _offer_starving(self, source: MessageTaker, slot: int, messages_max: int) -> int:
        queue, head = self._ready.slots[slot], self._places.head(slot)
        assert queue is not None
        assert head is not None
        room = self._under_cap(source, queue.tenant)
        if room <= 0:
            self._aging.drop_oldest()
            self._park(queue.tenant, slot)
            return 0
        start, end = head
        end = min(end, self._places.ready_ms(slot, start)[1])
        messages_max = min(messages_max, room)
        handed, dealt_to = source.take_fresh(queue.lane, queue.tenant, start, end, messages_max)
        self._places.move(slot, dealt_to)
        self._is_full = dealt_to < end and handed < messages_max
        return handed

    def _offer_lane(self, source: MessageTaker, messages_max: int) -> int:
        lane = lowest(self._lanes | self._waiting)
        if self._shares is not None:
            lane, share = self._shares.choose(self._lanes | self._waiting)
            messages_max = min(messages_max, share)
        handed = 0
        if self._waiting >> lane & 1:
            handed = source.take_waiting(lane, messages_max)
            if handed < messages_max:
                self._waiting &= ~(1 << lane)
                self._is_full = source.is_full()
        if self._lanes >> lane & 1:
            rounds = self._rounds[lane]
            while handed < messages_max and not self._is_full:
                turn = rounds.turn()
                if turn is None:
                    self._lanes &= ~(1 << lane)
                    break
                handed += self._offer_turn(source, rounds, *turn, messages_max - handed)
        if self._shares is not None:
            self._shares.charge(lane, handed)
        return handed

    def _offer_turn(
        self,
        source: MessageTaker,
        rounds: WeightedSharing,
        slot: int,
        allowance: int,
        messages_max: int,
    ) -> int:
        """Offer messages of the queue whose turn it is; return how many were taken."""
        places, queue = self._places, self._ready.slots[slot]
        assert queue is not None
        lane, tenant = queue.lane, queue.tenant
        weight = self._weight(tenant) if self._weights else UNIT
        room = self._under_cap(source, tenant)
        quota = min(allowance, messages_max, room)
        handed, is_empty = 0, False
        while handed < quota and not self._is_full:
            head = places.head(slot)
            if head is None:
                is_empty = True
                break
            start, end = head
            count, dealt_to = source.take_fresh(lane, tenant, start, end, quota - handed)
            handed += count
            self._is_full = dealt_to < end and handed < quota
            if is_empty := places.move(slot, dealt_to):
                break
        if is_empty:
            rounds.leave()
            places.flags[slot] &= ~IS_ACTIVE
        elif handed >= room:
            rounds.leave()
            places.flags[slot] = places.flags[slot] & ~IS_ACTIVE | IS_PARKED
            self._park(tenant, slot)
        else:
            rounds.charge(slot, handed, weight)
        return handed

    def _park(self, tenant: int, slot: int) -> None:
        slots = self._parked.setdefault(tenant, [])
        if slot not in slots:  # it may be here for its age already
            slots.append(slot)

    def _under_cap(self, source: MessageTaker, tenant: int) -> int:
        if self._cap == UNLIMITED or tenant == NO_TENANT:
            return UNLIMITED
        return self._cap - source.in_flight(tenant)

    def _weight(self, tenant: int) -> int:
        return self._weights.get(self._tenants.name(tenant), UNIT)
