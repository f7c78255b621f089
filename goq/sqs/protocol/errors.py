"""Errors of the SQS protocol.

An SDK of today reads the type in the body, an earlier one the code of the query protocol: an answer
has both.
"""

from __future__ import annotations

from typing import Final

import msgspec

from goq.errors import GoqError
from goq.http.message import Response

_PREFIX: Final = "AWS.SimpleQueueService."
_PREFIXED: Final = frozenset(
    (
        "BatchEntryIdsNotDistinct",
        "BatchRequestTooLong",
        "EmptyBatchRequest",
        "InvalidBatchEntryId",
        "MessageNotInflight",
        "PurgeQueueInProgress",
        "QueueDeletedRecently",
        "TooManyEntriesInBatchRequest",
        "UnsupportedOperation",
    )
)
_QUERY_CODES: Final = {
    "QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "InvalidAddress": "InvalidAddress",
}
_MODELLED: Final = frozenset(
    (
        *_PREFIXED,
        *_QUERY_CODES,
        "InvalidAttributeName",
        "InvalidAttributeValue",
        "InvalidMessageContents",
        "OverLimit",
        "ReceiptHandleIsInvalid",
        "RequestThrottled",
        "ResourceNotFoundException",
    )
)
"""Errors that the model of SDKs has; others travel without a namespace."""


class SqsError(Exception):
    """An error answer. ``kind`` is its type in the JSON protocol."""

    def __init__(self, kind: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status = status

    @property
    def query_code(self) -> str:
        """The code in the query protocol."""
        if self.kind in _PREFIXED:
            return _PREFIX + self.kind
        return _QUERY_CODES.get(self.kind, self.kind)

    @property
    def is_of_sender(self) -> bool:
        """Whether the request is at fault."""
        return self.status < 500

    @property
    def json_type(self) -> str:
        """The ``__type`` in the JSON protocol."""
        return f"com.amazonaws.sqs#{self.kind}" if self.kind in _MODELLED else self.kind


def invalid_parameter(message: str) -> SqsError:
    """Return the error of a value that is not allowed."""
    return SqsError("InvalidParameterValue", message)


def missing_parameter(name: str) -> SqsError:
    """Return the error of a parameter that must be there."""
    return SqsError("MissingParameter", f"The request must contain the parameter {name}.")


def queue_missing() -> SqsError:
    """Return the error of a queue that does not exist."""
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")


class _Problem(msgspec.Struct):
    code: str = "internal"
    detail: str = ""
    field: str | None = None


_problems: Final = msgspec.json.Decoder(_Problem)
_KINDS: Final = {
    "topic_not_found": "QueueDoesNotExist",
    "topic_exists": "QueueNameExists",
    "not_allowed": "AccessDenied",
    "unauthenticated": "InvalidClientTokenId",
    "too_many_requests": "RequestThrottled",
    "conflict": "InvalidParameterValue",
    "node_full": "OverLimit",
    "quota_exceeded": "OverLimit",
}
_FORBIDDEN: Final = frozenset(("AccessDenied", "InvalidClientTokenId"))


def problem_code(response: Response) -> str:
    """Return the code of a problem of the node, "" for an answer that is none."""
    return "" if response.status < 400 else _problem(response).code


def error_of(response: Response) -> SqsError:
    """Return the error of a problem of the node."""
    found = _problem(response)
    return _error(found.code, found.detail, response.status)


def error_of_goq(error: GoqError) -> SqsError:
    """Return the error of what the broker itself refused."""
    return _error(error.code, error.detail, error.http_status)


def _error(code: str, detail: str, status: int) -> SqsError:
    kind = _KINDS.get(code)
    if kind == "QueueDoesNotExist":
        return queue_missing()
    if kind is not None:
        return SqsError(kind, detail, 403 if kind in _FORBIDDEN else 400)
    if status == 500:
        return SqsError("InternalFailure", detail, 500)
    if status > 500 or status == 421:
        return SqsError("ServiceUnavailable", detail, 503)
    return invalid_parameter(detail)


def _problem(response: Response) -> _Problem:
    body = response.body
    try:
        return _problems.decode(body if isinstance(body, bytes) else b"{}")
    except msgspec.DecodeError:
        return _Problem()
