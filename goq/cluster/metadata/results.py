"""Results of commands: accepted, or rejected without a change."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from goq import limits
from goq.cluster.metadata.state import MetadataState


class Accepted(msgspec.Struct, frozen=True, tag="accepted", forbid_unknown_fields=True):
    """The command was applied. ``index`` is its log index; ``done`` describes the effect to people.

    ``value`` is the one number that the proposer needs to continue: the topic's id, or the new
    version of the changed object. Each command defines it.
    """

    index: int
    done: str
    value: int = 0


class Rejected(msgspec.Struct, frozen=True, tag="refused", forbid_unknown_fields=True):
    """The command changed nothing. ``code`` is stable; ``detail`` says why and what to do."""

    code: str
    detail: str


Result = Accepted | Rejected


class Applied(NamedTuple):
    """A state, and the result of the command that led to it."""

    state: MetadataState
    result: Result


class CommandRejected(Exception):
    """Raised by a handler to reject its command; never leaves ``apply``."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.result = Rejected(code, detail[: limits.REASON_CHARS_MAX])
