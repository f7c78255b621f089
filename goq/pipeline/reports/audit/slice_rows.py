"""The rows about a slice of a partition's offsets, as arrays.

A kind is a number: that of an event's name, from 1, or ``MESSAGE`` for the message itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MESSAGE = -1
NO_GROUP = -1
NONE = -(2**63)
"""A lease or time that a row does not have."""

EVENT_KINDS = (
    *("DELIVERED", "ACKNOWLEDGED", "NACKED", "EXPIRED", "EXTENDED", "DEAD_LETTERED", "DROPPED"),
    *("SKIPPED", "CANCELLED", "REDRIVEN", "CORRUPTED", "RESET", "GROUP_DELETED"),
)
"""The kinds of events that an audit tells apart; all others are 0."""
TTL = len(EVENT_KINDS) + 1
"""An EXPIRED without a lease: it ends the message, not a lease."""
KINDS = {name: number for number, name in enumerate((*EVENT_KINDS, "TTL"), 1)}


def bits_of(*names: str) -> int:
    """Return the set of these kinds as the bits of a number."""
    return sum(1 << KINDS[name] for name in names)


class SliceRows(NamedTuple):
    """Columns of the rows about some offsets of one partition, messages and events."""

    kind: Ints
    group: Ints
    offset: Ints
    sequence: Ints
    lease: Ints
    time_us: Ints
    due_us: Ints

    def where(self, chosen: Flags | Ints) -> SliceRows:
        """Return some of the rows."""
        return SliceRows(*(column[chosen] for column in self))


class Runs:
    """Sorted values, and where each new one begins."""

    def __init__(self, ordered: Ints) -> None:
        self.starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
        self.values = ordered[self.starts]
        self.count = len(self.starts)

    def any_bits(self, bits: Ints) -> Ints:
        """Return the union of the bits of each run."""
        return np.bitwise_or.reduceat(bits, self.starts)

    def total(self, flags: Flags) -> Ints:
        """Return how many of each run are set."""
        return np.add.reduceat(flags.astype(np.int64), self.starts)

    def least(self, values: Ints) -> Ints:
        """Return the least value of each run."""
        return np.minimum.reduceat(values, self.starts)

    def most(self, values: Ints) -> Ints:
        """Return the greatest value of each run."""
        return np.maximum.reduceat(values, self.starts)

    def last(self, flags: Flags) -> Ints:
        """Return the place of each run's last set flag, -1 for none."""
        return self.most(np.where(flags, np.arange(len(flags)), -1))

    def index_of(self, wanted: Ints) -> Ints:
        """Return the number of the run of each wanted value, -1 for none."""
        if not self.count:
            return np.full(len(wanted), -1)
        found = np.minimum(np.searchsorted(self.values, wanted), self.count - 1)
        return np.where(self.values[found] == wanted, found, -1)
