"""Whose turn it is among the queues of one lane: deficit round robin in units of messages.

Shreedhar and Varghese, "Efficient fair queuing using deficit round robin" (1995), with two
changes. A queue that is emptied and refilled at once gets no second turn in the same round: what
is noted of it says when its next may be. And a queue whose weight is below 1 does not come up in
vain while it saves for a message: it waits in the round in which it will have enough. So each
turn hands over a message or ends a membership, whatever the weights and however many queues.

With weights A 2, B 1, C 0.5 the rounds are A A B · A A B C · A A B · A A B C. A queue that enters
comes at the end of the present round (C at the end of the second), so before it no other gets
more than one turn, that is, its weight rounded up.

Credits and weights are integers, in thousandths of a message.
"""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heappop, heappush

UNIT = 1000
UNLIMITED = 1 << 62


class Rounds:
    """The queues of a lane that may have something, by their slots.

    ``credits`` and ``dues`` are columns by slot: what a queue has saved, and the number of the
    round of its next turn. Both outlive its membership.
    """

    __slots__ = ("_credits", "_dues", "_later", "_numbers", "_present", "_round")

    def __init__(self, credits: array[int], dues: array[int]) -> None:
        self._credits = credits
        self._dues = dues
        self._round = 1
        self._present: deque[int] = deque()
        self._later: dict[int, deque[int]] = {}
        self._numbers: list[int] = []

    def enter(self, slot: int, weight: int) -> None:
        """Add a queue that is not in."""
        due = self._dues[slot]
        if due < self._round:
            rounds = -(-UNIT // weight)
            self._credits[slot] = rounds * weight
            due = self._dues[slot] = self._round + rounds - 1
        self._put(slot, due)

    def turn(self) -> tuple[int, int] | None:
        """Return whose turn it is and how many messages it may still take, None if nobody is in."""
        present = self._present
        if not present:
            if not self._numbers:
                return None
            self._round = heappop(self._numbers)
            present = self._present = self._later.pop(self._round)
        slot = present[0]
        if self._is_alone():
            return slot, UNLIMITED
        return slot, self._credits[slot] // UNIT

    def charge(self, slot: int, messages: int, weight: int) -> None:
        """Count what the one whose turn it is took; its turn ends when that was all it may."""
        if self._is_alone():
            return
        credit = self._credits[slot] - messages * UNIT
        if credit >= UNIT:
            self._credits[slot] = credit
            return
        self._present.popleft()
        self._put(slot, self._save(slot, credit, weight))

    def finish(self, slot: int, messages: int, weight: int) -> None:
        """Count what the one whose turn it is took, and take it out."""
        if messages and not self._is_alone():
            self._save(slot, (self._credits[slot] - messages * UNIT) % UNIT, weight)
        self._present.popleft()

    def _is_alone(self) -> bool:
        return len(self._present) == 1 and not self._numbers

    def _save(self, slot: int, credit: int, weight: int) -> int:
        """Note, and return, the round in which a queue has saved enough for a message."""
        rounds = -(-(UNIT - credit) // weight)
        self._credits[slot] = credit + rounds * weight
        due = self._dues[slot] = self._round + rounds
        return due

    def _put(self, slot: int, number: int) -> None:
        if number == self._round:
            self._present.append(slot)
            return
        later = self._later.get(number)
        if later is None:
            later = self._later[number] = deque()
            heappush(self._numbers, number)
        later.append(slot)
