"""Published messages, from JSON or from frames, checked before anything is stored."""

from __future__ import annotations

import base64
import binascii

from msgspec import UNSET, Raw

from goq import limits
from goq.api.bodies import HeaderIn, HeadersIn, NewMessage, Publish, expect_messages
from goq.api.reading import decode_json, json_body
from goq.broker.topic import Placed
from goq.errors import InvalidFrame, InvalidInput, TooLarge
from goq.frame.check import check_frame
from goq.frame.header import HEADER_BYTES, Attribute
from goq.frame.view import FrameView
from goq.http.message import Request
from goq.model import Header, Message, check_message

_PARTITION_BYTES = 4
_NOT_YET = Attribute.DEDUP_ID
_WIDE = int(Attribute.CLIENT_TIME | Attribute.KEY_HASH)  # 8 bytes a message each
FRAMES_PER_REQUEST_MAX = limits.PARTITIONS_PER_TOPIC_MAX
RAW_BYTES_PER_REQUEST_MAX = 2 * limits.BODY_BYTES_MAX
"""What the frames of a request may come to when they are decompressed."""
_FRAME_MARGIN_BYTES = 4 * limits.KIB
_MESSAGE_MARGIN_BYTES = 32  # offsets, hash, validity
_HEADER_MARGIN_BYTES = 16
_HEADERS_JSON_BYTES_MAX = 8 * limits.HEADERS_BYTES_MAX


def messages_of(request: Request) -> list[Placed]:
    """Return the messages of a JSON publish; raise ``InvalidInput`` naming the first bad one."""
    expect_messages()
    publish = json_body(request, Publish, bytes_max=limits.BODY_BYTES_MAX)
    if not publish.messages:
        raise InvalidInput("there is no message to publish", field="messages")
    placed = [_message(new, number) for number, new in enumerate(publish.messages)]
    _check_total(placed)
    return placed


def _check_total(placed: list[Placed]) -> None:
    """Raise ``TooLarge`` unless all messages would fit into one frame.

    Those of a partition are stored in one, and where each goes is known only later, when some may
    be stored already.
    """
    total_bytes = _FRAME_MARGIN_BYTES + _MESSAGE_MARGIN_BYTES * len(placed)
    for _, message in placed:
        total_bytes += len(message.value or b"") + len(message.key or b"")
        for name, value in message.headers:
            total_bytes += _HEADER_MARGIN_BYTES + 4 * len(name) + len(value)
    if total_bytes > limits.FRAME_BYTES_MAX:
        raise TooLarge(
            f"messages of {total_bytes} bytes are over the limit of {limits.FRAME_BYTES_MAX}"
            " a request; send them in several",
            field="messages",
        )


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
    headers = _headers(new.headers, f"{field}.headers") if isinstance(new.headers, Raw) else ()
    message = Message(value, key, headers)
    check_message(message, field=field)
    return Placed(new.partition, message)


def _headers(raw: Raw, field: str) -> tuple[Header, ...]:
    if len(raw) > _HEADERS_JSON_BYTES_MAX:
        raise TooLarge(
            f"headers are over the limit of {limits.HEADERS_BYTES_MAX} bytes", field=field
        )
    headers = decode_json(raw, HeadersIn | None, field=field)  # type: ignore[arg-type]
    if headers is None:
        return ()
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
    position = raw_bytes = 0
    while position < len(body):
        field = f"frames[{len(frames)}]"
        partition = int.from_bytes(body[position : position + _PARTITION_BYTES], "little")
        try:
            view = FrameView.parse(body, position + _PARTITION_BYTES)
            check_frame(view)
            _check_supported(view)
        except InvalidInput as error:
            error.field = field
            raise
        raw_bytes += view.raw_bytes
        if raw_bytes > RAW_BYTES_PER_REQUEST_MAX or len(frames) >= FRAMES_PER_REQUEST_MAX:
            raise TooLarge(
                f"a request brings at most {FRAMES_PER_REQUEST_MAX} frames of together at most"
                f" {RAW_BYTES_PER_REQUEST_MAX} bytes before compression",
                field=field,
            )
        # Anew, so that what was decompressed for the check is let go of.
        frames.append((partition, FrameView(view.header, view.buffer)))
        position += _PARTITION_BYTES + view.header.frame_bytes
    if not frames:
        raise InvalidInput("there is no frame to publish", field="body")
    return frames


def _check_supported(view: FrameView) -> None:
    header = view.header
    if header.attributes & _NOT_YET:
        raise InvalidFrame("this version does not yet know dedup ids")
    width_bytes = 8 * (header.attributes & _WIDE).bit_count()
    plain_bytes = HEADER_BYTES + 8 + width_bytes * header.message_count + view.raw_bytes
    if plain_bytes > limits.FRAME_BYTES_MAX:  # a part of it could not be handed out
        raise TooLarge(
            f"a frame of {plain_bytes} bytes before compression is over the limit of"
            f" {limits.FRAME_BYTES_MAX}"
        )
