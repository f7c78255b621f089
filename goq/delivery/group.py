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
from goq.delivery.parts import Part, Parts

_SNAPSHOT_PARTS_MAX = 50_000


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
        self.retries = Parts()
        self.leased_count = 0
        self._deadlines = Deadlines(self._living_deadlines)
        self._dues = Deadlines(lambda: ((part.time_ms, part.start) for part in self.retries))

    def lease(self, token: int, consumer: str, deadline_ms: int, spans: Iterable[Span]) -> None:
        """Put messages into a consumer's hands; those at or past the cursor are fresh."""
        lease = Lease(token, consumer)
        for start, end, attempt in spans:
            if start >= self.cursor:
                self.cursor = end
            else:
                self._take_retries(start, end)
            self._hold(lease, Part(start, end, attempt, deadline_ms))
        self.leases[token] = lease
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
            self.add_retry(Part(start, end, attempt, due_ms))
        self._drop_if_empty(lease)

    def extend(self, token: int, ranges: Iterable[Range], deadline_ms: int) -> None:
        """Give messages of a lease a new deadline."""
        lease = self.leases[token]
        for start, end in ranges:
            for part in lease.parts.take(start, end):
                lease.parts.add(part._replace(time_ms=deadline_ms))
        self._deadlines.add(deadline_ms, token, living_count=len(self.leases))

    def add_retry(self, part: Part) -> None:
        """Let messages wait for another attempt until the part's time."""
        self.retries.add(part)
        self._dues.add(part.time_ms, part.start, living_count=len(self.retries))

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
        self.retries = Parts()
        self._deadlines.clear()
        self._dues.clear()

    def forget(self, start: int, end: int) -> None:
        """Let go of messages that are no longer there to be delivered."""
        for lease in list(self.leases.values()):
            self._take(lease, start, end)
            self._drop_if_empty(lease)
        self._take_retries(start, end)

    def due_retries(self, now_ms: int, messages_max: int) -> list[Part]:
        """Return retries whose time has come, longest due first; they stay where they are."""
        due: list[tuple[int, int]] = []
        found: list[Part] = []
        wanted = messages_max
        while wanted > 0 and (entry := self._dues.pop_due(now_ms)) is not None:
            part = self.retries.at(entry[1])
            if part is None or (part.time_ms, part.start) != entry:
                continue
            due.append(entry)
            found.append(part._replace(end=min(part.end, part.start + wanted)))
            wanted -= part.end - part.start
        for time_ms, start in due:
            self._dues.add(time_ms, start, living_count=len(self.retries))
        return found

    def expired(self, now_ms: int) -> Iterator[tuple[int, list[Span]]]:
        """Yield the tokens and spans of leases whose deadline has passed.

        The caller applies the expiry of one before it asks for the next.
        """
        while (entry := self._deadlines.pop_due(now_ms)) is not None:
            lease = self.leases.get(entry[1])
            if lease is None:
                continue
            spans = [(p.start, p.end, p.attempt) for p in lease.parts if p.time_ms <= now_ms]
            later_ms = min((p.time_ms for p in lease.parts if p.time_ms > now_ms), default=None)
            if later_ms is not None:
                self._deadlines.add(later_ms, lease.token, living_count=len(self.leases))
            if spans:
                yield lease.token, spans

    def next_deadline_ms(self) -> int | None:
        """Return when the next lease may expire."""
        return self._deadlines.next_ms()

    def next_retry_ms(self) -> int | None:
        """Return when the next retry may be due."""
        return self._dues.next_ms()

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

    def _take_retries(self, start: int, end: int) -> None:
        self.retries.take(start, end)
        rest = self.retries.at(end)
        if rest is not None and rest.start == end:  # cut off what had the entry: give it its own
            self._dues.add(rest.time_ms, end, living_count=len(self.retries))

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
