"""Builds the frames that hold the copies of outbox entries.

A frame takes as many messages as its bounds allow, from one entry or from consecutive entries.
Every message has a copy, so that the sequence numbers of later copies stay valid. A message that
cannot be read any more becomes an empty message whose headers give the reason.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from goq import limits
from goq.broker.outbox.dead_letter_headers import (
    DeadLetterOrigin,
    dead_letter_headers_of,
    failed_attempts,
    placeholder_headers,
    redriven_headers,
    without_claims,
)
from goq.broker.partition_context import PartitionId
from goq.delivery.events.event import Failure
from goq.delivery.outbox import LOST, FailureHistory, OutboxEntry
from goq.errors import GoqError
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import HEADER_BYTES, Attribute, parse_header
from goq.frame.view import FrameView
from goq.model import Header, MessageId
from goq.storage.log.reader import LogReader
from goq.units import format_time_us

_DAMAGED = "damaged"
_DELETED = "deleted by retention"
_COMPACTED = "compacted away"


class _RecordCopy(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: list[Header]
    client_time_ms: int = 0
    tenant: str | None = None
    lane: int | None = None

    @property
    def size_bytes(self) -> int:
        names = sum(len(name) + len(value) + 16 for name, value in self.headers)
        return 64 + len(self.value or b"") + len(self.key or b"") + names


class RecordCopier:
    """Reads the messages of outbox entries. Methods block on the disk."""

    def __init__(
        self, source: PartitionId, messages: LogReader, default_lane: int, frame_messages_max: int
    ) -> None:
        self._frame_messages_max = frame_messages_max
        self._source = source
        self._messages = messages
        self._default_lane = default_lane
        self._view: FrameView | None = None

    @property
    def _start_offset(self) -> int:
        return self._messages.segments[0].base_offset

    def frame(self, entries: Sequence[OutboxEntry], mark: ProducerMark) -> FrameView:
        """Return a frame of the copies from sequence number ``mark.first_sequence`` on.

        The sequence numbers of the entries have to be consecutive.
        """
        copies: list[_RecordCopy] = []
        size_bytes = 0
        for copy in self._copies(entries, mark.first_sequence):
            size_bytes += copy.size_bytes
            if copies and size_bytes > limits.OUTBOX_FRAME_BYTES:
                break
            copies.append(copy)
            if len(copies) >= self._frame_messages_max:
                break
        self._view = None
        frame = encode_frame(self._columns(copies), producer=mark)
        header = parse_header(frame)
        header = header._replace(attributes=header.attributes | Attribute.COPY)
        return FrameView.parse(header.pack() + frame[HEADER_BYTES:])

    def _columns(self, copies: Sequence[_RecordCopy]) -> Columns:
        lanes = [self._default_lane if c.lane is None else c.lane for c in copies]
        return Columns(
            values=[c.value for c in copies],
            keys=[c.key for c in copies] if any(c.key is not None for c in copies) else None,
            headers=[c.headers for c in copies],
            client_time_ms=[c.client_time_ms for c in copies]
            if any(c.client_time_ms for c in copies)
            else None,
            tenants=[c.tenant for c in copies]
            if any(c.tenant is not None for c in copies)
            else None,
            lanes=lanes if any(c.lane is not None for c in copies) else None,
        )

    def _copies(self, entries: Sequence[OutboxEntry], sequence: int) -> Iterator[_RecordCopy]:
        for entry in entries:
            number = entry.first_sequence
            for start, end, attempt in entry.event.spans:
                first = start + max(0, sequence - number)
                number += end - start
                if first < end:
                    yield from self._range_copies(entry, first, end, attempt)

    def _range_copies(
        self, entry: OutboxEntry, start: int, end: int, attempt: int
    ) -> Iterator[_RecordCopy]:
        """Yield the copies of messages with the same attempt, in offset order."""
        at = start
        while at < end:
            view = self._frame_at(at)
            if view is None:
                yield self._placeholder(entry, at, attempt)
                at += 1
                continue
            base = view.header.base_offset
            last = min(end, view.header.end_offset)
            try:
                found = view.columns(at - base, last - base)
            except (GoqError, ValueError, IndexError):
                self._view = None
                for offset in range(at, last):
                    yield self._placeholder(entry, offset, attempt)
            else:
                yield from self._readable_copies(entry, view, found, at, attempt)
            at = last

    def _frame_at(self, offset: int) -> FrameView | None:
        """Return the frame that holds ``offset``, or None if it cannot be read."""
        if self._view is None or not _holds(self._view, offset):
            self._view = None
            if self._start_offset <= offset < self._messages.segments[-1].end_offset:
                reading = self._messages.read(offset, offset + 1, messages_max=1)
                for view in reading.frames:
                    if _holds(view, offset):
                        self._view = view
        return self._view

    def _readable_copies(
        self, entry: OutboxEntry, view: FrameView, found: Columns, start: int, attempt: int
    ) -> Iterator[_RecordCopy]:
        published = format_time_us(view.header.append_time_us)
        base = view.header.base_offset
        kept = view.kept(start - base, start - base + len(found.values))
        for index, value in enumerate(found.values):
            if not kept[index]:
                yield self._placeholder(entry, start + index, attempt, _COMPACTED)
                continue
            headers = found.headers[index] if found.headers is not None else ()
            headers = without_claims(view.header.attributes, headers)
            origin = self._origin(entry, start + index, attempt, published)
            if entry.event.group:
                chosen = dead_letter_headers_of(headers, origin)
            else:
                chosen = redriven_headers(headers, origin.id, entry.event.topic)
            yield _RecordCopy(
                value,
                found.keys[index] if found.keys is not None else None,
                chosen,
                found.client_time_ms[index] if found.client_time_ms is not None else 0,
                found.tenants[index] if found.tenants is not None else None,
                found.lanes[index] if found.lanes is not None else None,
            )

    def _placeholder(
        self, entry: OutboxEntry, offset: int, attempt: int, why: str = ""
    ) -> _RecordCopy:
        why = why or (_DELETED if 0 <= offset < self._start_offset else _DAMAGED)
        origin = self._origin(entry, offset, attempt, "")
        if entry.event.group:
            return _RecordCopy(b"", None, dead_letter_headers_of((), origin, lost=why))
        return _RecordCopy(b"", None, placeholder_headers(origin.id, why))

    def _origin(
        self, entry: OutboxEntry, offset: int, attempt: int, published: str
    ) -> DeadLetterOrigin:
        event = entry.event
        if offset < 0:
            offset += LOST
        failures: tuple[Failure, ...] = ()
        number = bisect_right(entry.histories, offset, key=_start) - 1
        if number >= 0 and offset < entry.histories[number][1]:
            failures = entry.histories[number][2]
        return DeadLetterOrigin(
            id=str(MessageId(self._source.topic, self._source.number, offset)),
            group=event.group,
            attempts=attempt,
            cause=event.cause,
            time=format_time_us(event.time_ms * 1000),
            reason=event.reason,
            published=published,
            failures=failed_attempts(failures),
        )


def _start(history: FailureHistory) -> int:
    return history[0]


def _holds(view: FrameView, offset: int) -> bool:
    return view.header.base_offset <= offset < view.header.end_offset
