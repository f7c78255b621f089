"""The seam between the agreed commands and what they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec


class Proposal(msgspec.Struct, frozen=True, array_like=True):
    """A command as it stands in the log.

    ``proposer`` is random and new with each start of a node, ``sequence`` counts its commands: a
    command that comes again with both the same is the same command. ``version`` says how
    ``command`` is meant; it is plain data: what JSON has, and bytes.
    """

    version: int
    proposer: int
    sequence: int
    command: Any


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The result of a command that changed nothing, the same on every node.

    ``code`` is that of an error in ``goq.errors`` or of the caller's own, ``detail`` for people.
    """

    code: str
    detail: str


class StateMachineFailed(Exception):
    """The machine could not apply a command for a reason that is not in the command.

    A broken file: the node stops rather than skip what the others apply.
    """


class StateMachine(Protocol):
    """What commands change. Used by one thread, that of the Raft node."""

    @property
    def applied_index(self) -> int:
        """The index of the last command that the state contains, as far as it is known; 0 if new.

        It is part of the state, changes together with it, and is read once, at the start.
        """
        ...

    def apply(self, request: Proposal, index: int) -> Any:
        """Change the state and its applied index, at once, and return the result.

        ``index`` grows, but not always by one. A request that was applied before must change
        nothing and return the same result:
        ``SqliteStateMachine`` does that. The result must
        follow from the state and the request alone. An exception counts as :class:`Refused`, and
        the state must be as before; except for ``StorageFull``, after which the same command comes
        again, and ``StateMachineFailed``, ``OSError`` and ``MemoryError``: these stop the node.
        """
        ...

    def flush(self, index: int) -> None:
        """Return once the state survives power loss, with an applied index of at least ``index``.

        All commands up to ``index`` were applied; the log may forget them afterwards. Raises
        ``StorageFull``, and what ``apply`` may raise.
        """
        ...

    def snapshot(self, path: Path) -> None:
        """Write the state with its applied index into a new file. It need not be durable."""
        ...

    def restore(self, path: Path) -> None:
        """Replace the state by the one in a file, at once: after a crash it is the old or the new.

        The file is left where it is.
        """
        ...


class AppliedEntry(NamedTuple):
    """A command that was applied, and its result; without a request, a snapshot was taken over."""

    index: int  # type: ignore[assignment]  # a tuple's own method is of no use here
    request: Proposal | None
    result: Any


class RecordingStateMachine:
    """Passes everything on."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._applied: list[AppliedEntry] = []

    def take_applied(self) -> list[AppliedEntry]:
        """Return what happened since the last call, in order."""
        news, self._applied = self._applied, []
        return news

    @property
    def applied_index(self) -> int:
        """See ``StateMachine``."""
        return self._machine.applied_index

    def apply(self, request: Proposal, index: int) -> Any:
        """See ``StateMachine``."""
        result = self._machine.apply(request, index)
        self._applied.append(AppliedEntry(index, request, result))
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
        self._applied.append(AppliedEntry(self._machine.applied_index, None, None))
