"""Records of the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from goq.client.results.result import Result, decode, items_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry(Result):
    """An action, its failure, or ``count`` refusals; an action and its failure share ``request``.

    ``result`` is ``allowed``, ``failed`` or ``refused``. ``principal`` is the id of a token, ``-``
    without a valid one, and ``name`` its name.
    """

    offset: int
    time: datetime
    result: str
    node: str
    request: str
    principal: str
    name: str
    peer: str
    method: str
    route: str
    path: str
    topics: tuple[str, ...]
    body: Mapping[str, object]
    status: int
    code: str
    detail: str
    count: int


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Records, and the offset to go on at, None at the end."""

    records: tuple[AuditEntry, ...]
    next: int | None


def decode_page(answer: object) -> AuditPage:
    """Return a page of the audit trail from an answer."""
    records = tuple(decode(AuditEntry, item) for item in items_of(answer, "records"))
    at = answer.get("next") if isinstance(answer, dict) else None
    return AuditPage(records, at)
