"""Which queues have something new: a list that each group reads when it next takes messages.

A queue is entered only if somebody has read past its last entry, so a topic that nobody consumes
has one entry a queue however it grows. The list is cut when it is longer than twice the number of
queues: who is further behind looks at all queues instead, which costs no more than the entries
it missed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from goq.delivery.queues.ready_queue import ReadyQueue

_SMALL = 1024


class Arrivals:
    """Slots of queues, numbered from the first entry that there ever was."""

    __slots__ = ("_first", "_slots", "read_to")

    def __init__(self) -> None:
        self._slots = array("I")
        self._first = 0
        self.read_to = 0

    def __len__(self) -> int:
        return len(self._slots)

    def announce(self, queue: ReadyQueue, queue_count: int) -> None:
        """Enter a queue that was not entered since somebody read the list."""
        if len(self._slots) > 2 * queue_count + _SMALL:
            cut = len(self._slots) // 2
            del self._slots[:cut]
            self._first += cut
        queue.announced = self.end
        self._slots.append(queue.slot)

    def since(self, number: int) -> Iterable[int] | None:
        """Return the entries from a number on, None if they are no longer all there."""
        self.read_to = self.end
        return self._slots[number - self._first :] if number >= self._first else None

    @property
    def end(self) -> int:
        """The number that the next entry will have."""
        return self._first + len(self._slots)
