"""Weighted sharing: between the queues of a lane, and between the lanes of a partition.

**Queues of a lane** (:class:`WeightedShares`) share it by deficit round robin in units of
messages (Shreedhar and Varghese, "Efficient fair queuing using deficit round robin", 1995). The
queues stand in a ring. Each takes as many messages as its weight and goes to the end. A new queue
joins at the end. So no queue ahead of it gets more than one turn, and no stream of new queues can
delay those that are in the ring already.

There is one change. A queue with a weight below 1 gets no turns in vain while it saves for a
message: it leaves the ring for as many rounds as that takes. A marker in the ring counts the
rounds. So each turn delivers a message or removes a queue, whatever the weights and however many
queues there are. With weights A 2, B 1, C 0.5 the rounds are A A B C · A A B · A A B C · A A B.
Credits and weights are integers, in thousandths of a message.

**Lanes** (:class:`LaneShares`) each get their weight in every cycle. A cycle ends when no lane
with messages has a share left. The unused share of a lane without messages is lost: an idle lane
saves nothing. Within a cycle lane 0 goes first. Shares stay between calls: a thousand calls for
one message give the same result as one call for a thousand.
"""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heappop, heappush

UNIT = 1000
UNLIMITED = 1 << 62
_MARKER = -1


class WeightedShares:
    """The active queues of a lane, by slot.

    ``credits`` is a column by slot: the rest of a queue's present turn, or its next turn.
    """

    __slots__ = ("_credits", "_resting", "_resting_rounds", "_ring", "_round")

    def __init__(self, credits: array[int]) -> None:
        self._credits = credits
        self._ring: deque[int] = deque([_MARKER])
        self._round = 0
        self._resting: dict[int, deque[int]] = {}  # by the round before which they come back
        self._resting_rounds: list[int] = []  # a heap

    def add(self, slot: int, weight: int) -> None:
        """Add a queue that is not active yet."""
        self._schedule(slot, 0, weight)

    def next_queue(self) -> tuple[int, int] | None:
        """Return the queue at the head of the ring and how many messages it may still take.

        Returns None when no queue is active.
        """
        ring = self._ring
        while ring[0] == _MARKER:
            if len(ring) > 1:
                ring.rotate(-1)
                self._round += 1
            elif self._resting_rounds:
                self._round = self._resting_rounds[0]
            else:
                return None
            if self._resting_rounds and self._resting_rounds[0] <= self._round:
                ring.extend(self._resting.pop(heappop(self._resting_rounds)))
        slot = ring[0]
        return slot, UNLIMITED if self._is_alone() else self._credits[slot] // UNIT

    def charge(self, slot: int, messages: int, weight: int) -> None:
        """Count the messages that the queue at the head took; end its turn when they are all."""
        if self._is_alone():
            return
        credit = self._credits[slot] - messages * UNIT
        if credit >= UNIT:
            self._credits[slot] = credit
            return
        self._ring.popleft()
        self._schedule(slot, credit, weight)

    def end_single_turn(self) -> None:
        """Count one message of the queue at the head, whose weight is 1: its turn is over.

        So it is where :meth:`next_queue` allowed it one message.
        """
        self._ring.rotate(-1)

    def remove_head(self) -> None:
        """Remove the queue at the head of the ring."""
        self._ring.popleft()

    def _is_alone(self) -> bool:
        return len(self._ring) == 2 and not self._resting_rounds

    def _schedule(self, slot: int, credit: int, weight: int) -> None:
        """Put a queue where its turn comes as soon as it has saved enough for a message."""
        rounds = -(-(UNIT - credit) // weight)
        self._credits[slot] = credit + rounds * weight
        if rounds <= 1:
            self._ring.append(slot)
            return
        number = self._round + rounds - 1
        resting = self._resting.get(number)
        if resting is None:
            resting = self._resting[number] = deque()
            heappush(self._resting_rounds, number)
        resting.append(slot)


class LaneShares:
    """The rest of each lane's share of the present cycle. A set of lanes is an int of bits."""

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
        lane = lowest_lane(candidates)
        return lane, self._share(lane)

    def charge(self, lane: int, messages: int) -> None:
        """Count the messages that a lane was given."""
        left = self._left[lane] = self._share(lane) - messages
        if left <= 0:
            self._spent |= 1 << lane

    def _share(self, lane: int) -> int:
        weight = self._weights[lane] if lane < len(self._weights) else 1
        return self._left.get(lane, weight)


def lowest_lane(lanes: int) -> int:
    """Return the most urgent of a set of lanes that is not empty."""
    return (lanes & -lanes).bit_length() - 1
