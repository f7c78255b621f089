"""How long a message waits before it is tried again, and when it is not.

Exponential backoff: the wait doubles with each attempt up to a bound, and is then made longer or
shorter by chance, so that what failed together does not come back together.
"""

from __future__ import annotations

from typing import NamedTuple

_DOUBLINGS_MAX = 40  # beyond any bound that a wait may have


class RetryPolicy(NamedTuple):
    """What a group wants done with messages whose attempt failed.

    ``attempts_max`` None is for ever; ``jitter`` is the part of a wait that chance may add or
    take. Where a message was given up, ``dead_letters`` says whether it is kept as one.
    """

    attempts_max: int | None = 4
    initial_ms: int = 1_000
    max_ms: int = 60_000
    jitter: float = 0.2
    dead_letters: bool = True

    def wait_ms(self, attempt: int, luck: float) -> int:
        """Return how long to wait after ``attempt`` failed; ``luck`` is from 0 to below 1."""
        doublings = min(max(attempt - 1, 0), _DOUBLINGS_MAX)
        wait_ms = min(self.initial_ms << doublings, self.max_ms)
        return round(wait_ms * (1 + self.jitter * (2 * luck - 1)))

    def gives_up(self, attempt: int) -> bool:
        """Whether there is no attempt after this one."""
        return self.attempts_max is not None and attempt >= self.attempts_max
