"""Simulated time and chance: events in order of their moments, everything drawn from the seed."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable
from random import Random


class World:
    """The clock, the events to come, and what has happened so far.

    Each concern draws from its own stream of chance, so that one that draws more often does not
    change what the others draw.
    """

    def __init__(self, seed: int, *, log: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.now = 0.0  # seconds
        self.counts: Counter[str] = Counter()
        self.host: Host | None = None  # whose code runs
        self._log = log
        self._digest = hashlib.sha256()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def stream(self, name: str) -> Random:
        return Random(f"{self.seed} {name}")

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, event))

    def run_until(self, moment: float, stop: Callable[[], bool]) -> None:
        """Let events happen up to a moment, or until ``stop`` says so after one of them."""
        while self._events and self._events[0][0] <= moment:
            self.now, _, event = heapq.heappop(self._events)
            event()
            if stop():
                return
        self.now = max(self.now, moment)

    def note(self, line: str) -> None:
        """Put something that happened into the history."""
        self._digest.update(line.encode())
        if self._log is not None:
            self._log(f"{self.now:9.4f} {line}")

    def history(self) -> str:
        """Return a digest of all that was noted."""
        return self._digest.hexdigest()


class Host:
    """A machine: its monotonic clock goes at its own rate, jumps ahead, and never goes back."""

    def __init__(self, world: World, rate: float) -> None:
        self._world = world
        self._rate = rate
        self._ahead = 0.0
        self._last = 0.0

    def monotonic(self) -> float:
        self._last = max(self._last + 1e-6, self._world.now * self._rate + self._ahead)
        return self._last

    def work(self, seconds: float) -> None:
        """Let time pass for the code that runs: a loop that waits for time to pass must end."""
        self._last += seconds

    def jump(self, seconds: float) -> None:
        self._ahead += seconds

    def reboot(self, random: Random) -> None:
        """Begin the clock anew, at anything: it means nothing across restarts."""
        self._last = 0.0
        self._ahead = random.uniform(0, 100) - self._world.now * self._rate
