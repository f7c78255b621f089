"""A lease: messages that one consumer holds, and the deadlines of all leases of a group."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import msgspec

from goq.delivery.group.attempt_ranges import AttemptRanges

_ENTRIES_MIN = 64


class Lease(msgspec.Struct):
    """Messages that one consumer holds; each range has its own deadline."""

    token: int
    consumer: str
    session_id: str = ""
    parts: AttemptRanges = msgspec.field(default_factory=AttemptRanges)

    @property
    def member(self) -> str:
        """The member that holds it, see :func:`member_id`."""
        return member_id(self.consumer, self.session_id)


def member_id(consumer: str, session_id: str) -> str:
    """Return the id of a member: its name, and its session if it has one.

    No member's name has a slash.
    """
    return f"{consumer}/{session_id}" if session_id else consumer


class LeaseDeadlines:
    """A heap of deadlines and lease tokens, earliest first.

    Entries are never removed but become stale; the group checks each that comes up. The heap is
    rebuilt from the live leases when they are fewer than half of it, so that a long visibility
    timeout cannot fill memory with entries of settled leases.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []

    def add(self, time_ms: int, token: int, live: Mapping[int, Lease]) -> None:
        """Add an entry; ``live`` are the leases that the group has."""
        if len(self._heap) > 2 * len(live) + _ENTRIES_MIN:
            self.rebuild(live)
        heapq.heappush(self._heap, (time_ms, token))

    def rebuild(self, live: Mapping[int, Lease]) -> None:
        """Replace all entries by those of the live leases."""
        earliest = ((lease.parts.earliest_ms(), lease.token) for lease in live.values())
        self._heap = [(time_ms, token) for time_ms, token in earliest if time_ms is not None]
        heapq.heapify(self._heap)

    def pop_due(self, now_ms: int) -> int | None:
        """Remove the earliest entry if its time has come, and return its token."""
        if self._heap and self._heap[0][0] <= now_ms:
            return heapq.heappop(self._heap)[1]
        return None

    def next_ms(self) -> int | None:
        """Return a time at or before the earliest live deadline, None if there is none."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Remove all entries."""
        self._heap.clear()
