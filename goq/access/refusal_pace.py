"""The pace at which the refusals of one sender are answered.

A sender that is refused at once may ask again at once, and a flood of refused requests would take
the node's time from others. So a sender has a number of refusals in a second, and a burst of one
second. Those beyond it are held until their turn, ``pause_s_max`` at most: a client that waits for
its answers then sends no more than that. Time is a parameter.
"""

from __future__ import annotations

from typing import Final

from goq import limits

_BURST_S: Final = 1.0


class RefusalPace:
    """The turns of refusals, by sender. Of more than ``senders_max`` senders none is held."""

    def __init__(
        self,
        per_s: float = limits.REFUSALS_PER_S,
        pause_s_max: float = limits.REFUSAL_PAUSE_S_MAX,
        senders_max: int = limits.REFUSAL_SENDERS_MAX,
    ) -> None:
        self._step_s = 1 / per_s
        self._pause_s_max = pause_s_max
        self._senders_max = senders_max
        self._turns_s: dict[str, float] = {}

    def pause_s(self, sender: str, now_s: float) -> float:
        """Take a turn for a refusal; return how long to hold it."""
        turn_s = self._turns_s.get(sender)
        if turn_s is None and len(self._turns_s) >= self._senders_max:
            self._forget(now_s)
        earliest_s = now_s - _BURST_S
        turn_s = earliest_s if turn_s is None else max(turn_s, earliest_s)
        turn_s = min(turn_s + self._step_s, now_s + self._pause_s_max)
        self._turns_s[sender] = turn_s
        return max(0.0, turn_s - now_s)

    def _forget(self, now_s: float) -> None:
        """Forget the senders that have all of their burst; all if there are too many others."""
        at_work = {s: at_s for s, at_s in self._turns_s.items() if at_s > now_s - _BURST_S}
        self._turns_s = at_work if len(at_work) < self._senders_max else {}
