"""One group in one partition: what it was handed, and what of that is outstanding.

Every offset that was taken and is neither leased nor waiting for a retry is done. So a group
costs memory for what is outstanding, never for the backlog: a million waiting messages are the
distance between the floor of what was taken and the end of the log. What lies behind a group's end
counts as taken, so that nobody who asks what is left for it has to know of the end.

The methods here apply what has been decided; deciding is :mod:`goq.delivery.partition_state`'s.
What is known of single messages (key, lane, tenant) is kept for the outstanding ones that have any
such, and never written: :meth:`Group.learn` is told it when messages are handed out, and by whoever
rebuilds the state.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from goq.delivery.events.event import Range, Span
from goq.delivery.group.attempt_ranges import AttemptRange, AttemptRanges, gaps
from goq.delivery.group.key_locks import KeyLocks, MessageAttributes
from goq.delivery.group.offset_set import NO_CEILING, OffsetSet
from goq.delivery.group.retries import Retries
from goq.delivery.group.tenant_cap import TenantCap
from goq.delivery.queues.fair_scheduler import FairScheduler

_SMALL = 64


class LeaseDeadlines:
    """Pairs of a time and a lease's token."""

    __slots__ = ("_heap", "_living")

    def __init__(self, living: Callable[[], Iterable[tuple[int, int]]]) -> None:
        self._living = living
        self._heap: list[tuple[int, int]] = []

    def add(self, time_ms: int, token: int, *, living_count: int) -> None:
        """Add an entry; ``living_count`` is how many the owner has."""
        if len(self._heap) > 2 * living_count + _SMALL:
            self._heap = list(self._living())
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (time_ms, token))

    def pop_due(self, now_ms: int) -> int | None:
        """Remove the earliest entry if its time has come, and return its token."""
        if self._heap and self._heap[0][0] <= now_ms:
            return heapq.heappop(self._heap)[1]
        return None

    def next_ms(self) -> int | None:
        """Return a time at or before the earliest that is still meant, None if there is none."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Forget all entries."""
        self._heap.clear()


DEFAULT_LANE = -1


@dataclass(slots=True)
class Lease:
    """Messages in the hands of one consumer; each part has its own deadline."""

    token: int
    consumer: str
    parts: AttemptRanges = field(default_factory=AttemptRanges)


class Group:
    """The progress of one group in one partition."""

    def __init__(self, name: str, floor: int) -> None:
        self.name = name
        self.taken = OffsetSet(floor)
        self.leases: dict[int, Lease] = {}
        self.retries = Retries(self._lane_of)
        self.leased_count = 0
        self.dead_count = 0
        """How many messages left it as dead letters."""
        self.facts: dict[int, MessageAttributes] = {}
        self.locks = KeyLocks()
        self.capped = TenantCap()
        self.in_flight: dict[int, int] = {}
        """How many messages of each tenant are leased."""
        self.turns: FairScheduler | None = None
        """Its places in the partition's ready queues, once it has taken from them."""
        self._deadlines = LeaseDeadlines(self._living_deadlines)

    def learn(self, facts: Mapping[int, MessageAttributes]) -> None:
        """Be told of messages that are about to be leased."""
        self.facts.update(facts)

    def learn_outstanding(self, facts: Mapping[int, MessageAttributes]) -> None:
        """Be told of all outstanding messages, after the state was rebuilt."""
        self.facts = dict(facts)
        self.locks = KeyLocks()
        self.capped = TenantCap()
        self.in_flight.clear()
        waiting = list(self.retries)
        self.retries = Retries(self._lane_of)
        for lease in self.leases.values():
            for part in lease.parts:
                self._lock(part.start, part.end)
        for part in waiting:
            self._wait(part)

    def lease(self, token: int, consumer: str, deadline_ms: int, spans: Iterable[Span]) -> None:
        """Put messages into a consumer's hands; those that waited for a retry wait no more."""
        lease = self.leases.setdefault(token, Lease(token, consumer))
        for start, end, attempt in spans:
            reached = start
            for part in self._stop_waiting(start, end) if len(self.retries) else ():
                if reached < part.start:
                    self._hold(lease, AttemptRange(reached, part.start, attempt, deadline_ms))
                self._hold(lease, part._replace(attempt=attempt, time_ms=deadline_ms))
                reached = part.end
            if reached < end:
                self._hold(lease, AttemptRange(reached, end, attempt, deadline_ms))
            self.taken.add(start, end)
        self._deadlines.add(deadline_ms, token, living_count=len(self.leases))

    def finish(self, token: int, ranges: Sequence[Range]) -> list[AttemptRange]:
        """Let go of messages that are done with; return what was let go of."""
        lease = self.leases.get(token)
        if lease is None:
            return []
        if lease.parts.is_just(ranges):
            ended = lease.parts.take_all()  # nearly always: a batch is acknowledged as it came
            self.leased_count -= sum([part.end - part.start for part in ended])
            self._end(ended)
        else:
            ended = [
                part for start, end in ranges for part in self._take_for_good(lease, start, end)
            ]
        self._drop_if_empty(lease)
        return ended

    def give_back(self, token: int, parts: Iterable[AttemptRange]) -> None:
        """Let go of messages that are to be tried again at the time of their part."""
        lease = self.leases[token]
        for part in parts:
            lease_parts = self._take(lease, part.start, part.end)
            self._wait(part)
            for ended in lease_parts:
                self._unlock(ended.start, ended.end)
        self._drop_if_empty(lease)

    def extend(self, token: int, ranges: Iterable[Range], deadline_ms: int) -> None:
        """Give messages of a lease a new deadline."""
        lease = self.leases[token]
        for start, end in ranges:
            for part in lease.parts.take(start, end):
                lease.parts.add(part._replace(time_ms=deadline_ms))
        self._deadlines.add(deadline_ms, token, living_count=len(self.leases))

    def restore(
        self, leases: Iterable[tuple[int, str, list[AttemptRange]]], retries: Iterable[AttemptRange]
    ) -> None:
        """Put outstanding messages back as a snapshot has them."""
        for token, consumer, parts in leases:
            lease = self.leases.setdefault(token, Lease(token, consumer))
            for part in parts:
                self._hold(lease, part)
                self._deadlines.add(part.time_ms, token, living_count=len(self.leases))
        for part in retries:
            self._wait(part)

    @property
    def end_offset(self) -> int | None:
        """The offset at and after which the group gets nothing, None where it has no end."""
        return self.taken.ceiling if self.taken.has_ceiling else None

    def reset(self, floor: int, end_offset: int | None = None) -> None:
        """Go on from ``floor``, up to an end if one is given; everything outstanding is void."""
        self.taken = OffsetSet(floor, NO_CEILING if end_offset is None else end_offset)
        self.leases.clear()
        self.leased_count = 0
        self.facts.clear()
        self.locks = KeyLocks()
        self.capped = TenantCap()
        self.in_flight.clear()
        self.start_over()
        self.retries = Retries(self._lane_of)
        self._deadlines.clear()

    def start_over(self) -> None:
        """Begin anew with the ready queues; what was taken stays so."""
        if self.turns is not None:
            self.turns.close()
            self.turns = None
        self.locks.drop_held()

    def forget(self, start: int, end: int) -> None:
        """Let go of messages that are no longer there to be delivered."""
        self.release(start, end)
        self._forget_waiting(start, end)

    def skip(self, start: int, end: int) -> None:
        """Count messages as done that are not with a consumer."""
        self.taken.add(start, end)
        self._forget_waiting(start, end)

    def release(self, start: int, end: int) -> int:
        """Take messages out of every lease; return how many were in one."""
        before = self.leased_count
        for lease in list(self.leases.values()):
            self._take_for_good(lease, start, end)
            self._drop_if_empty(lease)
        return before - self.leased_count

    def move(self, offset: int, lane: int) -> None:
        """Go on with a message in another lane."""
        fact = self.facts.get(offset)
        waiting = self._stop_waiting(offset, offset + 1)
        if fact is not None:
            self.facts[offset] = fact._replace(lane=lane)
        elif waiting or any(lease.parts.at(offset) for lease in self.leases.values()):
            self.facts[offset] = MessageAttributes(0, lane, 0)
        for part in waiting:
            self._wait(part)

    def outstanding(self) -> Iterator[AttemptRange]:
        """Yield all that is leased or waits for a retry."""
        for lease in self.leases.values():
            yield from lease.parts
        yield from self.retries

    def not_outstanding(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield what of ``start`` up to ``end`` is neither leased nor waits for a retry."""
        parts = [part for part in self.outstanding() if part.start < end and start < part.end]
        return gaps(start, end, parts)

    def expired(self, now_ms: int) -> Iterator[tuple[int, list[AttemptRange]]]:
        """Yield the tokens and parts of leases whose deadline has passed.

        The caller applies the expiry of one before it asks for the next.
        """
        while (token := self._deadlines.pop_due(now_ms)) is not None:
            lease = self.leases.get(token)
            if lease is None:
                continue
            parts = [part for part in lease.parts if part.time_ms <= now_ms]
            later_ms = min((p.time_ms for p in lease.parts if p.time_ms > now_ms), default=None)
            if later_ms is not None:
                self._deadlines.add(later_ms, lease.token, living_count=len(self.leases))
            if parts:
                yield lease.token, parts

    def next_timer_ms(self) -> int | None:
        """Return when the next lease may expire or the next retry be due."""
        times = (self._deadlines.next_ms(), self.retries.next_ms())
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def _lane_of(self, offset: int) -> int:
        fact = self.facts.get(offset)
        return DEFAULT_LANE if fact is None else fact.lane

    def _hold(self, lease: Lease, part: AttemptRange) -> None:
        lease.parts.add(part)
        self.leased_count += part.end - part.start
        self._lock(part.start, part.end)

    def _take(self, lease: Lease, start: int, end: int) -> list[AttemptRange]:
        taken = lease.parts.take(start, end)
        self.leased_count -= sum(part.end - part.start for part in taken)
        return taken

    def _take_for_good(self, lease: Lease, start: int, end: int) -> list[AttemptRange]:
        ended = self._take(lease, start, end)
        self._end(ended)
        return ended

    def _end(self, parts: Iterable[AttemptRange]) -> None:
        """Forget what was known of messages that are in no lease any more."""
        facts = self.facts
        if not facts:
            return
        for part in parts:
            for offset in range(part.start, part.end):
                fact = facts.pop(offset, None)
                if fact is not None:
                    self._unlock_one(fact)

    def _wait(self, part: AttemptRange) -> None:
        for piece in self._pieces(part):
            fact = self.facts.get(piece.start)
            if fact is not None and fact.key:
                self.locks.wait(fact.key, fact.lane, piece.start)
            self.retries.add(piece)

    def _pieces(self, part: AttemptRange) -> Iterator[AttemptRange]:
        """Yield a part by what is known of its messages: keys apart, lanes and tenants apart."""
        if not self.facts or not any(o in self.facts for o in range(part.start, part.end)):
            yield part
            return
        first = part.start
        for offset in range(part.start + 1, part.end):
            fact = self.facts.get(offset)
            if fact != self.facts.get(first) or (fact is not None and fact.key):
                yield part._replace(start=first, end=offset)
                first = offset
        yield part._replace(start=first)

    def _stop_waiting(self, start: int, end: int) -> list[AttemptRange]:
        waited = self.retries.take(start, end)
        if self.facts:
            for part in waited:
                fact = self.facts.get(part.start)
                if fact is not None and fact.key:
                    self.locks.end_wait(fact.key, fact.lane, part.start)
                    self._enter_waiting_again(fact.key)
        return waited

    def _forget_waiting(self, start: int, end: int) -> None:
        for part in self._stop_waiting(start, end):
            self._lose_facts(part.start, part.end)

    def _lock(self, start: int, end: int) -> None:
        if not self.facts:
            return
        for offset in range(start, end):
            fact = self.facts.get(offset)
            if fact is not None:
                if fact.key:
                    self.locks.lease(fact.key)
                if fact.tenant:
                    self.in_flight[fact.tenant] = self.in_flight.get(fact.tenant, 0) + 1

    def _unlock(self, start: int, end: int) -> None:
        if not self.facts:
            return
        for offset in range(start, end):
            fact = self.facts.get(offset)
            if fact is not None:
                self._unlock_one(fact)

    def _unlock_one(self, fact: MessageAttributes) -> None:
        if fact.key and self.locks.end_lease(fact.key):
            self._enter_waiting_again(fact.key)
        if fact.tenant:
            self._one_less_in_flight(fact.tenant)

    def _enter_waiting_again(self, key: int) -> None:
        """What was passed over because of its key may come up again."""
        for offset in self.locks.all_waiting(key):
            self.retries.enter_again(offset)

    def _one_less_in_flight(self, tenant: int) -> None:
        left = self.in_flight[tenant] - 1
        if left:
            self.in_flight[tenant] = left
        else:
            del self.in_flight[tenant]
        self.capped.tenant_freed(tenant)
        if self.turns is not None:
            self.turns.tenant_freed(tenant)

    def _lose_facts(self, start: int, end: int) -> None:
        if self.facts:
            for offset in range(start, end):
                self.facts.pop(offset, None)

    def _drop_if_empty(self, lease: Lease) -> None:
        if not lease.parts:
            del self.leases[lease.token]

    def _living_deadlines(self) -> Iterator[tuple[int, int]]:
        for lease in self.leases.values():
            earliest_ms = lease.parts.earliest_ms()
            if earliest_ms is not None:
                yield earliest_ms, lease.token
