"""The tenants of a partition: each name has a small number, so that columns and queues are small.

Numbers begin at 1 and are given in the order in which names come up; 0 is "no tenant". They are
never written down: after a restart a name may have another. Beyond the bound on names a new one
shares a number with others, and so its turns and its cap: nothing is refused, memory ends there.
"""

from __future__ import annotations

from zlib import crc32

from goq import limits

NO_TENANT = 0


class Tenants:
    """Names to numbers and back."""

    __slots__ = ("_names", "_numbers")

    def __init__(self) -> None:
        self._names = [""]
        self._numbers = {"": NO_TENANT}

    def __len__(self) -> int:
        return len(self._names) - 1

    def number(self, name: str) -> int:
        """Return the number of a name, a new one if it has none; that of ``""`` is 0."""
        number = self._numbers.get(name)
        if number is not None:
            return number
        number = len(self._names)
        if number > limits.TENANTS_PER_PARTITION_MAX:
            return 1 + crc32(name.encode()) % limits.TENANTS_PER_PARTITION_MAX
        self._names.append(name)
        self._numbers[name] = number
        return number

    def name(self, number: int) -> str:
        """Return the name that a number was first given to."""
        return self._names[number]
