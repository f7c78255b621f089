"""Decoder of what a consumer asks for: the options of a receive, the credit of a stream.

Every error names the field at fault.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from goq import limits
from goq.api.codec.negotiation import wants_lines
from goq.api.codec.request import duration_ms
from goq.api.schemas.groups import Receive, StreamGrant
from goq.broker.topic.topic_leases import ReceiveRequest
from goq.errors import InvalidInput, TooLarge
from goq.http.message import Request

SESSION_ID = "Goq-Session"
"""The header with the session id of a client's loop."""
_SESSION_ID = SESSION_ID.lower()


def parse_session_id(request: Request) -> str:
    """Return the session id in the header, "" without one; raise ``InvalidInput``.

    A client's loop has one. It tells loops apart whose consumers have the same name.
    """
    session_id = request.headers.get(_SESSION_ID, "")
    if len(session_id) > limits.SESSION_ID_CHARS_MAX or not session_id.isascii():
        raise InvalidInput(
            f"a session id has at most {limits.SESSION_ID_CHARS_MAX} ASCII characters",
            field=SESSION_ID,
        )
    if "/" in session_id or not session_id.isprintable():
        raise InvalidInput("a session id is printable and has no '/'", field=SESSION_ID)
    return session_id


def asks_for_stream(request: Request, asked: Receive) -> bool:
    """Return whether the answer is to be a stream."""
    return asked.stream or wants_lines(request)


def receive_options(request: Request, asked: Receive) -> ReceiveRequest:
    """Return what a receive asks for.

    Raises ``InvalidInput`` naming the field, and ``TooLarge``.
    """
    _check_consumer(asked)
    if asked.limit is not None:
        raise InvalidInput("limit is of a stream; say max_messages, or stream", field="limit")
    if asked.max_in_flight is not UNSET:
        raise InvalidInput(
            "max_in_flight is of a stream; say max_messages, or stream", field="max_in_flight"
        )
    return ReceiveRequest(
        consumer=asked.consumer,
        messages_max=_receive_maximum(asked.max_messages, "max_messages"),
        bytes_max=limits.RECEIVE_BYTES_MAX,
        wait_ms=duration_ms(asked.wait, "wait", limits.WAIT_MS_MAX),
        visibility_ms=visibility_ms(asked.visibility),
        session_id=parse_session_id(request),
    )


def stream_credit(asked: Receive) -> int:
    """Return the maximum of messages in flight of a stream.

    Raises ``InvalidInput`` naming any field that is wrong, and ``TooLarge``.
    """
    _check_consumer(asked)
    if asked.max_messages is not UNSET:
        raise InvalidInput(
            "max_messages is of a receive; a stream takes max_in_flight, and limit for all",
            field="max_messages",
        )
    if asked.limit is not None and asked.limit < 1:
        raise InvalidInput(f"limit is at least 1, not {asked.limit}", field="limit")
    return _receive_maximum(asked.max_in_flight, "max_in_flight")


def granted(asked: StreamGrant) -> tuple[int, int | None]:
    """Return what a stream is granted: messages beyond those in flight, or the maximum in flight.

    Raises ``InvalidInput`` naming a field that is wrong.
    """
    if (asked.max_in_flight is UNSET) == (asked.more is UNSET):
        raise InvalidInput("say one of more and max_in_flight", field="more")
    if asked.max_in_flight is UNSET:
        return _receive_maximum(asked.more, "more"), None
    if not 0 <= asked.max_in_flight <= limits.STREAM_IN_FLIGHT_MESSAGES_MAX:
        raise InvalidInput(
            f"max_in_flight is 0 to {limits.STREAM_IN_FLIGHT_MESSAGES_MAX},"
            f" not {asked.max_in_flight}",
            field="max_in_flight",
        )
    return 0, asked.max_in_flight


def _receive_maximum(count: int | UnsetType, field: str) -> int:
    if count is UNSET:
        return 1
    if not 1 <= count <= limits.RECEIVE_MESSAGES_MAX:
        raise InvalidInput(
            f"{field} is 1 to {limits.RECEIVE_MESSAGES_MAX}, not {count}", field=field
        )
    return count


def _check_consumer(asked: Receive) -> None:
    if len(asked.consumer) > limits.CONSUMER_NAME_CHARS_MAX:
        raise TooLarge(
            f"a consumer's name has at most {limits.CONSUMER_NAME_CHARS_MAX} characters",
            field="consumer",
        )


def visibility_ms(asked: str | float | None) -> int | None:
    """Return a visibility timeout, ``None`` for the default of the group."""
    if asked is None:
        return None
    found_ms = duration_ms(asked, "visibility", limits.VISIBILITY_MS_MAX)
    if found_ms < 1:
        raise InvalidInput("a visibility timeout is at least 1ms", field="visibility")
    return found_ms
