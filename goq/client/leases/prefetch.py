"""The prefetch window: how many messages a consume loop receives ahead of its caller."""

from __future__ import annotations

from typing import Final

_FIRST: Final = 16
_AHEAD_S: Final = 1.0
_WEIGHT: Final = 0.2  # of the latest message in the average


class PrefetchWindow:
    """The number of messages to receive ahead: as many as the caller handles in a second.

    Messages that wait here are kept from other consumers. So a slow caller has few, at least one,
    and a fast one ``messages_max``. The time that the caller takes is a moving average.
    """

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._quick_s = _AHEAD_S / messages_max
        self._each_s = -1.0
        self.size = min(_FIRST, messages_max)

    def note(self, handled_s: float) -> bool:
        """Note how long the caller took for a message; return whether the window is smaller now."""
        if handled_s <= self._quick_s and self._each_s <= self._quick_s:
            self.size = self._messages_max
            return False
        if self._each_s < 0:
            self._each_s = handled_s
        self._each_s += (handled_s - self._each_s) * _WEIGHT
        before, self.size = self.size, self._messages_max
        if self._each_s > self._quick_s:
            self.size = max(1, int(_AHEAD_S / self._each_s))
        return self.size < before

    def share(self, streams: int) -> int:
        """Return the part of each of so many streams."""
        return -(-self.size // max(1, streams))

    def is_larger(self, window: int, streams: int) -> bool:
        """Return whether a stream's ``window`` is worth enlarging: to twice, or to the maximum."""
        share = self.share(streams)
        return share > window and (share >= 2 * window or self.size == self._messages_max)
