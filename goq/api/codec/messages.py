"""Messages of an answer as JSON, and the JSON of any answer."""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

import msgspec

from goq.api.codec.long_value import LONG_BYTES, LongValue, encode_long_value, message_parts
from goq.api.schemas.groups import ReceivedOut
from goq.api.schemas.messages import MessageOut
from goq.broker.outbox.dead_letter_headers import copy_origin
from goq.broker.partition.leases import LeasedBatch
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.config.topic import TopicSettings
from goq.delivery.events.event import Span
from goq.frame.header import Attribute
from goq.frame.view import DELIVERY_COLUMNS, FrameView
from goq.http.message import BytesLike, Response
from goq.limits import KIB
from goq.model import Header, Message, Receipt, fence_of
from goq.units import format_time_us

_DECODED_AT_ONCE = 256
_NO_MESSAGES = b'{"messages":[]'
_PART_BYTES = 64 * KIB
_encoder = msgspec.json.Encoder()


def json_response(answer: object, status: int = 200) -> Response:
    """Return ``answer`` as a JSON response."""
    return Response(status, _encoder.encode(answer), "application/json")


def encode_json(answer: object) -> bytes:
    """Return ``answer`` as JSON bytes."""
    return _encoder.encode(answer)


async def list_response(name: str, items: Iterable[object]) -> Response:
    """Return an object with one list as a JSON response; items are made and encoded in slices.

    They are not joined, as 1,000 may have 8 MB.
    """
    parts = [b'{"%b":' % name.encode(), *await _encode_parts(items), b"}"]
    return Response(200, parts, "application/json")


async def encode_list(items: Iterable[object]) -> msgspec.Raw:
    """Return items as a JSON list; they are made, encoded and dropped in slices."""
    return msgspec.Raw(b"".join(await _encode_parts(items)))


async def _encode_parts(items: Iterable[object]) -> list[bytes]:
    parts: list[bytes] = []
    last_part, time_slice = bytearray(b"["), TimeSlice()
    for number, item in enumerate(items):
        if number:
            last_part += b","
        last_part += _encoder.encode(item)
        if len(last_part) > _PART_BYTES:
            parts.append(bytes(last_part))
            last_part.clear()
        if time_slice.is_over:
            await time_slice.next()
    return [*parts, bytes(last_part) + b"]"]


def messages_json(
    topic: Topic, partition: int, frames: Sequence[FrameView], start: int, end: int
) -> Iterator[MessageOut]:
    """Yield the messages from offset ``start`` up to ``end`` in ``frames``.

    The frames are in offset order.
    """
    number = max(0, bisect_right(frames, start, key=_base_offset) - 1)
    while number < len(frames) and frames[number].header.base_offset < end:
        yield from _frame_json(topic, partition, frames[number], start, end)
        number += 1


def is_compacted_away(frames: Iterable[FrameView], offset: int) -> bool:
    """Whether compaction has removed the message at ``offset`` from its frame."""
    return any(
        view.removed_rows is not None and view.removed_rows.has(offset - view.header.base_offset)
        for view in frames
        if view.header.base_offset <= offset < view.header.end_offset
    )


def _base_offset(view: FrameView) -> int:
    return view.header.base_offset


def _frame_json(
    topic: Topic, partition: int, view: FrameView, start: int, end: int
) -> Iterator[MessageOut]:
    base = view.header.base_offset
    first, last = max(start, base), min(end, view.header.end_offset)
    if first >= last:
        return
    timestamp = format_time_us(view.header.append_time_us)
    settings = topic.settings
    default_priority = settings.lane_name(settings.default_lane)
    for offset, message in _messages(view, first, last):
        out = MessageOut(
            id=f"{topic.name}:{partition}:{offset}",
            partition=partition,
            offset=offset,
            timestamp=timestamp,
            priority=default_priority,
        )
        put_message(out, message)
        if view.header.attributes & Attribute.COPY:
            _put_origin(out, message.headers)
        if view.header.attributes & DELIVERY_COLUMNS:
            put_delivery(out, message, settings)
        yield out


def _messages(view: FrameView, start: int, end: int) -> Iterator[tuple[int, Message]]:
    """Yield the messages of a frame that are kept; few are decoded before they are asked for."""
    base, removed = view.header.base_offset, view.removed_rows
    for first in range(start, end, _DECODED_AT_ONCE):
        last = min(end, first + _DECODED_AT_ONCE)
        found = zip(range(first, last), view.messages(first - base, last - base), strict=True)
        yield from (
            found if removed is None else compress(found, removed.kept(first - base, last - base))
        )


def _put_origin(out: MessageOut, headers: Sequence[Header]) -> None:
    died_as, redriven_from = copy_origin(headers)
    if died_as is not None:
        out.origin = died_as
    if redriven_from is not None:
        out.redriven_from = redriven_from


def put_delivery(out: MessageOut, message: Message, settings: TopicSettings) -> None:
    """Add the delivery fields of a message."""
    if message.lane is not None:
        out.priority = settings.lane_name(message.lane)
    if message.tenant is not None:
        out.tenant = message.tenant
    if message.deliver_at_ms:
        out.deliver_at = format_time_us(message.deliver_at_ms * 1000)
    if message.expires_at_ms:
        out.expires_at = format_time_us(message.expires_at_ms * 1000)


class JsonMessages:
    """Messages of one answer, encoded one by one, up to a bound in bytes.

    The encoded size counts: decompression and JSON escapes make messages larger. Messages are
    joined to parts as they come: to join 10,000 at the end would hold the event loop.
    """

    def __init__(self, bytes_max: int, *, is_rest: bool = False) -> None:
        self.last_id: str | None = None
        self._is_rest = is_rest
        self._count = 0
        self._bytes_left = bytes_max
        self._parts: list[bytes] = []
        self._last_part = bytearray(_NO_MESSAGES[:-1])
        self._time_slice = TimeSlice()

    def __len__(self) -> int:
        return self._count

    async def add(self, out: MessageOut) -> bool:
        """Add a message if there is room; let others go meanwhile.

        The first always has room, unless the answer is the rest of a larger one.
        """
        if self._time_slice.is_over:
            await self._time_slice.next()
        await encode_long_value(out, self._time_slice)
        return self.add_at_once(out)

    def add_at_once(self, out: MessageOut) -> bool:
        """Add a message as :meth:`add` does, in a thread."""
        first, *rest = message_parts(out)
        size_bytes = len(first) + sum(map(len, rest))
        if size_bytes > self._bytes_left and (self._count or self._is_rest):
            return False
        self._bytes_left -= size_bytes
        if self._count:
            self._last_part += b","
        self._last_part += first
        if rest or len(self._last_part) > _PART_BYTES:
            self._parts += [bytes(self._last_part), *rest]
            self._last_part.clear()
        self._count += 1
        self.last_id = out.id
        return True

    def body(self, answer: object) -> bytes | list[BytesLike]:
        """Return the JSON of an answer whose first field is ``messages``, empty, with these."""
        encoded = _encoder.encode(answer)
        assert encoded.startswith(_NO_MESSAGES)
        last = bytes(self._last_part) + encoded[len(_NO_MESSAGES) - 1 :]
        return [*self._parts, last] if self._parts else last

    def response(self, answer: object) -> Response:
        """Return the answer of :meth:`body` as a response."""
        return Response(200, self.body(answer), "application/json")


def put_message(out: MessageOut, message: Message) -> None:
    """Add value, key and headers of a message: as text if they are UTF-8, else in base64.

    A long value is encoded later, by :func:`message_parts`.
    """
    _put_value(out, message.value)
    if message.key is not None:
        _put_key(out, message.key)
    if message.headers:
        out.headers = headers_json(message.headers)


def _put_value(out: MessageOut, value: bytes | None) -> None:
    if value is not None and len(value) > LONG_BYTES:
        out.value = LongValue.in_place_of(value)
        return
    try:
        out.value = None if value is None else value.decode()
    except UnicodeDecodeError:
        assert value is not None
        out.value_base64 = base64.b64encode(value).decode()


def _put_key(out: MessageOut, key: bytes) -> None:
    try:
        out.key = key.decode()
    except UnicodeDecodeError:
        out.key_base64 = base64.b64encode(key).decode()


def headers_json(headers: Sequence[Header]) -> dict[str, str] | list[dict[str, str]]:
    """Return headers as an object, or as a list if a name repeats or a value is not text."""
    try:
        plain = {name: value.decode() for name, value in headers}
    except UnicodeDecodeError:
        plain = {}
    if len(plain) == len(headers):
        return plain
    return [_header_json(name, value) for name, value in headers]


def _header_json(name: str, value: bytes) -> dict[str, str]:
    try:
        return {"name": name, "value": value.decode()}
    except UnicodeDecodeError:
        return {"name": name, "value_base64": base64.b64encode(value).decode()}


def delivery_json(topic: Topic, delivery: LeasedBatch) -> Iterator[MessageOut]:
    """Yield the leased messages of a delivery with their receipts, in the order of its spans."""
    lease_until = format_time_us(delivery.deadline_ms * 1000)
    frames = sorted(delivery.frames, key=_base_offset)
    fence = fence_of(topic.id, delivery.token)
    for start, end, attempt in delivery.spans:
        for out in messages_json(topic, delivery.partition, frames, start, end):
            receipt = Receipt(delivery.partition, fence, out.offset, out.offset + 1)
            out.receipt = str(receipt)
            if out.offset in delivery.moved:
                out.priority = topic.settings.lane_name(delivery.moved[out.offset])
            out.attempt = attempt
            out.lease_until = lease_until
            yield out


async def encode_deliveries(
    topic: Topic, deliveries: Sequence[LeasedBatch], bytes_max: int, *, is_rest: bool = False
) -> tuple[bytes | list[BytesLike], list[LeasedBatch]]:
    """Return the JSON body of a receive, and what of the leases has no room in it."""
    found = JsonMessages(bytes_max, is_rest=is_rest)
    unsent: list[LeasedBatch] = []
    for delivery in deliveries:
        if unsent:
            unsent.append(delivery)
            continue
        for out in delivery_json(topic, delivery):
            if not await found.add(out):
                spans = _spans_from(delivery.spans, out.offset)
                unsent.append(delivery._replace(spans=spans))
                break
    return found.body(ReceivedOut([])), unsent


def _spans_from(spans: Sequence[Span], offset: int) -> list[Span]:
    """Return the part of ``spans`` from ``offset`` on, which is in one of them."""
    number = next(n for n, (start, end, _) in enumerate(spans) if start <= offset < end)
    _, end, attempt = spans[number]
    return [(offset, end, attempt), *spans[number + 1 :]]


def put_current_lane(out: MessageOut, topic: Topic, partition: Partition) -> None:
    """Set the lane of a message that was moved to another lane."""
    lane = partition.marks.moved_lane(out.offset)
    if lane is not None:
        out.priority = topic.settings.lane_name(lane)
