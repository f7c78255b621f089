"""Failed requests as errors of goq: problem answers by code, broken connections by kind."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from goq.client.protocol.frames import StoredFrame
from goq.client.retry import RequestFailure
from goq.errors import (
    BY_CODE,
    Conflict,
    GoqError,
    InvalidInput,
    LanesChanged,
    NotAllowed,
    NotFound,
    OutOfOrderSequence,
    PartitionNotFound,
    TimedOut,
    TooLarge,
    TooManyRequests,
    Unavailable,
    UnsupportedMedia,
)
from goq.http.client.errors import (
    ConnectError,
    ExchangeTimeout,
    NoAnswer,
    PoolTimeout,
    TlsError,
    TransportError,
)
from goq.http.client.response_reader import ResponseHeaders

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of the decoders of answers for bytes that no node sends."""
_RETRY_AFTER_MS_MAX: Final = 366 * 86_400_000
"""A year; a server may send a number of any length."""
_DIGITS_MAX: Final = 9
_PLAIN: Final = "http://"
_ENCRYPTED: Final = "https://"
_TITLE: Final = re.compile(r"<title>([^<]{1,200})</title>", re.IGNORECASE)
_BY_STATUS: dict[int, type[GoqError]] = {
    400: InvalidInput,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    408: TimedOut,
    409: Conflict,
    413: TooLarge,
    415: UnsupportedMedia,
    429: TooManyRequests,
    502: TimedOut,  # a proxy may have passed the request on
    503: Unavailable,
    504: TimedOut,
}


class SilentStream(Exception):
    """The first bytes of a stream did not come in time: the node is silent, or a proxy buffers.

    ``error`` is what it is to a caller.
    """

    def __init__(self, server: str) -> None:
        self.error = Unavailable(f"the stream of {server} did not begin in time")
        super().__init__(self.error.detail)
        self.server = server


PartialRefusal = PartitionNotFound | OutOfOrderSequence | LanesChanged
"""Why a node may refuse some frames of a publish, certainly, while others are stored."""
PARTIAL_REFUSALS: Final = (PartitionNotFound, OutOfOrderSequence, LanesChanged)


class PartlyStored(TimedOut):
    """Some frames of a publish are stored, and the others are certainly not: ``refusal`` says why.

    The topic was created again with fewer partitions, a leader has lost earlier frames of the
    producer, or the topic's lanes have changed. ``stored`` has the results of those that are
    stored, by index.
    """

    def __init__(self, refusal: PartialRefusal, stored: dict[int, StoredFrame]) -> None:
        cause = "A leader lost what came before the rest"
        if isinstance(refusal, PartitionNotFound):
            cause = "The topic was created again with fewer partitions"
        elif isinstance(refusal, LanesChanged):
            cause = "The topic got other lanes meanwhile"
        super().__init__(
            f"only a part of this is stored: {refusal.detail}. {cause};"
            " send the rest with a new producer"
        )
        self.refusal = refusal
        self.stored = stored


class Answer(NamedTuple):
    """A whole response; ``has_doubt`` if an earlier attempt of the request may have been done."""

    status: int
    headers: ResponseHeaders
    body: bytes
    has_doubt: bool = False


class _Problem(msgspec.Struct):
    code: str = ""
    title: str = ""
    detail: str = ""
    field: str | None = None
    retry_after_ms: int | None = None


_decode_problem = msgspec.json.Decoder(_Problem).decode


def error_of_answer(answer: Answer, server: str) -> GoqError:
    """Return the error for an answer whose status is not 200 to 299.

    A proxy may answer without a problem document. Its status decides then, and the message names
    the proxy and quotes the title or the beginning of its page.
    """
    try:
        problem = _decode_problem(answer.body)
    except UNREADABLE:
        problem = _Problem()
    kind = BY_CODE.get(problem.code) or _BY_STATUS.get(answer.status, GoqError)
    detail = problem.detail or problem.title
    if not detail:
        proxy = answer.headers.get("server")  # a node does not send this header
        name = f"{server} (by {proxy[:50]}, before the node)" if proxy else server
        detail = f"{name} answered with status {answer.status}: {_excerpt(answer.body)}"
    retry_after_ms = problem.retry_after_ms
    if retry_after_ms is None:
        retry_after_ms = _retry_after_ms(answer.headers)
    if retry_after_ms is not None:
        retry_after_ms = min(retry_after_ms, _RETRY_AFTER_MS_MAX)
    return kind(detail, field=problem.field, retry_after_ms=retry_after_ms)


def _excerpt(body: bytes) -> str:
    text = body[:2000].decode(errors="replace")
    title = _TITLE.search(text)
    return (title[1] if title else text[:200]).strip() or "no explanation"


def failure_of_transport(
    error: TransportError, server: str, *, is_read: bool = False
) -> RequestFailure:
    """Return the failure of a request that got no whole answer.

    ``TimedOut`` if it may have been done, unless it only reads.
    """
    said = str(error) or type(error).__name__
    if isinstance(error, PoolTimeout):
        return RequestFailure(
            Unavailable(f"all connections to {server} are busy: {said}"), maybe_done=False
        )
    if isinstance(error, ConnectError):
        hint = "is a node running there? start one with: goq serve"
        if isinstance(error, TlsError):
            hint = "--ca-file names its authority; if it speaks HTTP, it is "
            hint += _PLAIN + server.removeprefix(_ENCRYPTED)
        return RequestFailure(
            Unavailable(f"cannot connect to {server}: {said}; {hint}"),
            maybe_done=False,
            is_refused=True,
        )
    if isinstance(error, ExchangeTimeout):
        return RequestFailure(
            TimedOut(f"no answer from {server} in time; the request may still have been done"),
            maybe_done=True,
        )
    broken = f"the connection to {server} broke before an answer came ({said})"
    if isinstance(error, NoAnswer) and server.startswith(_PLAIN):
        broken += f"; if it speaks HTTPS, it is https://{server.removeprefix(_PLAIN)}"
    if is_read:
        return RequestFailure(Unavailable(broken), maybe_done=False)
    return RequestFailure(
        TimedOut(f"{broken}; the request may still have been done"), maybe_done=True
    )


def client_closed() -> InvalidInput:
    """Return the error for a call of a client that was closed."""
    return InvalidInput("the client is closed: make another one")


def unreadable(server: str, error: Exception) -> GoqError:
    """Return the error for an answer that does not have the form of its route."""
    return GoqError(f"{server} gave an answer that is not goq's: {error}; is it a goq node?")


def _retry_after_ms(headers: ResponseHeaders) -> int | None:
    seconds = headers.get("retry-after") or ""
    if not seconds.isascii() or not seconds.isdigit():
        return None
    return int(seconds) * 1000 if len(seconds) < _DIGITS_MAX else _RETRY_AFTER_MS_MAX
