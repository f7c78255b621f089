"""Published messages, from JSON or from frames, checked before anything is stored."""

from __future__ import annotations

import base64
import binascii

from msgspec import UNSET

from goq import limits
from goq.api.bodies import HeaderIn, NewMessage, Publish
from goq.broker.topic import Placed
from goq.errors import InvalidFrame, InvalidInput, TooLarge
from goq.frame.check import check_frame
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.model import Header, Message, check_message

_PARTITION_BYTES = 4
_NOT_YET = (
    Attribute.DELIVER_AT
    | Attribute.EXPIRES_AT
    | Attribute.DEDUP_ID
    | Attribute.TENANT
    | Attribute.LANE
)


def messages_of(publish: Publish) -> list[Placed]:
    """Return the messages of a JSON publish; raise ``InvalidInput`` naming the first bad one."""
    count = len(publish.messages)
    if not count:
        raise InvalidInput("there is no message to publish", field="messages")
    if count > limits.JSON_MESSAGES_PER_REQUEST_MAX:
        raise TooLarge(
            f"{count} messages are over the limit of {limits.JSON_MESSAGES_PER_REQUEST_MAX}"
            " a request",
            field="messages",
        )
    return [_message(new, number) for number, new in enumerate(publish.messages)]


def _message(new: NewMessage, number: int) -> Placed:
    field = f"messages[{number}]"
    if isinstance(new.value_base64, str):
        if new.value is not UNSET:
            raise InvalidInput("give value or value_base64, not both", field=f"{field}.value")
        value: bytes | None = _from_base64(new.value_base64, f"{field}.value_base64")
    elif isinstance(new.value, str):
        value = new.value.encode()
    elif new.value is None:
        value = None
    else:
        raise InvalidInput("a message has a value or a value_base64", field=f"{field}.value")
    key = None if new.key is None else new.key.encode()
    if new.key_base64 is not None:
        if key is not None:
            raise InvalidInput("give key or key_base64, not both", field=f"{field}.key")
        key = _from_base64(new.key_base64, f"{field}.key_base64")
    headers = _headers(new.headers, f"{field}.headers") if new.headers else ()
    message = Message(value, key, headers)
    check_message(message, field=field)
    return Placed(new.partition, message)


def _headers(headers: dict[str, str] | list[HeaderIn], field: str) -> tuple[Header, ...]:
    if isinstance(headers, dict):
        return tuple((name, value.encode()) for name, value in headers.items())
    return tuple(_header(header, f"{field}[{n}]") for n, header in enumerate(headers))


def _header(header: HeaderIn, field: str) -> Header:
    if isinstance(header.value, str) and isinstance(header.value_base64, str):
        raise InvalidInput("give value or value_base64, not both", field=field)
    if isinstance(header.value, str):
        return header.name, header.value.encode()
    if isinstance(header.value_base64, str):
        return header.name, _from_base64(header.value_base64, field)
    raise InvalidInput("a header has a value or a value_base64", field=field)


def _from_base64(text: str, field: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"not base64: {error}", field=field) from None


def frames_of(body: bytes) -> list[tuple[int, FrameView]]:
    """Return the placed frames of a publish body; raise ``InvalidFrame`` naming the first bad."""
    frames: list[tuple[int, FrameView]] = []
    position = 0
    while position < len(body):
        field = f"frames[{len(frames)}]"
        partition = int.from_bytes(body[position : position + _PARTITION_BYTES], "little")
        try:
            view = FrameView.parse(body, position + _PARTITION_BYTES)
            check_frame(view)
        except InvalidInput as error:
            error.field = field
            raise
        if view.header.attributes & _NOT_YET:
            raise InvalidFrame(
                "this version does not yet deliver by time, lane, tenant or dedup id", field=field
            )
        frames.append((partition, view))
        position += _PARTITION_BYTES + view.header.frame_bytes
    if not frames:
        raise InvalidInput("there is no frame to publish", field="body")
    return frames
