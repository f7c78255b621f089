"""Messages of an answer: as JSON, or as frames for speed."""

from __future__ import annotations

import base64
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import msgspec

from goq import limits
from goq.api.codec.long_value import LONG_BYTES, LongValue, encode_long_value, message_parts
from goq.api.router import FRAMES
from goq.api.schemas.groups import ReceivedOut
from goq.api.schemas.messages import MessageOut
from goq.broker.partition.leases import LeasedBatch
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.config.topic import TopicSettings
from goq.config.types import lanes
from goq.delivery.events.event import Span
from goq.frame.slice import PickedRows, can_gather, gather_rows, select_rows, slice_frame
from goq.frame.view import DELIVERY_COLUMNS, FrameView
from goq.http.message import BytesLike, Response
from goq.model import Header, Message, Receipt, fence_of
from goq.units import format_time_us

_PICK_SAVES_BYTES_MIN = 100  # a kept message; sending so much costs both sides as much as picking
_CUT_SAVES_BYTES_MIN = 2048  # a kept message; about the cost of rebuilding it
_CUT_BYTES = 32 * 1024  # a cut that saves more is made, however many messages are kept
_DECODED_AT_ONCE = 256
_NO_MESSAGES = b'{"messages":[]'
_encoder = msgspec.json.Encoder()


def json_response(answer: object, status: int = 200) -> Response:
    """Return ``answer`` as a JSON response."""
    return Response(status, _encoder.encode(answer), "application/json")


def encode_json(answer: object) -> bytes:
    """Return ``answer`` as JSON bytes."""
    return _encoder.encode(answer)


async def list_response(name: str, items: Iterable[object]) -> Response:
    """Return an object with one list as a JSON response; items are made and encoded in slices."""
    parts, time_slice = [b'{"%b":[' % name.encode()], TimeSlice()
    for item in items:
        parts.append(b"," * (len(parts) > 1) + _encoder.encode(item))
        if time_slice.is_over:
            await time_slice.next()
    parts.append(b"]}")
    return Response(200, b"".join(parts), "application/json")


def frames_response(preface: dict[str, Any], frames: Iterable[tuple[int, memoryview]]) -> Response:
    """Return a preface and frames as unjoined parts, sent from where they are in memory."""
    return Response(200, frames_parts(preface, frames), FRAMES)


def frames_parts(
    preface: dict[str, Any], frames: Iterable[tuple[int, memoryview]]
) -> list[BytesLike]:
    """Return a preface and frames as the parts of a body."""
    head = _encoder.encode(preface)
    parts: list[BytesLike] = [len(head).to_bytes(4, "little") + head]
    for partition, frame in frames:
        parts += (partition.to_bytes(4, "little"), frame)
    return parts


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

    The encoded size counts: decompression and JSON escapes make messages larger.
    """

    def __init__(self, bytes_max: int) -> None:
        self.last_id: str | None = None
        self._messages: list[list[bytes]] = []
        self._bytes_left = bytes_max
        self._time_slice = TimeSlice()

    def __len__(self) -> int:
        return len(self._messages)

    async def add(self, out: MessageOut) -> bool:
        """Add a message if there is room; the first always has room. Let others go meanwhile."""
        if self._time_slice.is_over:
            await self._time_slice.next()
        await encode_long_value(out, self._time_slice)
        return self.add_at_once(out)

    def add_at_once(self, out: MessageOut) -> bool:
        """Add a message as :meth:`add` does, in a thread."""
        parts = message_parts(out)
        size_bytes = sum(map(len, parts))
        if size_bytes > self._bytes_left and self._messages:
            return False
        self._bytes_left -= size_bytes
        self._messages.append(parts)
        self.last_id = out.id
        return True

    def body(self, answer: object) -> bytes | list[BytesLike]:
        """Return the JSON of an answer whose first field is ``messages``, empty, with these."""
        encoded = _encoder.encode(answer)
        assert encoded.startswith(_NO_MESSAGES)
        parts: list[BytesLike] = []
        short = [_NO_MESSAGES[:-1]]
        for number, message in enumerate(self._messages):
            short.append(b"," + message[0] if number else message[0])
            if len(message) > 1:
                parts += [b"".join(short), *message[1:-1]]
                short = [message[-1]]
        short.append(encoded[len(_NO_MESSAGES) - 1 :])
        last = b"".join(short)
        return [*parts, last] if parts else last

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
            out.attempt = attempt
            out.lease_until = lease_until
            yield out


async def encode_deliveries(
    topic: Topic, deliveries: Sequence[LeasedBatch], bytes_max: int
) -> tuple[bytes | list[BytesLike], list[tuple[LeasedBatch, Sequence[Span]]]]:
    """Return the JSON body of a receive, and the leases that have no room in it."""
    found = JsonMessages(bytes_max)
    unsent: list[tuple[LeasedBatch, Sequence[Span]]] = []
    for delivery in deliveries:
        if unsent:
            unsent.append((delivery, delivery.spans))
            continue
        for out in delivery_json(topic, delivery):
            if not await found.add(out):
                unsent.append((delivery, _spans_from(delivery.spans, out.offset)))
                break
    return found.body(ReceivedOut([])), unsent


def _spans_from(spans: Sequence[Span], offset: int) -> list[Span]:
    """Return the part of ``spans`` from ``offset`` on, which is in one of them."""
    number = next(n for n, (start, end, _) in enumerate(spans) if start <= offset < end)
    _, end, attempt = spans[number]
    return [(offset, end, attempt), *spans[number + 1 :]]


async def deliveries_parts(
    topic: Topic, deliveries: Sequence[LeasedBatch], now_ms: int
) -> list[BytesLike]:
    """Return deliveries as frames; large frames are cut to their leased part."""
    prefaces = []
    frames: list[tuple[int, memoryview]] = []
    time_slice = TimeSlice()
    for delivery in deliveries:
        spans = sorted(delivery.spans)
        answer = _DeliveryFrames()
        for view in sorted(delivery.frames, key=_base_offset):
            answer.add(view, spans)
            if time_slice.is_over:
                await time_slice.next()
        answer.finish()
        prefaces.append(
            {
                "partition": delivery.partition,
                "token": str(fence_of(topic.id, delivery.token)),
                "lease_until": format_time_us(delivery.deadline_ms * 1000),
                "lease_ms": delivery.deadline_ms - now_ms,
                "ranges": delivery.spans,
                "frames": len(answer.frames),
                "picked": answer.picked,
                "times": answer.times,
            }
        )
        frames.extend((delivery.partition, frame) for frame in answer.frames)
    return frames_parts({"deliveries": prefaces, "lanes": lanes_of(topic)}, frames)


class _DeliveryFrames:
    """The frames of a delivery; picked messages of neighbouring frames are gathered into one.

    A ``picked`` frame (its number, and an offset) holds only the messages of the delivery from its
    base offset up to that offset. Messages of a gathered frame from an offset on were appended at a
    time of ``times`` (the number of the frame, the offset, the time).
    """

    def __init__(self) -> None:
        self.frames: list[memoryview] = []
        self.picked: list[tuple[int, int]] = []
        self.times: list[tuple[int, int, int]] = []
        self._gathering: list[PickedRows] = []
        self._gathered_rows = self._gathered_bytes = 0

    def add(self, view: FrameView, spans: Sequence[Span]) -> None:
        """Add what the delivery has of the next frame."""
        base, end = view.header.base_offset, view.header.end_offset
        first = bisect_right(spans, base, key=_span_end)  # the first that ends after the base
        last = bisect_left(spans, end, key=_span_start)  # the first that starts at or behind it
        if first >= last:
            return
        rows = _rows_to_pick(view, spans[first:last])
        if not rows:
            self.finish()
            start, stop = max(base, spans[first][0]), min(end, spans[last - 1][1])
            self.frames.append(_cut(view, start, stop))
            return
        size_bytes = view.unpacked_bytes  # at least what its rows take, however they differ
        if self._gathering and not (
            can_gather(self._gathering[0][0], view)
            and self._gathered_rows + len(rows) <= limits.TENANTS_PER_FRAME_MAX
            and self._gathered_bytes + size_bytes <= limits.FRAME_BYTES_MAX
        ):
            self.finish()
        self._gathering.append((view, rows))
        self._gathered_rows += len(rows)
        self._gathered_bytes += size_bytes

    def finish(self) -> None:
        """Add the frame that was being gathered, if any."""
        gathered, self._gathering = self._gathering, []
        self._gathered_rows = self._gathered_bytes = 0
        if not gathered:
            return
        number = len(self.frames)
        self.picked.append((number, gathered[-1][0].header.end_offset))
        if len(gathered) == 1:
            self.frames.append(select_rows(*gathered[0]))
            return
        for view, _ in gathered:
            self.times.append((number, view.header.base_offset, view.header.append_time_us))
        self.frames.append(gather_rows(gathered))


def lanes_of(topic: Topic) -> str:
    """Return the lanes of a topic in the text form of its settings."""
    return lanes.format(topic.settings.lanes)


def _rows_to_pick(view: FrameView, spans: Sequence[Span]) -> list[int]:
    """Return the rows of a frame that are leased, if they are so few that picking them pays."""
    if len(spans) == 1:
        return []
    header = view.header
    base, end = header.base_offset, header.end_offset
    rows = [
        offset - base
        for start, stop, _ in spans
        for offset in range(max(start, base), min(stop, end))
    ]
    left_out = rows[-1] + 1 - rows[0] - len(rows)
    saves_bytes = left_out * (header.frame_bytes // header.message_count)
    return rows if saves_bytes > len(rows) * _PICK_SAVES_BYTES_MIN else []


def _cut(view: FrameView, start: int, stop: int) -> memoryview:
    """Return the frame from its first leased message up to behind its last.

    Cutting rebuilds a frame message by message. Where that saves little, it is sent whole.
    """
    header = view.header
    saves_bytes = header.frame_bytes // header.message_count * (header.message_count - stop + start)
    if saves_bytes <= min((stop - start) * _CUT_SAVES_BYTES_MIN, _CUT_BYTES):
        return view.buffer
    return slice_frame(view, start, stop)


def _span_start(span: Span) -> int:
    return span[0]


def _span_end(span: Span) -> int:
    return span[1]


def put_current_lane(out: MessageOut, topic: Topic, partition: Partition) -> None:
    """Set the lane of a message that was moved to another lane."""
    lane = partition.marks.moved_lane(out.offset)
    if lane is not None:
        out.priority = topic.settings.lane_name(lane)
