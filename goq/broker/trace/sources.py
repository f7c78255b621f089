"""The readers that a trace uses: live logs and archive of a partition, and the offset of a copy.

The functions block on the disk. The methods of :class:`TraceSources` do not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from goq import limits
from goq.broker.events.index import EventIndex
from goq.broker.events.index_blocks import events_between
from goq.broker.events.search import IndexedEventLog
from goq.broker.partition.partition import Partition
from goq.broker.retention.archiver import Archiver
from goq.broker.retention.tiered_log import TieredLogs, tiered_logs
from goq.delivery.events.frame_codec import StoredEvent
from goq.errors import InvalidFrame, TooLarge
from goq.frame.view import FrameView
from goq.index_cache import IndexCache
from goq.storage.log.reader import LogReader

T = TypeVar("T")


class ThreadRunner(Protocol):
    """Runs work in a thread."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        """Return an awaitable of the result of ``work``."""
        ...


class TraceSource(NamedTuple):
    """The readers of a partition's messages and events.

    ``run`` runs a read in a thread. Reads that decompress use no thread that commits need.
    """

    messages: LogReader
    events: IndexedEventLog
    run: ThreadRunner


class TraceSources:
    """The trace sources of all partitions, archive included.

    The readers of a partition and their caches live as long as the partition is open.
    """

    def __init__(self, archive: Archiver, indexes: IndexCache) -> None:
        self._archive = archive
        self._indexes = indexes
        self._known: WeakKeyDictionary[Partition, tuple[TieredLogs, EventIndex]] = (
            WeakKeyDictionary()
        )

    def of(self, partition: Partition) -> TraceSource:
        """Return the source of a partition. Runs on the event loop."""
        known = self._known.get(partition)
        if known is None:
            logs = tiered_logs(self._archive, partition)
            index = EventIndex(self._archive.disk, logs.events, self._indexes)
            known = self._known[partition] = logs, index
        logs, index = known
        rows, identity = self._archive.segments.rows, partition.identity
        is_archived = rows(identity, "messages") or rows(identity, "events")
        return TraceSource(
            logs.messages,
            IndexedEventLog(logs.events, index, partition.live_event_index.live_blocks()),
            self._archive.in_thread if is_archived else partition.in_thread,
        )

    def archived_at_us(self, partition: Partition, offset: int) -> int | None:
        """Return when a message was archived, or None if it is still in the live log."""
        if offset >= partition.log_start_offset:
            return None
        row = self._archive.segments.find(partition.identity, "messages", offset)
        return None if row is None else row.archived_at_us


def find_frame(source: TraceSource, offset: int) -> tuple[FrameView | None, bool]:
    """Return the frame with a message, or None if it is unreadable, and whether it should exist."""
    segments = source.messages.segments
    if not any(each.base_offset <= offset < each.end_offset for each in segments):
        return None, False
    reading = source.messages.read(offset, offset + 1, messages_max=1)
    for view in reading.frames:
        if view.header.base_offset <= offset < view.header.end_offset:
            try:
                _ = view.payload
            except (InvalidFrame, TooLarge):
                return None, True
            return view, True
    return None, True


def last_time_us(messages: LogReader, offset: int, append_us: int) -> int:
    """Return the time that retention uses for a message: the newest time of its segment."""
    return max(append_us, messages.sealed_time_us(offset) or 0)


def first_event(logs: Sequence[IndexedEventLog]) -> StoredEvent | None:
    """Return the oldest event that is left, or None if there is none or it is damaged."""
    for log in logs:
        segments = log.reader.segments
        if segments and segments[-1].end_offset > segments[0].base_offset:
            start = segments[0].base_offset
            found = next(events_between(log.reader, start, start + 1), None)
            return found if isinstance(found, StoredEvent) else None
    return None


_READINGS_MAX = 8


def find_copy(readers: Sequence[LogReader], end: int, first_offset: int, index: int) -> int | None:
    """Return the offset of the copy ``index`` places after the copy at ``first_offset``.

    Copies have consecutive sequence numbers of one producer. Copies in one frame have consecutive
    offsets; frames of other producers may lie between two frames of copies. Returns None if the
    copy is not found before ``end``: it is not stored yet, or damaged.
    """
    if not index:
        return first_offset
    for reader in readers:
        segments = reader.segments
        if segments and segments[0].base_offset <= first_offset < segments[-1].end_offset:
            return _find(reader, end, first_offset, index)
    return None


def _find(reader: LogReader, end: int, first_offset: int, index: int) -> int | None:
    at, number, producer_id = first_offset, -1, 0
    for _ in range(_READINGS_MAX):
        reading = reader.read(at, end, messages_max=limits.READ_MESSAGES_MAX)
        for view in reading.frames:
            header = view.header
            if number < 0:
                if not header.base_offset <= first_offset < header.end_offset:
                    return None
                producer_id = header.producer_id
                number = header.first_sequence + first_offset - header.base_offset + index
            if header.producer_id == producer_id and _holds(view, number):
                return header.base_offset + number - header.first_sequence
        if reading.next_offset <= at or reading.next_offset >= end:
            return None
        at = reading.next_offset
    return None


def _holds(view: FrameView, number: int) -> bool:
    header = view.header
    return header.first_sequence <= number < header.first_sequence + header.message_count
