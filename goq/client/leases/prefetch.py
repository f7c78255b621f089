"""The prefetch window: how many messages a consume loop receives ahead of its caller."""

from __future__ import annotations

from math import exp
from typing import Final

_FIRST: Final = 16
_AHEAD_S: Final = 1.0
_MEMORY_S: Final = 0.5


class PrefetchWindow:
    """The number of messages to receive ahead: as many as the caller handles in a second.

    Messages that wait here are kept from other consumers. So a slow caller has few, at least one,
    and a fast one ``messages_max``. The rate is messages over the time that the caller had them,
    both with an exponential decay of 0.5 s of that time. So a caller that settles many messages
    with the last of them counts as fast as it is.

    There is nothing to note while the caller takes no longer than ``unnoted_s``.
    """

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._count = 0.0
        self._count_max = messages_max * _MEMORY_S / _AHEAD_S
        self._time_s = 0.0
        self.unnoted_s = -1.0
        self.size = min(_FIRST, messages_max)

    def note(self, handled_s: float) -> bool:
        """Note how long the caller took for a message; return whether the window is smaller now."""
        decay = exp(-handled_s / _MEMORY_S)
        self._count = min((self._count + 1) * decay, self._count_max)
        self._time_s = self._time_s * decay + (1 - decay) * _MEMORY_S
        before, self.size = self.size, self._messages_max
        if self._count * _AHEAD_S < self._messages_max * self._time_s:
            self.size = max(1, int(self._count * _AHEAD_S / self._time_s))
        is_quick = self.size == self._messages_max and self._count == self._count_max
        self.unnoted_s = _AHEAD_S / self._messages_max if is_quick else -1.0
        return self.size < before

    def share(self, streams: int) -> int:
        """Return the part of each of so many streams."""
        return -(-self.size // max(1, streams))

    def is_larger(self, window: int, streams: int) -> bool:
        """Return whether a stream's ``window`` is worth enlarging: to twice, or to the maximum."""
        share = self.share(streams)
        return share > window and (share >= 2 * window or self.size == self._messages_max)
