"""What happened to a group's membership, for people to look at: a bounded history."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from goq import limits


class RebalanceReason(StrEnum):
    """Why partitions were shared out anew."""

    JOINED = "joined"
    LEFT = "left"
    EVICTED = "evicted"
    PARTITIONS_ADDED = "partitions_added"


@dataclass(slots=True)
class Move:
    """A partition on its way from the consumer that had it last to the one that is to have it.

    ``source`` None means that nobody ever had it, ``target`` None that nobody is there to have
    it, and both the same that it stays after all. ``paused_ms`` is how long nobody got messages
    of it; None as long as that lasts, and for ever if a later rebalance sent it elsewhere first.
    """

    partition: int
    source: str | None
    target: str | None
    paused_from_ms: int
    """When the pause began, on the clock of the membership; an earlier move may have begun it."""
    paused_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One change of the membership, and what it moved."""

    generation: int
    reason: RebalanceReason
    consumers: tuple[str, ...]
    """Who joined, left or was evicted."""
    moves: tuple[Move, ...]

    @property
    def weight(self) -> int:
        """How much it is to remember."""
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
        """Remember a rebalance; the oldest are forgotten for it."""
        self._entries.append(RebalanceRecord(time_us, rebalance))
        self._weight += rebalance.weight
        while len(self._entries) > 1 and (
            len(self._entries) > limits.REBALANCES_REMEMBERED
            or self._weight > limits.REBALANCE_MOVES_REMEMBERED
        ):
            self._weight -= self._entries.popleft().rebalance.weight
