"""What a consumer asks of a receive, checked."""

from __future__ import annotations

from goq import limits
from goq.api.codec.request import duration_ms
from goq.api.schemas.groups import Receive
from goq.broker.topic.topic import ReceiveRequest
from goq.errors import InvalidInput, TooLarge


def receive_options(asked: Receive) -> ReceiveRequest:
    """Return what is asked; raise ``InvalidInput`` naming the field, ``TooLarge``."""
    check_consumer(asked)
    if asked.limit is not None:
        raise InvalidInput("limit is of a stream; say max, or stream", field="limit")
    return ReceiveRequest(
        consumer=asked.consumer,
        messages_max=asked.max,
        bytes_max=limits.RECEIVE_BYTES_MAX,
        wait_ms=duration_ms(asked.wait, "wait", limits.WAIT_MS_MAX),
        visibility_ms=visibility_ms(asked.visibility),
    )


def check_consumer(asked: Receive) -> None:
    """Raise what is wrong about who asks, and for how much, also of a stream."""
    if not 1 <= asked.max <= limits.RECEIVE_MESSAGES_MAX:
        raise InvalidInput(
            f"max is 1 to {limits.RECEIVE_MESSAGES_MAX}, not {asked.max}", field="max"
        )
    if len(asked.consumer) > limits.CONSUMER_NAME_CHARS_MAX:
        raise TooLarge(
            f"a consumer's name has at most {limits.CONSUMER_NAME_CHARS_MAX} characters",
            field="consumer",
        )


def check_stream(asked: Receive) -> None:
    """Raise what is wrong about what is asked of a stream."""
    check_consumer(asked)
    if asked.limit is not None and asked.limit < 1:
        raise InvalidInput(f"limit is at least 1, not {asked.limit}", field="limit")


def visibility_ms(asked: str | float | None) -> int | None:
    """Return how long messages are to be invisible, None for as long as the group has it."""
    if asked is None:
        return None
    found_ms = duration_ms(asked, "visibility", limits.VISIBILITY_MS_MAX)
    if found_ms < 1:
        raise InvalidInput("a visibility timeout is at least 1ms", field="visibility")
    return found_ms
