"""The frames of the ``events`` log.

A frame's body is the length of what follows (``u64``), the events as MessagePack, and zeros up to
a multiple of 8. ``first_sequence`` of the header is 1 plus the end offset of the partition's
messages when the frame was written; 0 if unknown. A message at or after that end was published
later, whatever the clock says: no event in the frame or before it is about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from goq.delivery.events.event import (
    AnyEvent,
    GroupDeleted,
    SnapshotGroup,
    SnapshotMarks,
    SnapshotOutboxEntry,
    SnapshotProducers,
    SnapshotStarted,
    Trimmed,
    decode_events,
    encode_event,
    encode_events,
)
from goq.errors import InvalidFrame
from goq.frame.encoder import NO_PRODUCER, ProducerMark
from goq.frame.header import Attribute, FrameHeader, padding_bytes
from goq.frame.view import FrameView

_LENGTH_BYTES = 8
_LIST_HEAD_BYTES = {b"\xdc": 3, b"\xdd": 5}  # of a long MessagePack array; a short one has 1
_SNAPSHOT_TAG = bytes([int(str(SnapshotStarted.__struct_config__.tag))])
_TRIMMED_HEAD = encode_events([Trimmed(0)])[1:3]


class EncodedEvent(NamedTuple):
    """An event of a snapshot as frames hold it, and roughly how many entries it has."""

    data: bytes
    weight: int


class StoredEvent(NamedTuple):
    """An event with its sequence, epoch and append time.

    ``messages_end`` is the end offset of the messages when it was written, None if unknown.
    """

    sequence: int
    epoch: int
    time_us: int
    event: AnyEvent
    messages_end: int | None = None


def messages_end_of(header: FrameHeader) -> int | None:
    """Return the end offset of the messages when a frame of events was written, None if unknown."""
    return header.first_sequence - 1 if header.first_sequence else None


def encode_event_frame(events: Sequence[AnyEvent], messages_end: int | None = None) -> FrameView:
    """Return a frame of events, ready to be appended."""
    return _frame_of([encode_events(events)], len(events), messages_end)


def encode_weighed(event: AnyEvent) -> EncodedEvent:
    """Return an event of a snapshot, encoded."""
    return EncodedEvent(encode_event(event), event_weight(event))


def snapshot_frames(
    events: Iterable[EncodedEvent], weight_max: int, messages_end: int
) -> Iterator[tuple[FrameView, int]]:
    """Yield the frames of a snapshot, each of about ``weight_max`` entries, and what they weigh."""
    some: list[bytes] = []
    weight = 0
    for data, entries in events:
        some.append(data)
        weight += entries
        if weight >= weight_max:
            yield _frame_of([_list_head(len(some)), *some], len(some), messages_end), weight
            some, weight = [], 0
    if some:
        yield _frame_of([_list_head(len(some)), *some], len(some), messages_end), weight


def _frame_of(pieces: Sequence[bytes], count: int, messages_end: int | None) -> FrameView:
    mark = NO_PRODUCER if messages_end is None else ProducerMark(0, 0, messages_end + 1)
    data = b"".join(pieces)
    parts = [len(data).to_bytes(_LENGTH_BYTES, "little"), data, bytes(padding_bytes(len(data)))]
    return FrameView.assemble(parts, count=count, attributes=Attribute.EVENTS, producer=mark)


def _list_head(count: int) -> bytes:
    """Return the head of a MessagePack array."""
    if count < 16:
        return bytes([0x90 | count])
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def decode_event_frame(view: FrameView) -> list[StoredEvent]:
    """Return the events of a frame. Raises ``InvalidFrame`` for any other frame."""
    header = view.header
    size = int.from_bytes(view.body[:_LENGTH_BYTES], "little")
    try:
        events = decode_events(view.body[_LENGTH_BYTES : _LENGTH_BYTES + size])
    except msgspec.DecodeError as error:
        raise InvalidFrame(f"the frame does not hold events: {error}") from None
    if len(events) != header.message_count or not header.attributes & Attribute.EVENTS:
        raise InvalidFrame("the frame does not hold the events that it counts")
    epoch, time_us = header.leader_epoch, header.append_time_us
    messages_end = messages_end_of(header)
    return [
        StoredEvent(sequence, epoch, time_us, event, messages_end)
        for sequence, event in enumerate(events, header.base_offset)
    ]


def begins_snapshot(body: memoryview) -> bool:
    """Return whether the first event of a frame begins a snapshot, without decoding its body.

    Compares the tag behind the heads of two arrays: that of the list, and that of its first event.
    """
    head = bytes(body[_LENGTH_BYTES : _LENGTH_BYTES + 8])
    tag_at = _LIST_HEAD_BYTES.get(head[:1], 1) + 1
    return head[tag_at : tag_at + 1] == _SNAPSHOT_TAG


def may_set_start(body: memoryview) -> bool:
    """Return whether a frame may say where the messages start, without decoding its body."""
    return begins_snapshot(body) or _TRIMMED_HEAD in bytes(body)


def makes_room(view: FrameView) -> bool:
    """Return whether a frame has an event that lets messages be deleted: a full disk takes it too.

    Raises ``InvalidFrame``.
    """
    return any(isinstance(s.event, Trimmed | GroupDeleted) for s in decode_event_frame(view))


def event_weight(event: AnyEvent) -> int:
    """Return roughly how many entries an event of a snapshot holds."""
    if isinstance(event, SnapshotGroup):
        parts = len(event.leases) + len(event.retries) + len(event.failures)
        return 1 + parts + 4 * len(event.partial)
    if isinstance(event, SnapshotMarks):
        return 1 + 4 * len(event.cancelled_partial) + len(event.moved) + len(event.rescheduled)
    if isinstance(event, SnapshotProducers):
        return 1 + len(event.names)
    if isinstance(event, SnapshotOutboxEntry):
        return 1 + len(event.event.spans) + sum(len(failures) for *_, failures in event.failures)
    return 1
