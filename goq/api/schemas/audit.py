"""JSON bodies of the audit trail."""

from __future__ import annotations

from typing import Any

import msgspec

from goq.api.schemas.base import Output
from goq.api.values import DateTime


class AuditRecordOut(Output, kw_only=True):
    """An action, its failure, or ``count`` refusals; an action and its failure share ``request``.

    ``principal`` is the id of a token, ``-`` without a valid one. ``offset`` is the record's place
    in the topic ``__audit``.
    """

    offset: int
    time: DateTime
    result: str
    node: str
    request: str
    principal: str
    name: str
    peer: str
    method: str
    route: str
    path: str
    topics: list[str]
    body: dict[str, Any]
    status: int
    code: str
    detail: str
    count: int


class AuditOut(msgspec.Struct):
    """Records in the order in which they were written, and where to go on."""

    records: list[AuditRecordOut]
    next: int | None
