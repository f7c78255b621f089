"""The maturity of delayed messages: a staircase of times and offsets.

A maturing says that every delayed message before ``end_offset`` with a due time of at most
``up_to_ms`` has matured. While the clock runs forward, the last maturing covers all earlier ones.
After the clock was set back, a later maturing reaches further in offsets and less far in time. Then
both count, so that a message published in between is not taken for one that matured before it
existed.

A message that waits may be given a due time that the staircase covers already. It has not matured:
it is *exempt* until a later maturing covers it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Pair = tuple[int, int]


class Maturity:
    """The maturings that count, and the exempt messages; part of a partition's state.

    ``pairs`` are ``(up_to_ms, end_offset)`` with times falling and offsets rising, ``exempt`` are
    ``(offset, due_ms)``.
    """

    def __init__(self, pairs: Iterable[Pair] = (), exempt: Iterable[Pair] = ()) -> None:
        self.pairs: list[Pair] = []
        self._exempt: dict[int, int] = {}
        for up_to_ms, end_offset in pairs:
            self.mature(up_to_ms, end_offset)
        self._exempt = dict(exempt)

    @property
    def exempt(self) -> list[Pair]:
        """The messages that have not matured though the pairs cover them: offset and due time."""
        return list(self._exempt.items())

    def mature(self, up_to_ms: int, end_offset: int) -> None:
        """Record that everything before ``end_offset`` that is due at ``up_to_ms`` has matured."""
        for offset, due_ms in self.exempt:
            if offset < end_offset and due_ms <= up_to_ms:
                del self._exempt[offset]
        if end_offset > 0 and not self._covers(end_offset - 1, up_to_ms):
            kept = [(u, e) for u, e in self.pairs if u > up_to_ms or e > end_offset]
            self.pairs = sorted([*kept, (up_to_ms, end_offset)], reverse=True)

    def reschedule(self, offset: int, due_ms: int) -> None:
        """Give a message that has not matured another due time."""
        self._exempt.pop(offset, None)
        if self._covers(offset, due_ms):
            self._exempt[offset] = due_ms

    def has_matured(self, offset: int, due_ms: int) -> bool:
        """Return whether a delayed message has matured; ``due_ms`` is its time in force."""
        return self._covers(offset, due_ms) and offset not in self._exempt

    def matured(
        self, offsets: npt.NDArray[np.int64], due_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the delayed messages that have matured."""
        mask = np.zeros(len(offsets), bool)
        for up_to_ms, end_offset in self.pairs:
            mask |= (offsets < end_offset) & (due_ms <= up_to_ms)
        if self._exempt and mask.any():
            mask &= ~np.isin(offsets, np.fromiter(self._exempt, np.int64))
        return mask

    def trim(self, start_offset: int) -> None:
        """Drop what matters only to messages before ``start_offset``."""
        self.pairs = [pair for pair in self.pairs if pair[1] > start_offset]
        self._exempt = {o: due_ms for o, due_ms in self._exempt.items() if o >= start_offset}

    def truncate(self, end_offset: int) -> None:
        """Drop messages from ``end_offset`` on: other messages will get their offsets."""
        pairs, self.pairs = self.pairs, []
        exempt = {o: due_ms for o, due_ms in self._exempt.items() if o < end_offset}
        self._exempt = {}
        for up_to_ms, end in pairs:
            self.mature(up_to_ms, min(end, end_offset))
        self._exempt = exempt

    def _covers(self, offset: int, due_ms: int) -> bool:
        return any(offset < end and due_ms <= up_to_ms for up_to_ms, end in self.pairs)
