"""The slots of one level of a timer wheel: arrays of due time, offset and tag, in 24 bytes."""

from __future__ import annotations

import heapq
from array import array

import numpy as np

from goq.delivery.delay.rows import Int64s


class SlotLevel:
    """The slots of one width that hold something, and the order of their numbers."""

    __slots__ = ("order", "shift", "slots")

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.slots: dict[int, array[int]] = {}
        self.order: list[int] = []

    def slot(self, number: int) -> array[int]:
        """Return a slot, a new one if need be."""
        slot = self.slots.get(number)
        if slot is None:
            slot = self.slots[number] = array("q")
            heapq.heappush(self.order, number)
        return slot

    def first_ms(self) -> int | None:
        """Return when the earliest slot begins."""
        return self.order[0] << self.shift if self.order else None

    def take_first(self) -> Int64s:
        """Remove the earliest slot and return its rows."""
        return rows_of(self.slots.pop(heapq.heappop(self.order)))

    def replace(self, number: int, rows: Int64s) -> None:
        """Let a slot hold these rows; it is gone when they are none."""
        if len(rows):
            self.slots[number] = array("q", rows.tobytes())
        else:
            del self.slots[number]
            self.order = sorted(self.slots)


def rows_of(slot: array[int]) -> Int64s:
    """Return a slot's entries, a row each, where they lie."""
    return np.frombuffer(slot, np.int64).reshape(-1, 3)
