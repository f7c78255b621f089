"""Simulated time, chance and history: everything is drawn from the seed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from random import Random

from tests.sim.environment.loop import ProcessLoop


class World:
    """Time, the counts of what happened, and a digest of all that was noted.

    Each concern draws from its own stream of chance, so that one that draws more often does not
    change what the others draw.
    """

    def __init__(
        self, seed: int, *, pace: float = 1.0, log: Callable[[str], None] | None = None
    ) -> None:
        self.seed = seed
        self.pace = pace
        """How many times rarer faults and requests of clients are than in a short life."""
        self.loop = ProcessLoop()
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self.noted_s = 0.0
        """The time of the latest note: how tasks end after it is not simulated."""
        self._log = log
        self._digest = hashlib.sha256()

    def stream(self, name: str) -> Random:
        return Random(f"{self.seed} {name}")

    def note(self, line: str) -> None:
        """Put something that happened into the history."""
        self.noted_s = self.loop.time()
        line = f"{self.noted_s:10.6f} {line}"
        self._digest.update(line.encode() + b"\n")
        if self._log is not None:
            self._log(line)

    def fail(self, what: str) -> None:
        """Note that a promise is broken."""
        self.note(f"BROKEN: {what}")
        self.broken.append(what)

    def history(self) -> str:
        """Return a digest of all that was noted."""
        return self._digest.hexdigest()
