"""What the group replicates: a list of requests, of which a node keeps only how it ended."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from random import Random
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a machine came: how many commands it applied, and a checksum over all of them."""

    count: int = 0
    checksum: int = 0

    def after(self, command: str) -> Reached:
        return Reached(self.count + 1, zlib.crc32(command.encode(), self.checksum))


class Watcher(Protocol):
    """Who looks at a machine."""

    def applied(self, command: str, before: Reached, answer: str) -> None: ...
    def restored(self, reached: Reached) -> None: ...


class Unwatched:
    """Nobody."""

    def applied(self, command: str, before: Reached, answer: str) -> None:
        return

    def restored(self, reached: Reached) -> None:
        return


class Poison(Exception):
    """What the machine raises for a command that it cannot apply."""


def command_of(request: int, attempt: int, padding: int, *, poison: bool) -> str:
    return f"{request} {attempt} {'poison' if poison else ''} {'x' * padding}"


def request_of(command: str) -> int:
    return int(command.split(" ", 1)[0])


class Machine:
    """Answers a request with its place in the list; a retry gets the first answer again.

    What it applied since the last :meth:`flush` may be gone after a loss of power, from any
    command on, but never a command without those after it.
    """

    def __init__(self) -> None:
        self.watcher: Watcher = Unwatched()
        self.index = 0  # of the last command in the log, for whoever counts
        self._reached = Reached()
        self._answers: dict[int, str] = {}
        self._since_flush: list[tuple[str, int]] = []
        self._flushed = self.snapshot()
        self._replaced: bytes | None = None  # what a restore replaced, perhaps not durably yet

    def apply(self, command: str, index: int) -> str:
        before, request = self._reached, request_of(command)
        self._reached = before.after(command)
        self.index = index
        self._since_flush.append((command, index))
        poison = command.split(" ", 3)[2] == "poison"
        if not poison and request not in self._answers:
            self._answers[request] = f"{request} is {len(self._answers)} at {before.checksum}"
        answer = "poison" if poison else self._answers[request]
        self.watcher.applied(command, before, answer)
        if poison:
            raise Poison(command)
        return answer

    @property
    def digest(self) -> bytes:
        return f"{self._reached.count}-{self._reached.checksum}".encode()

    def snapshot(self) -> bytes:
        reached = self._reached
        state = [self.index, reached.count, reached.checksum, list(self._answers.items())]
        return json.dumps(state).encode()

    def restore(self, data: bytes) -> None:
        self.index, count, checksum, answers = json.loads(data)
        self._reached = Reached(count, checksum)
        self._answers = dict(answers)
        before = self._flushed
        self.flush(self.index)
        self._replaced = before
        self.watcher.restored(self._reached)

    def flush(self, index: int) -> None:
        """Make all durable; commands up to ``index`` that are none of the machine's count too."""
        self.index = max(self.index, index)
        self._flushed = self.snapshot()
        self._since_flush.clear()
        self._replaced = None

    def watched_by(self, watcher: Watcher) -> Reached:
        """Begin another life under a watcher; return how far the machine is."""
        self.watcher = watcher
        return self._reached

    def lose_power(self, random: Random) -> None:
        """Go back to any state since the last flush."""
        kept = self._since_flush[: random.randint(0, len(self._since_flush))]
        flushed = self._flushed
        if self._replaced is not None and random.random() < 0.5:
            flushed, kept = self._replaced, []
        self.watcher = Unwatched()
        self.restore(flushed)
        self._replaced = None
        for command, index in kept:
            try:
                self.apply(command, index)
            except Poison:
                pass
