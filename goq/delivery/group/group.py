"""One group in one partition: what was delivered to it, and what of that is outstanding.

A message that was taken and is neither leased nor waits for a retry is done. So a group costs
memory for outstanding messages, never for the backlog: a million waiting messages are the distance
between the floor of ``taken`` and the end of the log. Offsets past a group's end count as taken, so
that no reader of ``taken`` has to know the end.

The methods here apply decisions; :mod:`goq.delivery.settlement` and
:mod:`goq.delivery.selection.selector` make them. The attributes of messages (key, lane, tenant) are
kept for outstanding messages that have any, and are never stored. :meth:`Group.add_attributes` gets
them when messages are leased, :meth:`Group.restore_attributes` when the state was rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from goq import limits
from goq.delivery.events.event import Range, Span
from goq.delivery.group.attempt_ranges import AttemptRange, Retries
from goq.delivery.group.key_locks import KeyLocks, MessageAttributes
from goq.delivery.group.lease import Lease, LeaseDeadlines
from goq.delivery.group.offset_set import NO_CEILING, OffsetSet
from goq.delivery.group.tenant_cap import TenantCap

DEFAULT_LANE = -1


class GroupScheduler(Protocol):
    """The group's reader of the ready queues: the interface for notifications of changes."""

    @property
    def has_parked(self) -> bool:
        """Whether any tenant's messages wait until one that it has in flight ends."""

    def on_tenant_freed(self, tenant: int) -> None:
        """Offer a tenant's messages again: one that it had in flight has ended."""

    def close(self) -> None:
        """Stop reading the queues."""


class Group:
    """The progress of one group in one partition."""

    def __init__(self, name: str, floor: int) -> None:
        self.name = name
        self.taken = OffsetSet(floor)
        self.leases: dict[int, Lease] = {}
        self.attributes: dict[int, MessageAttributes] = {}
        self.retries = Retries(_lanes_of(self.attributes))
        self.leased_count = 0
        self.dead_count = 0
        """The number of messages that left it as dead letters."""
        self.locks = KeyLocks()
        self.tenant_cap = TenantCap()
        self.in_flight: dict[int, int] = {}
        """The number of leased messages of each tenant."""
        self.scheduler: GroupScheduler | None = None
        """The group's reader of the ready queues; None before the first receive."""
        self._deadlines = LeaseDeadlines()

    @property
    def end_offset(self) -> int | None:
        """The offset from which on the group gets nothing, None for no end."""
        return self.taken.ceiling if self.taken.has_ceiling else None

    # Leases

    def add_attributes(self, attributes: Mapping[int, MessageAttributes]) -> None:
        """Add the attributes of messages that are about to be leased."""
        self.attributes.update(attributes)

    def lease(
        self,
        token: int,
        consumer: str,
        deadline_ms: int,
        spans: Iterable[Span],
        session_id: str = "",
    ) -> None:
        """Lease messages to a consumer; those that waited for a retry wait no more."""
        lease = self.leases.setdefault(token, Lease(token, consumer, session_id))
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
        self._deadlines.add(deadline_ms, token, self.leases)

    def lease_new(
        self,
        token: int,
        consumer: str,
        deadline_ms: int,
        spans: Sequence[Span],
        session_id: str = "",
    ) -> bool:
        """Lease messages as :meth:`lease` does if the group never took any of them; else False."""
        if not self.taken.add_new(spans):
            return False
        lease = self.leases.setdefault(token, Lease(token, consumer, session_id))
        lease.parts.add_spans(spans, deadline_ms)
        self.leased_count += sum([end - start for start, end, _ in spans])
        self._lock_all(spans)
        self._deadlines.add(deadline_ms, token, self.leases)
        return True

    def finish(self, token: int, ranges: Sequence[Range]) -> list[AttemptRange]:
        """Remove messages that are done from a lease; return what was removed."""
        lease = self.leases.get(token)
        if lease is None:
            return []
        if lease.parts.equals(ranges):
            ended = lease.parts.take_all()  # nearly always: a batch is acknowledged whole
            self.leased_count -= sum([part.end - part.start for part in ended])
            self._end(ended)
        else:
            ended = [part for start, end in ranges for part in self._take_done(lease, start, end)]
        self._drop_if_empty(lease)
        return ended

    def return_for_retry(self, token: int, parts: Iterable[AttemptRange]) -> None:
        """Remove messages from a lease that are to be tried again at the time of their range."""
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
        self._deadlines.add(deadline_ms, token, self.leases)

    def end_leases(self, start: int, end: int) -> int:
        """Remove messages from every lease; return how many were in one."""
        before = self.leased_count
        for lease in list(self.leases.values()):
            self._take_done(lease, start, end)
            self._drop_if_empty(lease)
        return before - self.leased_count

    def expired(self, now_ms: int) -> Iterator[tuple[int, list[AttemptRange]]]:
        """Yield the tokens and ranges of leases whose deadline has passed.

        The caller applies the expiry of one before it asks for the next. Of a large lease about
        ``limits.EXPIRED_AT_ONCE`` messages come at a time.
        """
        while (token := self._deadlines.pop_due(now_ms)) is not None:
            lease = self.leases.get(token)
            if lease is None:
                continue
            parts = [part for part in lease.parts if part.time_ms <= now_ms]
            later_ms = min((p.time_ms for p in lease.parts if p.time_ms > now_ms), default=None)
            if (cut := self._cut_of(parts)) is not None:
                later_ms = parts[0].time_ms
                parts = lease.parts.within(parts[0].start, cut)
                parts = [part for part in parts if part.time_ms <= now_ms]
            if later_ms is not None:
                self._deadlines.add(later_ms, lease.token, self.leases)
            if parts:
                yield lease.token, parts

    def _cut_of(self, parts: Sequence[AttemptRange]) -> int | None:
        """Return the offset before which so much of these ranges lies as may expire at once.

        None if all may. Messages without attributes cost nothing but their range.
        """
        left = limits.EXPIRED_AT_ONCE
        for part in parts:
            if left <= 0:
                return part.start
            count = part.end - part.start if self.attributes else 1
            if count > left:
                return part.start + left
            left -= count
        return None

    def next_timer_ms(self) -> int | None:
        """Return when the next lease may expire or the next retry be due."""
        times = (self._deadlines.next_ms(), self.retries.next_ms())
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    # Messages of any state

    def outstanding(self) -> Iterator[AttemptRange]:
        """Yield all ranges that are leased or wait for a retry."""
        for lease in self.leases.values():
            yield from lease.parts
        yield from self.retries

    def drop(self, start: int, end: int) -> None:
        """Remove messages that can no longer be delivered, outstanding ones too."""
        self.locks.forget(start, end)
        self.end_leases(start, end)
        self._drop_waiting(start, end)

    def skip(self, start: int, end: int) -> None:
        """Count messages as done that no consumer holds."""
        self.locks.forget(start, end)
        self.taken.add(start, end)
        self._drop_waiting(start, end)

    def set_lane(self, offset: int, lane: int) -> None:
        """Move a message to another lane, if it is outstanding or held back."""
        self.locks.forget(offset, offset + 1)
        attributes = self.attributes.get(offset)
        waiting = self._stop_waiting(offset, offset + 1)
        if attributes is not None:
            self.attributes[offset] = attributes._replace(lane=lane)
        elif waiting or any(lease.parts.at(offset) for lease in self.leases.values()):
            self.attributes[offset] = MessageAttributes(0, lane, 0)
        for part in waiting:
            self._wait(part)

    # The whole group

    def shift_times(self, lease_shift_ms: int, retry_shift_ms: int) -> None:
        """Move all deadlines, and all due times of retries, by so many milliseconds."""
        if lease_shift_ms:
            for lease in self.leases.values():
                lease.parts.shift_times(lease_shift_ms)
            self._deadlines.rebuild(self.leases)
        if retry_shift_ms:
            self.retries.shift_times(retry_shift_ms)

    def reset(self, floor: int, end_offset: int | None = None) -> None:
        """Continue from ``floor``, up to an end if one is given; void everything outstanding."""
        self.taken = OffsetSet(floor, NO_CEILING if end_offset is None else end_offset)
        self.leases = {}
        self.leased_count = 0
        self.attributes = {}
        self.locks = KeyLocks()
        self.tenant_cap = TenantCap()
        self.in_flight.clear()
        self.restart_reading()
        self.retries = Retries(_lanes_of(self.attributes))
        self._deadlines.clear()

    def containers(self) -> list[dict[Any, Any] | list[Any]]:
        """Return what holds the outstanding and the held messages; a reset leaves it to others."""
        return [
            self.leases,
            self.attributes,
            *self.locks.containers(),
            *self.retries.containers(),
        ]

    def restart_reading(self) -> list[dict[Any, Any]]:
        """Read the ready queues again from their beginnings; taken messages stay taken.

        What waits for room under a cap is looked at again: the cap may be another one. Returns what
        held messages behind their keys, which may be many.
        """
        if self.scheduler is not None:
            self.scheduler.close()
            self.scheduler = None
        held = self.locks.take_held()
        for offset in self.tenant_cap.take_retries():
            self.retries.requeue(offset)
            attributes = self.attributes.get(offset)
            if attributes is not None and attributes.key:  # those behind it were passed over
                self._requeue_retries(attributes.key)
        return held

    def restore(
        self,
        leases: Iterable[tuple[int, str, list[AttemptRange]]],
        retries: Iterable[AttemptRange],
        sessions: Mapping[int, str],
    ) -> None:
        """Add outstanding messages of a snapshot; ``sessions`` are session ids by token."""
        for token, consumer, parts in leases:
            lease = self.leases.setdefault(token, Lease(token, consumer, sessions.get(token, "")))
            for part in parts:
                self._hold(lease, part)
                self._deadlines.add(part.time_ms, token, self.leases)
        for part in retries:
            self._wait(part)

    def restore_attributes(self, attributes: Mapping[int, MessageAttributes]) -> None:
        """Set the attributes of all outstanding messages, after the state was rebuilt."""
        self.attributes = dict(attributes)
        self.locks = KeyLocks()
        self.tenant_cap = TenantCap()
        self.in_flight.clear()
        waiting = list(self.retries)
        self.retries = Retries(_lanes_of(self.attributes))
        for lease in self.leases.values():
            for part in lease.parts:
                self._lock(part.start, part.end)
        for part in waiting:
            self._wait(part)

    def _hold(self, lease: Lease, part: AttemptRange) -> None:
        lease.parts.add(part)
        self.leased_count += part.end - part.start
        self._lock(part.start, part.end)

    def _take(self, lease: Lease, start: int, end: int) -> list[AttemptRange]:
        taken = lease.parts.take(start, end)
        self.leased_count -= sum(part.end - part.start for part in taken)
        return taken

    def _take_done(self, lease: Lease, start: int, end: int) -> list[AttemptRange]:
        ended = self._take(lease, start, end)
        self._end(ended)
        return ended

    def _end(self, parts: Iterable[AttemptRange]) -> None:
        """Remove the attributes and locks of messages that are in no lease any more."""
        all_attributes, remove_lease, in_flight = (
            self.attributes,
            self.locks.remove_lease,
            self.in_flight,
        )
        if not all_attributes:
            return
        freed: dict[int, None] = {}
        for start, end, *_ in parts:
            for offset in range(start, end):
                attributes = all_attributes.pop(offset, None)
                if attributes is None:
                    continue
                key, _, tenant = attributes
                if key and remove_lease(key) and len(self.retries):
                    self._requeue_retries(key)
                if tenant:
                    in_flight[tenant] -= 1
                    freed[tenant] = None
        for tenant in freed:
            if not in_flight[tenant]:
                del in_flight[tenant]
        if freed:
            self._on_tenants_freed(freed)

    def _wait(self, part: AttemptRange) -> None:
        for piece in self._split(part):
            attributes = self.attributes.get(piece.start)
            if attributes is not None and attributes.key:
                self.locks.add_retry(attributes.key, attributes.lane, piece.start)
            self.retries.add(piece)

    def _split(self, part: AttemptRange) -> Iterator[AttemptRange]:
        """Yield the pieces of a range: single messages with a key, runs of one lane and tenant."""
        known = self.attributes
        if not known or not any(offset in known for offset in range(part.start, part.end)):
            yield part
            return
        first = part.start
        for offset in range(part.start + 1, part.end):
            attributes = known.get(offset)
            if attributes != known.get(first) or (attributes is not None and attributes.key):
                yield part._replace(start=first, end=offset)
                first = offset
        yield part._replace(start=first)

    def _stop_waiting(self, start: int, end: int) -> list[AttemptRange]:
        waited = self.retries.take(start, end)
        if self.attributes:
            for part in waited:
                attributes = self.attributes.get(part.start)
                if attributes is not None and attributes.key:
                    self.locks.remove_retry(attributes.key, attributes.lane, part.start)
                    self._requeue_retries(attributes.key)
        return waited

    def _drop_waiting(self, start: int, end: int) -> None:
        for part in self._stop_waiting(start, end):
            self._drop_attributes(part.start, part.end)

    def _lock(self, start: int, end: int) -> None:
        self._lock_all([(start, end, 0)])

    def _lock_all(self, spans: Iterable[Span]) -> None:
        """Lock the keys of leased messages, and count those of their tenants."""
        if not self.attributes:
            return
        attributes_at, in_flight = self.attributes.get, self.in_flight
        keys: list[int] = []
        for start, end, _ in spans:
            for offset in range(start, end):
                attributes = attributes_at(offset)
                if attributes is not None:
                    key, _, tenant = attributes
                    keys.append(key)
                    if tenant:
                        in_flight[tenant] = in_flight.get(tenant, 0) + 1
        self.locks.add_leases(keys)

    def _unlock(self, start: int, end: int) -> None:
        if not self.attributes:
            return
        for offset in range(start, end):
            attributes = self.attributes.get(offset)
            if attributes is not None:
                self._unlock_one(attributes)

    def _unlock_one(self, attributes: MessageAttributes) -> None:
        if attributes.key and self.locks.remove_lease(attributes.key):
            self._requeue_retries(attributes.key)
        if attributes.tenant:
            self._free_tenant(attributes.tenant)

    def _requeue_retries(self, key: int) -> None:
        """Requeue retries that were passed over because of their key."""
        for offset in self.locks.all_retries(key):
            self.retries.requeue(offset)

    def _free_tenant(self, tenant: int) -> None:
        self.in_flight[tenant] -= 1
        if not self.in_flight[tenant]:
            del self.in_flight[tenant]
        self._on_tenants_freed((tenant,))

    def _on_tenants_freed(self, tenants: Iterable[int]) -> None:
        """Resume what a cap on messages in flight postponed, if there is anything."""
        if self.tenant_cap.has_parked:
            for tenant in tenants:
                self.tenant_cap.on_tenant_freed(tenant)
        if self.scheduler is not None and self.scheduler.has_parked:
            for tenant in tenants:
                self.scheduler.on_tenant_freed(tenant)

    def _drop_attributes(self, start: int, end: int) -> None:
        if self.attributes:
            for offset in range(start, end):
                self.attributes.pop(offset, None)

    def _drop_if_empty(self, lease: Lease) -> None:
        if not lease.parts:
            del self.leases[lease.token]
            if not self.leases:
                self._deadlines.clear()  # a group at rest has no timer


def _lanes_of(attributes: Mapping[int, MessageAttributes]) -> Callable[[int], int]:
    """Return what finds the lane of a message by its offset."""

    def lane_of(offset: int) -> int:
        found = attributes.get(offset)
        return DEFAULT_LANE if found is None else found.lane

    return lane_of
