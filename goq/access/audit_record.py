"""Records of the audit trail, and which refusals are recorded at once.

A record has neither the values of messages nor the secret of a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from goq import limits
from goq.access.token import without_secrets

_OTHERS: Final = "(others)"
_TEXT_CHARS_MAX: Final = 500


class AuditResult(StrEnum):
    """``allowed``: recorded before it was carried out. ``failed``: that action changed nothing, or
    not everything. ``refused``: not begun."""

    ALLOWED = "allowed"
    FAILED = "failed"
    REFUSED = "refused"


class AuditRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One action, its failure, or one or more refusals.

    ``request`` is the same in the record of an action and in that of its failure. ``principal`` is
    the id of a token, ``-`` without a valid one. ``count`` refusals of one sender, up to ``time``,
    share a record if there are more than one in a minute.
    """

    time: str
    result: AuditResult
    node: str
    request: str
    principal: str
    name: str = ""
    peer: str = ""
    method: str = ""
    route: str = ""
    path: str = ""
    topics: Sequence[str] = ()
    body: Mapping[str, Any] = {}
    status: int = 0
    code: str = ""
    detail: str = ""
    count: int = 1


def encode_record(record: AuditRecord) -> bytes:
    """Return a record as JSON, without the secrets of tokens."""
    return without_secrets(msgspec.json.encode(record).decode()).encode()


def decode_record(data: bytes) -> AuditRecord:
    """Return a record; raise ``msgspec.MsgspecError``. Fields of later versions are left out."""
    return msgspec.json.decode(data, type=AuditRecord)


def shortened(text: str) -> str:
    """Return the part of a text that a record has of it."""
    return text[:_TEXT_CHARS_MAX]


class RefusalCount(NamedTuple):
    """Refusals of a sender that were not recorded one by one."""

    sender: str
    refusals: int


class RefusalBound:
    """Admits the first refusal of each sender in a period, and counts the others.

    Of more than ``senders_max`` senders in a period the rest counts as one.
    """

    def __init__(self, senders_max: int, period_s: float = limits.AUDIT_REFUSALS_PERIOD_S) -> None:
        self._senders_max = senders_max
        self._period_s = period_s
        self._open: dict[str, tuple[float, int]] = {}

    def admit(self, sender: str, now_s: float) -> bool:
        """Return whether to record a refusal now; otherwise it is counted."""
        if sender not in self._open and len(self._open) >= self._senders_max:
            sender = _OTHERS
        started_s, count = self._open.get(sender, (now_s, -1))
        self._open[sender] = started_s, count + 1
        return count < 0

    def take_ended(self, now_s: float) -> list[RefusalCount]:
        """Return the counts of the periods that have ended."""
        ended = [s for s, (at_s, _) in self._open.items() if now_s - at_s >= self._period_s]
        counts = [RefusalCount(sender, self._open.pop(sender)[1]) for sender in ended]
        return [each for each in counts if each.refusals]

    @property
    def next_end_s(self) -> float | None:
        """When the earliest period ends, None without one."""
        for started_s, _ in self._open.values():
            return started_s + self._period_s
        return None
