"""Delayed messages as columns, and sets of offsets as sorted arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Column = Sequence[int] | Int64s
Mask = npt.NDArray[np.bool_]


class Rows(NamedTuple):
    """Messages, each with a tag and the time it is due in ms since the epoch."""

    offsets: Int64s
    tags: Int64s
    due_ms: Int64s

    @classmethod
    def of(cls, *columns: Column) -> Rows:
        """Return rows of columns in the fields' order."""
        return cls(*(np.asarray(column, np.int64) for column in columns))

    def only(self, mask: Mask) -> Rows:
        """Return the rows at which the mask is true."""
        return Rows(self.offsets[mask], self.tags[mask], self.due_ms[mask])


def sorted_offsets(offsets: Iterable[int]) -> Int64s:
    """Return offsets as :func:`among` wants them."""
    return np.sort(np.fromiter(offsets, np.int64))


def among(offsets: Int64s, wanted: Int64s) -> Mask:
    """Return which offsets are wanted ones; these are sorted."""
    if not len(wanted) or not len(offsets):
        return np.zeros(len(offsets), bool)
    found: Int64s = np.searchsorted(wanted, offsets).clip(max=len(wanted) - 1)
    mask: Mask = wanted[found] == offsets
    return mask
