"""A throttle for log records that would repeat: one of a kind in a period, with their number."""

from __future__ import annotations

from collections.abc import Hashable


class LogThrottle:
    """Admits one record of each kind in ``period_s`` seconds of monotonic time."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._admitted_s: dict[Hashable, float] = {}
        self._left_out: dict[Hashable, int] = {}

    def admit(self, kind: Hashable, now_s: float) -> int | None:
        """Return how many records were left out before this one, None if this one is, too.

        Kinds must be few: each is kept.
        """
        admitted_s = self._admitted_s.get(kind)
        if admitted_s is not None and now_s - admitted_s < self._period_s:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return None
        self._admitted_s[kind] = now_s
        return self._left_out.pop(kind, 0)
