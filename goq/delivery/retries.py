"""Messages that wait for another attempt: by offset, and by when it is due.

Two heaps lie over the same parts: of those that wait for their time, and of the ripe, whose time
has come and that wait for a consumer. So the next time to wake somebody at is never that of a
message that everybody knows of. Entries are not removed but outlived: one that no part stands
behind any more is dropped when it comes up, and both heaps are made anew when most of them is
that, or when the clock was set back.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from goq.delivery.parts import Part, Parts

_SMALL = 64


class Retries:
    """The parts of one group that wait, and their times."""

    __slots__ = ("_now_ms", "_parts", "_ripe", "_waiting")

    def __init__(self) -> None:
        self._parts = Parts()
        self._waiting: list[tuple[int, int]] = []
        self._ripe: list[tuple[int, int]] = []
        self._now_ms = 0

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    @property
    def message_count(self) -> int:
        """How many messages wait."""
        return self._parts.message_count

    def add(self, part: Part) -> None:
        """Let messages wait that do not yet; the part's time is when they are due."""
        self._parts.add(part)
        self._enter(part)

    def take(self, start: int, end: int) -> None:
        """Let go of what waits from ``start`` up to ``end``."""
        self._parts.take(start, end)
        rest = self._parts.at(end)
        if rest is not None and rest.start == end:  # cut off from what had the entry
            self._enter(rest)

    def within(self, start: int, end: int) -> list[Part]:
        """Return what waits from ``start`` up to ``end``."""
        return self._parts.within(start, end)

    def due(self, now_ms: int, messages_max: int) -> list[Part]:
        """Return what is due, longest due first; it stays until it is taken."""
        self.ripen(now_ms)
        entries: list[tuple[int, int]] = []
        found: list[Part] = []
        while messages_max > 0 and self._ripe:
            entry = heapq.heappop(self._ripe)
            part = self._behind(entry)
            if part is None or (entries and entries[-1] == entry):
                continue
            entries.append(entry)
            found.append(part._replace(end=min(part.end, part.start + messages_max)))
            messages_max -= part.end - part.start
        for entry in entries:
            heapq.heappush(self._ripe, entry)
        return found

    def ripen(self, now_ms: int) -> bool:
        """Find what has become due; return whether anything has."""
        if now_ms < self._now_ms:
            self._rebuild()
        self._now_ms = now_ms
        ripened = False
        while self._waiting and self._waiting[0][0] <= now_ms:
            entry = heapq.heappop(self._waiting)
            if self._behind(entry) is not None:
                heapq.heappush(self._ripe, entry)
                ripened = True
        return ripened

    def next_ms(self) -> int | None:
        """Return a time at or before the earliest at which more becomes due."""
        return self._waiting[0][0] if self._waiting else None

    def _behind(self, entry: tuple[int, int]) -> Part | None:
        part = self._parts.at(entry[1])
        return part if part is not None and (part.time_ms, part.start) == entry else None

    def _enter(self, part: Part) -> None:
        if len(self._waiting) + len(self._ripe) > 2 * len(self._parts) + _SMALL:
            self._rebuild()
        else:
            heapq.heappush(self._waiting, (part.time_ms, part.start))

    def _rebuild(self) -> None:
        self._waiting = [(part.time_ms, part.start) for part in self._parts]
        heapq.heapify(self._waiting)
        self._ripe = []
