"""A state machine that remembers what it has just been told, for those who want to know."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from goq.cluster.raft.state_machine.state_machine import Request, StateMachine


class Applied(NamedTuple):
    """A command that was applied, and its result; without a request, a snapshot was taken over."""

    index: int  # type: ignore[assignment]  # a tuple's own method is of no use here
    request: Request | None
    result: Any


class WatchedMachine:
    """Passes everything on."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._news: list[Applied] = []

    def news(self) -> list[Applied]:
        """Return what happened since the last call, in order."""
        news, self._news = self._news, []
        return news

    @property
    def applied_index(self) -> int:
        """See ``StateMachine``."""
        return self._machine.applied_index

    def apply(self, request: Request, index: int) -> Any:
        """See ``StateMachine``."""
        result = self._machine.apply(request, index)
        self._news.append(Applied(index, request, result))
        return result

    def flush(self, index: int) -> None:
        """See ``StateMachine``."""
        self._machine.flush(index)

    def snapshot(self, path: Path) -> None:
        """See ``StateMachine``."""
        self._machine.snapshot(path)

    def restore(self, path: Path) -> None:
        """See ``StateMachine``."""
        self._machine.restore(path)
        self._news.append(Applied(self._machine.applied_index, None, None))
