"""Interface between Raft and the replicated state machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec


class Proposal(msgspec.Struct, frozen=True, array_like=True):
    """A command as stored in the log.

    ``proposer`` is random and new at each start of a node; ``sequence`` counts its commands. A
    command that arrives again with the same two is the same command. ``version`` is the version of
    the command's meaning. ``command`` is plain data: the types of JSON, and bytes.
    """

    version: int
    proposer: int
    sequence: int
    command: Any


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The result of a command that changed nothing, the same on every node.

    ``code`` is that of an error in ``goq.errors``, or one of the caller; ``detail`` is for people.
    """

    code: str
    detail: str


class StateMachineFailed(Exception):
    """The state machine could not apply a command, for a reason outside the command.

    An example is a broken file. The node stops rather than skip a command that others apply.
    """


class StateMachine(Protocol):
    """State that commands change. Used by one thread, the Raft thread."""

    @property
    def applied_index(self) -> int:
        """The index of the last command in the state, as far as known; 0 if new.

        It is part of the state, and changes together with it. It is read once, at the start.
        """
        ...

    @property
    def feature_level(self) -> int:
        """The level of features that all members know, by the version of their program."""
        ...

    @property
    def digest(self) -> bytes | None:
        """A digest of the state, equal on all members after the same command.

        None while members may not know how to compute it, or the state has none.
        """
        ...

    def apply(self, request: Proposal, index: int) -> Any:
        """Change the state and its applied index atomically, and return the result.

        ``index`` grows, but not always by one. A proposal that was applied before must change
        nothing and return the same result; ``SqliteStateMachine`` implements that. The result must
        follow from the state and the proposal alone. An exception counts as :class:`Refused`, and
        must leave the state unchanged. Exceptions to that are ``StorageFull``, after which the same
        command comes again, and ``StateMachineFailed``, ``OSError`` and ``MemoryError``, which stop
        the node.
        """
        ...

    def flush(self, index: int) -> None:
        """Return once the state survives power loss, with an applied index of at least ``index``.

        All commands up to ``index`` were applied; the log may drop them afterwards. Raises
        ``StorageFull``, and any error that ``apply`` may raise.
        """
        ...

    def snapshot(self, path: Path) -> None:
        """Write the state with its applied index into a new file, which need not be durable.

        Raises ``CorruptData`` if the state is damaged: the node stops, and sends it to nobody.
        """
        ...

    def restore(self, path: Path, *, is_diverged: bool = False) -> None:
        """Replace the state by that in a file, atomically: after a crash it is the old or the new.

        The file stays where it is. ``is_diverged`` says that the present state is not an earlier
        one, but contradicts the leader's.
        """
        ...


class AppliedEntry(NamedTuple):
    """A command that was applied, and its result; without a proposal, a restored snapshot."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    request: Proposal | None
    result: Any


class RecordingStateMachine:
    """Delegates to a state machine, and records what was applied."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._applied: list[AppliedEntry] = []

    def take_applied(self) -> list[AppliedEntry]:
        """Return the entries applied since the last call, in order."""
        applied, self._applied = self._applied, []
        return applied

    @property
    def applied_index(self) -> int:
        """See ``StateMachine``."""
        return self._machine.applied_index

    @property
    def feature_level(self) -> int:
        """See ``StateMachine``."""
        return self._machine.feature_level

    @property
    def digest(self) -> bytes | None:
        """See ``StateMachine``."""
        return self._machine.digest

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

    def restore(self, path: Path, *, is_diverged: bool = False) -> None:
        """See ``StateMachine``."""
        self._machine.restore(path, is_diverged=is_diverged)
        self._applied.append(AppliedEntry(self._machine.applied_index, None, None))
