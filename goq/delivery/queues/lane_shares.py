"""Whose turn it is among lanes with weights: each gets its weight in every cycle.

A cycle ends when no lane that has messages has a share left of it; what a lane without messages
did not use is lost, so an idle lane saves nothing up. Within a cycle lane 0 goes first. Shares
live on between calls: a thousand calls for one message come to the same as one for a thousand.
"""

from __future__ import annotations


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
