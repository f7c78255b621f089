"""Whose turn it is among the queues of one lane: deficit round robin in units of messages.

Shreedhar and Varghese, "Efficient fair queuing using deficit round robin" (1995): the queues
stand in a circle, each in its turn takes as many messages as its weight, and goes to the end. A
queue that enters does so at the end. So before it no other gets more than one turn, and as
nobody ever gets in ahead of those who stand there, no stream of newcomers can hold them up.

With one change: a queue whose weight is below 1 does not come up in vain while it saves for a
message. It stands aside for as many circles as that takes; a mark in the circle counts them. So
each turn hands over a message or ends a membership, whatever the weights and however many queues.

With weights A 2, B 1, C 0.5 the circles are A A B C · A A B · A A B C · A A B.

Credits and weights are integers, in thousandths of a message.
"""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heappop, heappush

UNIT = 1000
UNLIMITED = 1 << 62
_MARK = -1


class WeightedSharing:
    """The queues of a lane that may have something, by their slots.

    ``credits`` is a column by slot: what is left to a queue in its turn, or for its next.
    """

    __slots__ = ("_aside", "_circle", "_circles", "_credits", "_ring")

    def __init__(self, credits: array[int]) -> None:
        self._credits = credits
        self._ring: deque[int] = deque([_MARK])
        self._circle = 0
        self._aside: dict[int, deque[int]] = {}
        self._circles: list[int] = []

    def enter(self, slot: int, weight: int) -> None:
        """Add a queue that is not in."""
        self._save(slot, 0, weight)

    def turn(self) -> tuple[int, int] | None:
        """Return whose turn it is and how many messages it may still take, None if nobody is in."""
        ring = self._ring
        while ring[0] == _MARK:
            if len(ring) > 1:
                ring.rotate(-1)
                self._circle += 1
            elif self._circles:
                self._circle = self._circles[0]
            else:
                return None
            if self._circles and self._circles[0] <= self._circle:
                ring.extend(self._aside.pop(heappop(self._circles)))
        slot = ring[0]
        return slot, UNLIMITED if self._is_alone() else self._credits[slot] // UNIT

    def charge(self, slot: int, messages: int, weight: int) -> None:
        """Count what the one whose turn it is took; its turn ends when that was all it may."""
        if self._is_alone():
            return
        credit = self._credits[slot] - messages * UNIT
        if credit >= UNIT:
            self._credits[slot] = credit
            return
        self._ring.popleft()
        self._save(slot, credit, weight)

    def leave(self) -> None:
        """Take out the one whose turn it is."""
        self._ring.popleft()

    def _is_alone(self) -> bool:
        return len(self._ring) == 2 and not self._circles

    def _save(self, slot: int, credit: int, weight: int) -> None:
        """Put a queue where it comes up when it has saved enough for a message."""
        circles = -(-(UNIT - credit) // weight)
        self._credits[slot] = credit + circles * weight
        if circles <= 1:
            self._ring.append(slot)
            return
        number = self._circle + circles - 1
        aside = self._aside.get(number)
        if aside is None:
            aside = self._aside[number] = deque()
            heappush(self._circles, number)
        aside.append(slot)


class LaneShares:
    """What is left to each lane in the present cycle. A set of lanes is an int of bits."""

    __slots__ = ("_left", "_spent", "_weights")

    def __init__(self, weights: tuple[int, ...]) -> None:
        self._weights = weights
        self._left: dict[int, int] = {}
        self._spent = 0

    def choose(self, lanes: int) -> tuple[int, int]:
        """Return the lane, of those given, that goes next, and how many messages it may have."""
        candidates = lanes & ~self._spent
        if not candidates:
            self._left.clear()
            self._spent = 0
            candidates = lanes
        lane = lowest(candidates)
        return lane, self._share(lane)

    def charge(self, lane: int, messages: int) -> None:
        """Count what a lane was given."""
        left = self._left[lane] = self._share(lane) - messages
        if left <= 0:
            self._spent |= 1 << lane

    def _share(self, lane: int) -> int:
        weight = self._weights[lane] if lane < len(self._weights) else 1
        return self._left.get(lane, weight)


def lowest(lanes: int) -> int:
    """Return the most urgent of a set of lanes that is not empty."""
    return (lanes & -lanes).bit_length() - 1
