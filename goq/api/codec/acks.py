"""How safe a message is to be when its publisher is told that it is stored."""

from __future__ import annotations

from enum import StrEnum

from goq.errors import InvalidInput
from goq.http.message import Request


class Acks(StrEnum):
    """On how many nodes of a cluster: enough of them, so that any of these may be lost, or one."""

    QUORUM = "quorum"
    LEADER = "leader"


def acks_of(request: Request, in_body: str | None = None) -> Acks:
    """Return what a request asks for, in its body or its query; ``quorum`` if nothing."""
    text = request.query.get("acks", in_body)
    try:
        return Acks.QUORUM if text is None else Acks(text)
    except ValueError:
        raise InvalidInput(
            f"acks is {' or '.join(Acks)}, not {text!r:.100}", field="acks"
        ) from None
