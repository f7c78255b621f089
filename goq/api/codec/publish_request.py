"""Published messages, from JSON or from frames, checked before anything is stored."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from msgspec import UNSET, Raw

from goq import limits
from goq.api.codec.large_publish import LARGE_BYTES, decode_large_publish
from goq.api.codec.request import (
    KEYS_BYTES_MAX,
    LANES,
    check_json,
    decode_json,
    duration_ms,
    json_body,
    time_us,
)
from goq.api.schemas.messages import HeaderIn, HeadersIn, NewMessage, Publish
from goq.broker.runtime.disposal import dispose
from goq.broker.topic.publisher import RoutedMessage
from goq.clock import TimeSlice
from goq.config.topic import TopicSettings
from goq.config.types import lanes
from goq.errors import InvalidInput, LanesChanged, TooLarge
from goq.frame.hashes import dedup_hash
from goq.frame.header import Attribute
from goq.frame.validation import check_delivery, check_frame
from goq.frame.view import FrameView
from goq.http.message import Request
from goq.model import Acks, Header, Message, check_dedup_text, check_message, delivery_ms
from goq.units import format_duration_ms, is_by_clock

_PARTITION_BYTES = 4
_LANES = LANES.lower()
FRAMES_PER_REQUEST_MAX = limits.PARTITIONS_PER_TOPIC_MAX
RAW_BYTES_PER_REQUEST_MAX = 2 * limits.BODY_BYTES_MAX
"""Maximum size of all frames of a request after decompression."""
CHECKED_AT_ONCE_BYTES = 256 * limits.KIB
"""Larger frames are checked in a thread: the event loop would be held."""
_FRAME_MARGIN_BYTES = 4 * limits.KIB
_MESSAGE_MARGIN_BYTES = 32  # offsets, hash, validity
_DELIVERY_MARGIN_BYTES = 48  # times, dedup id, lane, number and offset of a tenant
_HEADER_MARGIN_BYTES = 16
_HEADERS_JSON_BYTES_MAX = 8 * limits.HEADERS_BYTES_MAX


def parse_acks(request: Request, in_body: str | None = None) -> Acks:
    """Return the ``acks`` of a request, from its query or its body; ``quorum`` by default."""
    text = request.query.get("acks", in_body) if request.query_string else in_body
    try:
        return Acks.QUORUM if text is None else Acks(text)
    except ValueError:
        raise InvalidInput(
            f"acks is {' or '.join(Acks)}, not {text!r:.100}", field="acks"
        ) from None


def decode_small(request: Request) -> Publish | None:
    """Return the body of a JSON publish; None if that takes longer than a moment."""
    if _is_large(request.body):
        return None
    return json_body(request, Publish, bytes_max=LARGE_BYTES, keys_bytes_max=KEYS_BYTES_MAX)


def only_message(publish: Publish, settings: TopicSettings, now_us: int) -> RoutedMessage | None:
    """Return the message of a publish that has only one, if nothing but its place is unknown.

    None for several, and where the answer says more than the place. Raises as
    :func:`decode_messages`.
    """
    if len(publish.messages) != 1:
        return None
    new = publish.messages[0]
    if new.dedup_id is not None or new.delay is not None or new.deliver_at is not None:
        return None
    one = _message(new, "messages[0]", settings, now_us)
    _check_total(_total_margin_bytes(publish.messages) + _size_bytes(one.content))
    return one


async def decode_messages(
    request: Request, publish: Publish | None, settings: TopicSettings, now_us: int
) -> tuple[list[RoutedMessage], Acks]:
    """Return the messages of a JSON publish, and its ``acks``.

    ``publish`` is the result of :func:`decode_small`. Delays and times to live count from
    ``now_us``. Raises ``InvalidInput`` naming the first bad message.
    """
    time_slice = TimeSlice()
    long_values: dict[int, bytes] = {}
    if publish is None:
        check_json(request, limits.BODY_BYTES_MAX)
        publish, long_values = await decode_large_publish(request.body)
    if not publish.messages:
        raise InvalidInput("there is no message to publish", field="messages")
    if time_slice.is_over:
        await time_slice.next()
    total_bytes = _total_margin_bytes(publish.messages)
    placed: list[RoutedMessage] = []
    try:
        for number, new in enumerate(publish.messages):
            long_value = long_values.get(number)
            one = _message(new, f"messages[{number}]", settings, now_us, long_value)
            placed.append(one)
            total_bytes += _size_bytes(one.content)
            _check_total(total_bytes)
            if time_slice.is_over:
                await time_slice.next()
        return placed, parse_acks(request, publish.acks)
    except InvalidInput:
        await dispose([placed])  # with up to 64 headers each
        raise


def _total_margin_bytes(messages: Sequence[NewMessage]) -> int:
    """Return how many bytes messages may add to a frame beside their contents."""
    each_bytes = _MESSAGE_MARGIN_BYTES
    if not all(map(_is_plain, messages)):
        each_bytes += _DELIVERY_MARGIN_BYTES
    return _FRAME_MARGIN_BYTES + each_bytes * len(messages)


def _is_large(body: bytes) -> bool:
    """Return whether a body takes long to decode: each message begins with a brace."""
    return len(body) > LARGE_BYTES or body.count(b"{") > limits.JSON_MESSAGES_PER_REQUEST_MAX


def _size_bytes(message: Message) -> int:
    size_bytes = len(message.value or b"") + len(message.key or b"")
    size_bytes += 4 * len(message.tenant or "")
    for name, value in message.headers:
        size_bytes += _HEADER_MARGIN_BYTES + 4 * len(name) + len(value)
    return size_bytes


def _check_total(total_bytes: int) -> None:
    """Raise ``TooLarge`` unless all messages would fit into one frame.

    All messages of a partition are stored in one frame. The partition of each is chosen later, when
    some messages may be stored already.
    """
    if total_bytes > limits.FRAME_BYTES_MAX:
        raise TooLarge(
            f"messages of {total_bytes} bytes or more are over the limit of"
            f" {limits.FRAME_BYTES_MAX} a request; send them in several",
            field="messages",
        )


def _message(
    new: NewMessage,
    field: str,
    settings: TopicSettings,
    now_us: int,
    long_value: bytes | None = None,
) -> RoutedMessage:
    """Return a decoded message; a ``long_value`` was decoded before, and is empty in ``new``."""
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
    if long_value is not None:
        value = long_value
    key = None if new.key is None else new.key.encode()
    if new.key_base64 is not None:
        if key is not None:
            raise InvalidInput("give key or key_base64, not both", field=f"{field}.key")
        key = _from_base64(new.key_base64, f"{field}.key_base64")
    headers = _headers(new.headers, f"{field}.headers") if isinstance(new.headers, Raw) else ()
    if _is_plain(new):
        message = Message(value, key, headers)
    else:
        deliver_at_ms = _deliver_at_ms(new, field, settings, now_us)
        message = Message(
            value,
            key,
            headers,
            None
            if new.priority is None
            else settings.lane(new.priority, field=f"{field}.priority"),
            deliver_at_ms,
            _expires_at_ms(new, field),
            new.tenant,
            _dedup_id(new.dedup_id, f"{field}.dedup_id"),
        )
    check_message(message, field=field)
    return RoutedMessage(new.partition, message)


def _is_plain(new: NewMessage) -> bool:
    return (
        new.priority is None
        and new.delay is None
        and new.deliver_at is None
        and new.ttl is None
        and new.tenant is None
        and new.dedup_id is None
    )


def _deliver_at_ms(new: NewMessage, field: str, settings: TopicSettings, now_us: int) -> int:
    """Return the delivery time, never earlier than asked; 0 for at once.

    A delay comes back negative: the leader counts it from its time.
    """
    if new.delay is not None:
        field = f"{field}.delay"
        if new.deliver_at is not None:
            raise InvalidInput("give delay or deliver_at, not both", field=field)
        return -duration_ms(new.delay, field, settings.delay_max_ms)
    if new.deliver_at is not None:
        field = f"{field}.deliver_at"
        at_us = time_us(new.deliver_at, field, now_us)
        if at_us > now_us + 1000 * settings.delay_max_ms:
            raise InvalidInput(
                f"{new.deliver_at!r} is later than the topic's delay.max allows, which is"
                f" {format_duration_ms(settings.delay_max_ms)} from now",
                field=field,
            )
        return delivery_ms(at_us, now_us, is_by_clock=is_by_clock(new.deliver_at))
    return 0


def time_to_live_ms(ttl: str | float, field: str) -> int:
    """Return how long a message is ready to be delivered. Raises ``InvalidInput``."""
    ttl_ms = duration_ms(ttl, field, limits.TTL_MS_MAX)
    if ttl_ms == 0:
        raise InvalidInput("a message with no time to live is never delivered", field=field)
    return ttl_ms


def _expires_at_ms(new: NewMessage, field: str) -> int:
    """Return the time to live, negative for the leader to count; 0 for none."""
    if new.ttl is None:
        return 0
    return -time_to_live_ms(new.ttl, f"{field}.ttl")


def _dedup_id(text: str | None, field: str) -> bytes | None:
    return None if text is None else dedup_hash(check_dedup_text(text, field=field))


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


def check_lanes(request: Request, settings: TopicSettings) -> None:
    """Raise ``LanesChanged`` if frames have the lanes of other settings."""
    written = request.headers.get(_LANES)
    if written is not None and written != lanes.format(settings.lanes):
        raise LanesChanged(
            f"the lanes of the topic are {lanes.format(settings.lanes)}, and those of the request"
            f" {written[:80]}: ask for the topic's settings, and number the lanes by them",
            field=LANES,
        )


def decode_frames(body: bytes, settings: TopicSettings, now_ms: int) -> list[tuple[int, FrameView]]:
    """Return the placed frames of a publish; raise ``InvalidFrame`` naming the first bad frame."""
    frames: list[tuple[int, FrameView]] = []
    position = raw_bytes = dedup_ids = 0
    while position < len(body):
        field = f"frames[{len(frames)}]"
        partition = int.from_bytes(body[position : position + _PARTITION_BYTES], "little")
        try:
            view = FrameView.parse(body, position + _PARTITION_BYTES)
            check_frame(view)
            check_delivery(view, settings, now_ms)
        except InvalidInput as error:
            error.field = field
            raise
        is_packed = view.header.attributes & Attribute.ZSTD
        raw_bytes += view.raw_bytes if is_packed else view.header.frame_bytes
        if raw_bytes > RAW_BYTES_PER_REQUEST_MAX or len(frames) >= FRAMES_PER_REQUEST_MAX:
            raise TooLarge(
                f"a request brings at most {FRAMES_PER_REQUEST_MAX} frames of together at most"
                f" {RAW_BYTES_PER_REQUEST_MAX} bytes before compression",
                field=field,
            )
        if view.header.attributes & Attribute.DEDUP_ID:
            dedup_ids += view.header.message_count
            if dedup_ids > limits.DEDUP_IDS_PER_REQUEST_MAX:
                raise TooLarge(
                    f"a request brings at most {limits.DEDUP_IDS_PER_REQUEST_MAX} messages in"
                    " frames with dedup ids",
                    field=field,
                )
        # A new view, which drops the bytes that the check decompressed.
        frames.append((partition, FrameView(view.header, view.buffer)))
        position += _PARTITION_BYTES + view.header.frame_bytes
    if not frames:
        raise InvalidInput("there is no frame to publish", field="body")
    return frames
