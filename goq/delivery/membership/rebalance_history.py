"""The latest rebalances of a group, for views: a bounded history."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import msgspec

from goq import limits


class RebalanceReason(StrEnum):
    """The reason why partitions were assigned anew."""

    JOINED = "joined"
    LEFT = "left"
    EVICTED = "evicted"
    PARTITIONS_ADDED = "partitions_added"


class Move(msgspec.Struct):
    """A partition on its way from its last owner to its next one.

    ``source`` None means that it never had an owner, ``target`` None that there is no member, and
    both equal that it stays after all. ``paused_ms`` is how long no member got messages of it. It
    is None while the pause lasts, and for ever if a later rebalance moved the partition elsewhere
    first.
    """

    partition: int
    source: str | None
    target: str | None
    paused_from_ms: int
    """When the pause began, on the clock of the membership; an earlier move may have begun it."""
    paused_ms: int | None = None


class Rebalance(msgspec.Struct, frozen=True):
    """One change of the membership, and the partitions that it moved."""

    generation: int
    reason: RebalanceReason
    consumers: tuple[str, ...]
    """The members that joined, left or were evicted."""
    moves: tuple[Move, ...]

    @property
    def weight(self) -> int:
        """The number of entries that it takes in the history."""
        return len(self.consumers) + len(self.moves)


class RebalanceRecord(NamedTuple):
    """A rebalance, and its wall-clock time in microseconds."""

    time_us: int
    rebalance: Rebalance


class RebalanceHistory:
    """The latest rebalances, oldest first, as many as the limits allow and at least one."""

    def __init__(self) -> None:
        self._entries: deque[RebalanceRecord] = deque()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[RebalanceRecord]:
        return iter(self._entries)

    def add(self, time_us: int, rebalance: Rebalance) -> None:
        """Add a rebalance, and drop the oldest beyond the limits."""
        self._entries.append(RebalanceRecord(time_us, rebalance))
        self._weight += rebalance.weight
        while len(self._entries) > 1 and (
            len(self._entries) > limits.REBALANCES_REMEMBERED
            or self._weight > limits.REBALANCE_MOVES_REMEMBERED
        ):
            self._weight -= self._entries.popleft().rebalance.weight
