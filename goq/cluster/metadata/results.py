"""What became of a command: it was accepted, or refused and changed nothing."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from goq import limits
from goq.cluster.metadata.state import MetadataState


class Accepted(msgspec.Struct, frozen=True, tag="accepted", forbid_unknown_fields=True):
    """The command was applied. ``index`` is its place in the log; ``done`` says it to people.

    ``value`` is the one number that the proposer needs to go on: the topic's id, or the new
    version of what was changed. Each command says which.
    """

    index: int
    done: str
    value: int = 0


class Rejected(msgspec.Struct, frozen=True, tag="refused", forbid_unknown_fields=True):
    """The command changed nothing. ``code`` is stable, ``detail`` says why and what to do."""

    code: str
    detail: str


Result = Accepted | Rejected


class Applied(NamedTuple):
    """A state, and what the command that led to it came to."""

    state: MetadataState
    result: Result


class CommandRejected(Exception):
    """Raised inside of a command's rules, to end it; never leaves ``apply``."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.result = Rejected(code, detail[: limits.REASON_CHARS_MAX])
