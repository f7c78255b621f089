"""The order in which a group is offered messages: lanes first, then the tenants of a lane.

**Lanes.** Strict priority: lane 0 first, another only when no lower lane has messages. With
weights: :class:`~goq.delivery.queues.weighted_shares.LaneShares`. Retries and released messages of
a lane come before its fresh ones and count in its share.

**Tenants** of a lane share it by :class:`~goq.delivery.queues.weighted_shares.WeightedShares`. A
tenant at its cap gets no turn until one of its messages ends.

**Starvation.** A fresh message that has been ready for longer than the bound goes next, before all
lanes and tenants, the oldest first. While both kinds exist, messages over the bound and the others
alternate. Otherwise, after an hour without consumers, an urgent message would wait behind the
hour's whole backlog. So the promise is: as long as consumers take twice as many messages as pass
the bound, none waits longer than the bound plus the time to take those that passed it before.
However slow consumers are, half of what they take is in the usual order, and no message waits for
ever. Messages that went ahead this way do not count in shares and rounds. Ages are as exact as
:class:`~goq.delivery.queues.ready_queue.ReadyTimes`.

All of this state stays between calls: many calls for one message give what one call for many would.
No message is skipped: a cursor passes a message only after the receive has dealt with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol

from goq.delivery.queues.policy import NO_TENANT, SchedulingPolicy, TenantNumbers
from goq.delivery.queues.ready_queues import IS_ACTIVE, IS_PARKED, Cursors, ReadyQueues
from goq.delivery.queues.starvation_bound import StarvationBound
from goq.delivery.queues.weighted_shares import (
    UNIT,
    UNLIMITED,
    LaneShares,
    WeightedShares,
    lowest_lane,
)

_NEVER_READ = -1


TAKEN, PASSED, LEFT = 1, 0, -1
SingleTaker = Callable[[int, int, int], int]
"""Takes one fresh message by lane, tenant and offset: ``TAKEN``; ``PASSED``, it is never to be
offered again; or ``LEFT``, it is to be offered by ``take_fresh``, which may find the receive full.
"""


class InFlightCount(Protocol):
    """The messages that a group has in flight, with those of a receive."""

    def in_flight(self, tenant: int) -> int:
        """Return how many messages of a tenant are in flight; asked only if there is a cap."""


class MessageTaker(InFlightCount, Protocol):
    """One receive of a group: it takes messages that the scheduler offers, or passes over them."""

    def waiting_lanes(self) -> Iterable[int]:
        """Return the lanes that have due retries or released messages now."""

    def take_waiting(self, lane: int, messages_max: int) -> int:
        """Take due retries and released messages of a lane; return how many.

        Fewer than asked for means that there are no more now.
        """

    def take_fresh(
        self, lane: int, tenant: int, start: int, end: int, messages_max: int
    ) -> tuple[int, int]:
        """Take fresh messages of ``[start, end)``; return how many, and the offset reached.

        Everything before that offset is taken or never to be offered again (taken earlier, gone, or
        held back and released later). It is ``end`` unless ``messages_max`` was reached or the
        receive is full.
        """

    def single_taker(self) -> SingleTaker | None:
        """Return what takes single messages at less cost than ``take_fresh``; None if nothing.

        It is asked for only where tenants have no cap.
        """

    def is_full(self) -> bool:
        """Return whether this receive can take no more: its bytes are spent, or data is missing."""


class FairScheduler:
    """One group's way through the ready queues of a partition, from their beginnings.

    Offsets below ``floor_offset`` are not offered: the group is done with them.
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
        self._cursors = Cursors(ready, floor_offset)
        self._is_full = False
        self._waiting = 0
        self.set_policy(policy)
        ready.add_reader(self)

    def close(self) -> None:
        """Stop reading: the queues keep nothing more for this group."""
        self._ready.remove_reader(self)

    def set_policy(self, policy: SchedulingPolicy) -> None:
        """Follow another policy from now on; cursors stay, turns begin anew."""
        self._policy = policy
        self._weights = {name: round(w * UNIT) for name, w in policy.tenant_weights.items()}
        self._cap = (
            UNLIMITED if policy.tenant_in_flight_max is None else policy.tenant_in_flight_max
        )
        self._shares = None if policy.lane_weights is None else LaneShares(policy.lane_weights)
        self._starvation = StarvationBound(self._cursors)
        self._owed = 0
        self._sharing: dict[int, WeightedShares] = {}
        self._lanes = 0
        self._parked: dict[int, list[int]] = {}
        self._cursors.flags[:] = bytes(len(self._cursors))
        self._arrival = _NEVER_READ
        self._arrived: Iterator[int] | None = None  # queues still to be looked at

    def take(self, taker: MessageTaker, now_ms: int, messages_max: int) -> int:
        """Offer messages until ``messages_max`` are taken or there are no more; return how many."""
        self._read_arrivals()
        self._is_full = taker.is_full()
        self._waiting = 0
        for lane in taker.waiting_lanes():
            self._waiting |= 1 << lane
        left = messages_max
        while left > 0 and not self._is_full:
            starving = self._starving(now_ms)
            if starving is None:
                self._owed = 0
            if starving is not None and not self._owed:
                taken = self._owed = self._offer_starving(taker, starving, (left + 1) // 2)
            elif self._lanes | self._waiting:
                quota = left if starving is None else min(left, self._owed)
                taken = self._offer_lane(taker, quota)
                self._owed = max(0, self._owed - taken)
            elif starving is not None:
                self._owed = taken = 0
            else:
                break
            left -= taken
        return messages_max - left

    def room(self, count: InFlightCount, tenant: int, messages_max: int) -> int:
        """Return how many of so many messages a tenant may have in flight besides."""
        return max(0, min(messages_max, self._under_cap(count, tenant)))

    def next_lane(self) -> int | None:
        """Return the most urgent lane that may have fresh messages, None if there is none."""
        self._read_arrivals()
        return lowest_lane(self._lanes) if self._lanes else None

    @property
    def has_parked(self) -> bool:
        """Whether any tenant's messages wait until one that it has in flight ends."""
        return bool(self._parked)

    def on_tenant_freed(self, tenant: int) -> None:
        """Offer a tenant's messages again: one that it had in flight has ended."""
        for slot in self._parked.pop(tenant, ()):
            self._cursors.flags[slot] &= ~IS_PARKED
            self._activate(slot)

    def oldest_ready_ms(self) -> int | None:
        """Return when the message that waited longest for its first offer became ready.

        Looks at every queue: for views and metrics. None if there is no message.
        """
        self._read_arrivals()
        heads = ((slot, self._cursors.head(slot)) for slot in range(len(self._cursors)))
        times = (self._cursors.ready_ms(slot, head[0])[0] for slot, head in heads if head)
        return min(times, default=None)

    @property
    def queue_count(self) -> int:
        """The number of queues that :meth:`oldest_ready_ms` and :meth:`waiting` look at."""
        return len(self._ready)

    def waiting(self) -> Iterator[tuple[int, int, int]]:
        """Yield lane, tenant and number of the messages of each queue, not offered yet.

        Looks at every queue: for views.
        """
        self._read_arrivals()
        for slot in range(len(self._cursors)):
            queue, count = self._ready.slots[slot], self._cursors.waiting_count(slot)
            if queue is not None and count:
                yield queue.lane, queue.tenant, count

    def first_needed_run(self, slot: int) -> int:
        """Return the number of the first run of a queue that this group still needs."""
        return self._cursors.first_needed_run(slot)

    def on_queue_removed(self, slot: int) -> None:
        """Forget a queue: another queue may get its slot."""
        self._cursors.reset(slot)

    def catch_up(self, queues_max: int) -> bool:
        """Look at up to ``queues_max`` queues with new messages; return whether that was all."""
        is_new = self._arrived is None
        if self._arrived is None:
            arrivals = self._ready.arrivals
            if self._arrival == arrivals.end:
                return True
            self._cursors.grow(len(self._ready.slots))
            slots = arrivals.since(self._arrival)
            self._arrival = arrivals.end
            self._arrived = iter(range(len(self._cursors)) if slots is None else slots)
        looked = 0
        for slot in islice(self._arrived, queues_max):
            self._activate(slot)
            looked += 1
        if looked == queues_max:
            return False
        self._arrived = None
        return is_new  # else there may be later ones

    def _read_arrivals(self) -> None:
        self._cursors.floor_offset = max(self._cursors.floor_offset, self._ready.start_offset)
        while not self.catch_up(UNLIMITED):
            pass

    def _activate(self, slot: int) -> None:
        """Add a queue to the sharing of its lane; it leaves again if it has no messages."""
        queue = self._ready.slots[slot]
        if queue is None:
            return
        if not self._cursors.flags[slot] & (IS_ACTIVE | IS_PARKED):
            sharing = self._sharing.get(queue.lane)
            if sharing is None:
                sharing = self._sharing[queue.lane] = WeightedShares(self._cursors.credits)
            self._cursors.flags[slot] |= IS_ACTIVE
            self._lanes |= 1 << queue.lane
            sharing.add(slot, self._weight(queue.tenant) if self._weights else UNIT)
        if self._policy.starvation_ms is not None:
            self._starvation.watch(slot)

    def _starving(self, now_ms: int) -> int | None:
        bound_ms = self._policy.starvation_ms
        if bound_ms is None or (len(self._starvation) <= 1 and not self._waiting):
            return None
        return self._starvation.oldest(now_ms - bound_ms)

    def _offer_starving(self, taker: MessageTaker, slot: int, messages_max: int) -> int:
        queue, head = self._ready.slots[slot], self._cursors.head(slot)
        assert queue is not None
        assert head is not None
        room = self._under_cap(taker, queue.tenant)
        if room <= 0:
            self._starvation.drop_oldest()
            self._park(queue.tenant, slot)
            return 0
        start, end = head
        end = min(end, self._cursors.ready_ms(slot, start)[1])
        messages_max = min(messages_max, room)
        taken, reached = taker.take_fresh(queue.lane, queue.tenant, start, end, messages_max)
        self._cursors.advance(slot, reached)
        self._is_full = reached < end and taken < messages_max
        return taken

    def _offer_lane(self, taker: MessageTaker, messages_max: int) -> int:
        lane = lowest_lane(self._lanes | self._waiting)
        if self._shares is not None:
            lane, share = self._shares.choose(self._lanes | self._waiting)
            messages_max = min(messages_max, share)
        taken = 0
        if self._waiting >> lane & 1:
            taken = taker.take_waiting(lane, messages_max)
            if taken < messages_max:
                self._waiting &= ~(1 << lane)
                self._is_full = taker.is_full()
        if self._lanes >> lane & 1:
            sharing = self._sharing[lane]
            take = None
            if self._cap == UNLIMITED and not self._weights:
                take = taker.single_taker()
            while taken < messages_max and not self._is_full:
                if take is not None:
                    taken += self._offer_singles(take, sharing, messages_max - taken)
                    if taken == messages_max:
                        break
                turn = sharing.next_queue()
                if turn is None:
                    self._lanes &= ~(1 << lane)
                    break
                taken += self._offer_queue(taker, sharing, *turn, messages_max - taken)
        if self._shares is not None:
            self._shares.charge(lane, taken)
        return taken

    def _offer_singles(self, take: SingleTaker, sharing: WeightedShares, messages_max: int) -> int:
        """Offer messages of queues whose turn is a single message; return how many were taken.

        So it is where many tenants share a lane. It does what :meth:`_offer_queue` does, in one
        loop, and ends before a queue for which that has more to do.
        """
        cursors, slots = self._cursors, self._ready.slots
        head_of, advance, next_queue = cursors.head, cursors.advance, sharing.next_queue
        taken = 0
        while taken < messages_max:
            turn = next_queue()
            if turn is None or turn[1] != 1:
                break
            slot = turn[0]
            queue, head = slots[slot], head_of(slot)
            if queue is None or head is None:
                break
            offset = head[0]
            outcome = take(queue.lane, queue.tenant, offset)
            if outcome == LEFT:
                break
            taken += outcome
            if advance(slot, offset + 1):
                sharing.remove_head()
                cursors.flags[slot] &= ~IS_ACTIVE
            elif outcome == TAKEN:
                sharing.end_single_turn()
        return taken

    def _offer_queue(
        self,
        taker: MessageTaker,
        sharing: WeightedShares,
        slot: int,
        allowance: int,
        messages_max: int,
    ) -> int:
        """Offer messages of the queue whose turn it is; return how many were taken."""
        cursors, queue = self._cursors, self._ready.slots[slot]
        assert queue is not None
        lane, tenant = queue.lane, queue.tenant
        weight = self._weight(tenant) if self._weights else UNIT
        room = self._under_cap(taker, tenant)
        quota = min(allowance, messages_max, room)
        taken, is_empty = 0, False
        while taken < quota and not self._is_full:
            head = cursors.head(slot)
            if head is None:
                is_empty = True
                break
            start, end = head
            count, reached = taker.take_fresh(lane, tenant, start, end, quota - taken)
            taken += count
            self._is_full = reached < end and taken < quota
            if is_empty := cursors.advance(slot, reached):
                break
        if is_empty:
            sharing.remove_head()
            cursors.flags[slot] &= ~IS_ACTIVE
        elif taken >= room:
            sharing.remove_head()
            cursors.flags[slot] = cursors.flags[slot] & ~IS_ACTIVE | IS_PARKED
            self._park(tenant, slot)
        else:
            sharing.charge(slot, taken, weight)
        return taken

    def _park(self, tenant: int, slot: int) -> None:
        slots = self._parked.setdefault(tenant, [])
        if slot not in slots:  # the starvation bound may have parked it already
            slots.append(slot)

    def _under_cap(self, count: InFlightCount, tenant: int) -> int:
        if self._cap == UNLIMITED or tenant == NO_TENANT:
            return UNLIMITED
        return self._cap - count.in_flight(tenant)

    def _weight(self, tenant: int) -> int:
        return self._weights.get(self._tenants.name(tenant), UNIT)
