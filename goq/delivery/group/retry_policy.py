"""The retry policy of a group: exponential backoff, and the number of attempts.

The wait doubles with each attempt up to a bound. Random jitter makes it longer or shorter, so that
messages that failed together do not come back together.
"""

from __future__ import annotations

from typing import NamedTuple

_DOUBLINGS_MAX = 40  # beyond any bound that a wait may have


class RetryPolicy(NamedTuple):
    """How a group retries messages whose attempt failed.

    ``attempts_max`` None is no bound; ``jitter`` is the share of a wait that chance adds or takes.
    ``dead_letters`` says whether a message without further attempts is kept as a dead letter.
    """

    attempts_max: int | None = 4
    initial_ms: int = 1_000
    max_ms: int = 60_000
    jitter: float = 0.2
    dead_letters: bool = True

    def wait_ms(self, attempt: int, random: float) -> int:
        """Return how long to wait after ``attempt`` failed; ``random`` is from 0 to below 1."""
        doublings = min(max(attempt - 1, 0), _DOUBLINGS_MAX)
        wait_ms = min(self.initial_ms << doublings, self.max_ms)
        return round(wait_ms * (1 + self.jitter * (2 * random - 1)))

    def is_last(self, attempt: int) -> bool:
        """Return whether there is no attempt after this one."""
        return self.attempts_max is not None and attempt >= self.attempts_max
