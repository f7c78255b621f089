"""Errors as RFC 9457 problem responses."""

from __future__ import annotations

import msgspec

from goq.access.token import without_secrets
from goq.errors import GoqError
from goq.http.message import Response

_DETAIL_CHARS_MAX = 1000
_FIELD_CHARS_MAX = 300
_UNAUTHENTICATED = 401


class Problem(msgspec.Struct, omit_defaults=True, rename={"kind": "type"}):
    """An error for clients. ``code`` is stable; ``detail`` is text for people."""

    kind: str
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    retry_after_ms: int | None = None


def problem_of(error: GoqError) -> Problem:
    """Return the problem of an error, without the secrets of tokens. Long quotations of the input
    are cut."""
    field = error.field
    return Problem(
        kind=f"urn:goq:problem:{error.code}",
        title=error.code.replace("_", " ").capitalize(),
        status=error.http_status,
        code=error.code,
        detail=_cut(without_secrets(error.detail), _DETAIL_CHARS_MAX),
        field=None if field is None else _cut(without_secrets(field), _FIELD_CHARS_MAX),
        retry_after_ms=error.retry_after_ms,
    )


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def problem_response(error: GoqError) -> Response:
    """Return the response to a request that failed with ``error``."""
    headers = {}
    if error.retry_after_ms is not None:
        headers["Retry-After"] = str(max(1, -(-error.retry_after_ms // 1000)))
    if error.http_status == _UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    body = msgspec.json.encode(problem_of(error))
    return Response(error.http_status, body, "application/problem+json", headers)
