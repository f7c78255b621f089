"""Making the frames that messages arrive in where they leave for.

A frame takes as many messages as its bounds allow, of one departure or of several that follow each
other. Every message that left has its copy, so that the numbers of those behind it hold: one that
cannot be read any more becomes an empty message whose headers say so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from goq import limits
from goq.broker.outbox.dead_letter_headers import (
    Life,
    dead_headers,
    failed_attempts,
    lost_headers,
    redriven_headers,
)
from goq.broker.partition_context import PartitionId
from goq.delivery.events.event import Failure
from goq.delivery.outbox import LOST, FailureHistory, OutboxEntry
from goq.errors import GoqError
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import HEADER_BYTES, Attribute, parse_header
from goq.frame.view import FrameView
from goq.model import DEAD_LETTERS_SUFFIX, Header, MessageId
from goq.storage.log.reader import LogReader
from goq.units import format_time_us

_DAMAGED = "damaged"
_DELETED = "deleted by retention"
_COMPACTED = "compacted away"


class _Copy(NamedTuple):
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


class Copies:
    """Reads what leaves a partition; blocks on the disk."""

    def __init__(self, source: PartitionId, messages: LogReader, default_lane: int) -> None:
        self._source = source
        self._messages = messages
        self._default_lane = default_lane
        self._view: FrameView | None = None

    @property
    def _start_offset(self) -> int:
        return self._messages.segments[0].base_offset

    def frame(self, departures: Sequence[OutboxEntry], mark: ProducerMark) -> FrameView:
        """Return a frame of the messages from number ``mark.first_sequence`` on.

        The numbers of the departures follow each other.
        """
        copies: list[_Copy] = []
        size_bytes = 0
        for copy in self._copies(departures, mark.first_sequence):
            size_bytes += copy.size_bytes
            if copies and size_bytes > limits.OUTBOX_FRAME_BYTES:
                break
            copies.append(copy)
            if len(copies) >= limits.OUTBOX_FRAME_MESSAGES:
                break
        self._view = None
        frame = encode_frame(self._columns(copies), producer=mark)
        if any(not departure.event.group for departure in departures):
            header = parse_header(frame)
            header = header._replace(attributes=header.attributes | Attribute.REDRIVEN)
            frame = header.pack() + frame[HEADER_BYTES:]
        return FrameView.parse(frame)

    def _columns(self, copies: Sequence[_Copy]) -> Columns:
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

    def _copies(self, departures: Sequence[OutboxEntry], sequence: int) -> Iterator[_Copy]:
        for departure in departures:
            number = departure.first_sequence
            for start, end, attempt in departure.event.spans:
                first = start + max(0, sequence - number)
                number += end - start
                if first < end:
                    yield from self._run(departure, first, end, attempt)

    def _run(self, departure: OutboxEntry, start: int, end: int, attempt: int) -> Iterator[_Copy]:
        """Yield the copies of messages that share an attempt, in order of offset."""
        at = start
        while at < end:
            view = self._at(at)
            if view is None:
                yield self._lost(departure, at, attempt)
                at += 1
                continue
            base = view.header.base_offset
            last = min(end, view.header.end_offset)
            try:
                found = view.columns(at - base, last - base)
            except (GoqError, ValueError, IndexError):
                self._view = None
                for offset in range(at, last):
                    yield self._lost(departure, offset, attempt)
            else:
                yield from self._found(departure, view, found, at, attempt)
            at = last

    def _at(self, offset: int) -> FrameView | None:
        """Return the frame that holds ``offset``, None where there is none to be read."""
        if self._view is None or not _holds(self._view, offset):
            self._view = None
            if self._start_offset <= offset < self._messages.segments[-1].end_offset:
                reading = self._messages.read(offset, offset + 1, messages_max=1)
                for view in reading.frames:
                    if _holds(view, offset):
                        self._view = view
        return self._view

    def _found(
        self, departure: OutboxEntry, view: FrameView, found: Columns, start: int, attempt: int
    ) -> Iterator[_Copy]:
        published = format_time_us(view.header.append_time_us)
        base = view.header.base_offset
        kept = view.kept(start - base, start - base + len(found.values))
        for index, value in enumerate(found.values):
            if not kept[index]:
                yield self._lost(departure, start + index, attempt, _COMPACTED)
                continue
            headers = found.headers[index] if found.headers is not None else ()
            if departure.event.group:
                life = self._life(departure, start + index, attempt, published)
                chosen = dead_headers(headers, life)
            else:
                is_origin = departure.event.topic + DEAD_LETTERS_SUFFIX == self._source.topic
                chosen = redriven_headers(headers, is_origin=is_origin)
            yield _Copy(
                value,
                found.keys[index] if found.keys is not None else None,
                chosen,
                found.client_time_ms[index] if found.client_time_ms is not None else 0,
                found.tenants[index] if found.tenants is not None else None,
                found.lanes[index] if found.lanes is not None else None,
            )

    def _lost(self, departure: OutboxEntry, offset: int, attempt: int, why: str = "") -> _Copy:
        why = why or (_DELETED if 0 <= offset < self._start_offset else _DAMAGED)
        life = self._life(departure, offset, attempt, "")
        if departure.event.group:
            return _Copy(b"", None, dead_headers((), life, lost=why))
        return _Copy(b"", None, lost_headers(life.id, why))

    def _life(self, departure: OutboxEntry, offset: int, attempt: int, published: str) -> Life:
        event = departure.event
        if offset < 0:
            offset += LOST
        failures: tuple[Failure, ...] = ()
        number = bisect_right(departure.histories, offset, key=_start) - 1
        if number >= 0 and offset < departure.histories[number][1]:
            failures = departure.histories[number][2]
        return Life(
            id=str(MessageId(*self._source, offset)),
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
