"""One group in one partition: a cursor, and what is outstanding before it.

Every offset before the cursor that is neither leased nor waiting for a retry is done. So a group
costs memory for what is outstanding, never for the backlog: a million waiting messages are the
distance between the cursor and the end of the log.

The methods here apply what has been decided; deciding is :mod:`goq.delivery.partition`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from goq.delivery.deadlines import Deadlines
from goq.delivery.events import Range, SnapshotGroup, Span, TimedSpan
from goq.delivery.parts import Part, Parts, gaps
from goq.delivery.retries import Retries

_SNAPSHOT_PARTS_MAX = 5_000  # with names as long as they may be, well within a frame


@dataclass(slots=True)
class Lease:
    """Messages in the hands of one consumer; each part has its own deadline."""

    token: int
    consumer: str
    parts: Parts = field(default_factory=Parts)


class Group:
    """The progress of one group in one partition."""

    def __init__(self, name: str, cursor: int) -> None:
        self.name = name
        self.cursor = cursor
        self.leases: dict[int, Lease] = {}
        self.retries = Retries()
        self.leased_count = 0
        self._deadlines = Deadlines(self._living_deadlines)

    def lease(self, token: int, consumer: str, deadline_ms: int, spans: Iterable[Span]) -> None:
        """Put messages into a consumer's hands; those at or past the cursor are fresh."""
        lease = self.leases.setdefault(token, Lease(token, consumer))
        for start, end, attempt in spans:
            if start < self.cursor:
                self.retries.take(start, end)
            self.cursor = max(self.cursor, end)
            self._hold(lease, Part(start, end, attempt, deadline_ms))
        self._deadlines.add(deadline_ms, token, living_count=len(self.leases))

    def finish(self, token: int, ranges: Iterable[Range]) -> None:
        """Let go of messages that are done."""
        lease = self.leases[token]
        for start, end in ranges:
            self._take(lease, start, end)
        self._drop_if_empty(lease)

    def give_back(self, token: int, spans: Iterable[Span], due_ms: int) -> None:
        """Let go of messages that are to be tried again at ``due_ms``."""
        lease = self.leases[token]
        for start, end, attempt in spans:
            self._take(lease, start, end)
            self.retries.add(Part(start, end, attempt, due_ms))
        self._drop_if_empty(lease)

    def extend(self, token: int, ranges: Iterable[Range], deadline_ms: int) -> None:
        """Give messages of a lease a new deadline."""
        lease = self.leases[token]
        for start, end in ranges:
            for part in lease.parts.take(start, end):
                lease.parts.add(part._replace(time_ms=deadline_ms))
        self._deadlines.add(deadline_ms, token, living_count=len(self.leases))

    def add_lease(self, token: int, consumer: str, spans: Iterable[TimedSpan]) -> None:
        """Put a lease, or more of one, back as a snapshot has it."""
        lease = self.leases.setdefault(token, Lease(token, consumer))
        for span in spans:
            part = Part(*span)
            self._hold(lease, part)
            self._deadlines.add(part.time_ms, token, living_count=len(self.leases))

    def reset(self, cursor: int) -> None:
        """Go on from ``cursor``; everything outstanding is void."""
        self.cursor = cursor
        self.leases.clear()
        self.leased_count = 0
        self.retries = Retries()
        self._deadlines.clear()

    def forget(self, start: int, end: int) -> None:
        """Let go of messages that are no longer there to be delivered."""
        self.release(start, end)
        self.retries.take(start, end)

    def release(self, start: int, end: int) -> int:
        """Take messages out of every lease; return how many were in one."""
        before = self.leased_count
        for lease in list(self.leases.values()):
            self._take(lease, start, end)
            self._drop_if_empty(lease)
        return before - self.leased_count

    def waiting_count(self, start: int, end: int) -> int:
        """Return how many of these messages wait for a retry."""
        return sum(part.end - part.start for part in self.retries.within(start, end))

    def let_wait(self, start: int, end: int) -> None:
        """Let messages that count as done, or as fresh, wait for a first attempt."""
        outstanding = [*self.retries.within(start, end)]
        for lease in self.leases.values():
            outstanding += lease.parts.within(start, end)
        for gap_start, gap_end in gaps(start, end, outstanding):
            self.retries.add(Part(gap_start, gap_end, 0, 0))

    def expired(self, now_ms: int) -> Iterator[tuple[int, list[Span]]]:
        """Yield the tokens and spans of leases whose deadline has passed.

        The caller applies the expiry of one before it asks for the next.
        """
        while (token := self._deadlines.pop_due(now_ms)) is not None:
            lease = self.leases.get(token)
            if lease is None:
                continue
            spans = [(p.start, p.end, p.attempt) for p in lease.parts if p.time_ms <= now_ms]
            later_ms = min((p.time_ms for p in lease.parts if p.time_ms > now_ms), default=None)
            if later_ms is not None:
                self._deadlines.add(later_ms, lease.token, living_count=len(self.leases))
            if spans:
                yield lease.token, spans

    def next_timer_ms(self) -> int | None:
        """Return when the next lease may expire or the next retry be due."""
        times = (self._deadlines.next_ms(), self.retries.next_ms())
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def snapshot(self) -> list[SnapshotGroup]:
        """Return the state as events, several where it is large."""
        leases: list[tuple[int, str, list[TimedSpan]]] = [
            (lease.token, lease.consumer, [part])
            for lease in self.leases.values()
            for part in lease.parts
        ]
        retries: list[TimedSpan] = list(self.retries)
        events = [SnapshotGroup(self.name, self.cursor, [], [])]
        for first in range(0, len(leases), _SNAPSHOT_PARTS_MAX):
            some = leases[first : first + _SNAPSHOT_PARTS_MAX]
            events.append(SnapshotGroup(self.name, self.cursor, some, []))
        for first in range(0, len(retries), _SNAPSHOT_PARTS_MAX):
            part = retries[first : first + _SNAPSHOT_PARTS_MAX]
            events.append(SnapshotGroup(self.name, self.cursor, [], part))
        return events

    def _hold(self, lease: Lease, part: Part) -> None:
        lease.parts.add(part)
        self.leased_count += part.end - part.start

    def _take(self, lease: Lease, start: int, end: int) -> None:
        before = lease.parts.message_count
        lease.parts.take(start, end)
        self.leased_count -= before - lease.parts.message_count

    def _drop_if_empty(self, lease: Lease) -> None:
        if not lease.parts:
            del self.leases[lease.token]

    def _living_deadlines(self) -> Iterator[tuple[int, int]]:
        for lease in self.leases.values():
            earliest_ms = lease.parts.earliest_ms()
            if earliest_ms is not None:
                yield earliest_ms, lease.token
