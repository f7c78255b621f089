"""Answers as frames, for speed: a preface in JSON, then each frame with its partition.

Frames are sent from where they are in memory. A delivery rarely has a whole frame: what is leased
of one is cut out, or picked row by row, only where that saves more than it costs. The preface says
which messages of a frame are the consumer's, so a frame may hold others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from goq import limits
from goq.api.route import FRAMES
from goq.broker.partition.leases import LeasedBatch
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.config.types import lanes
from goq.delivery.events.event import Span
from goq.frame.slice import PickedRows, can_gather, gather_rows, select_rows, slice_frame
from goq.frame.view import FrameView
from goq.http.message import BytesLike, Response
from goq.model import fence_of
from goq.units import format_time_us

_PICK_SAVES_BYTES_MIN = 100  # a kept message; sending so much costs both sides as much as picking
_CUT_SAVES_BYTES_MIN = 2048  # a kept message; about the cost of rebuilding it
_CUT_BYTES = 32 * 1024  # a cut that saves more is made, however many messages are kept
_encoder = msgspec.json.Encoder()


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
        for view in sorted(delivery.frames, key=lambda view: view.header.base_offset):
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
                "moved": list(delivery.moved.items()),
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
