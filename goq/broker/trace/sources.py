"""Where the messages of a partition, and what happened to them, are read for a trace.

The functions block on the disk, :class:`Sources` does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

from goq.broker.events.index import SpanIndex
from goq.broker.events.index_blocks import events_between
from goq.broker.events.search import Events
from goq.broker.partition.partition import Partition
from goq.broker.retention.archiver import Archive
from goq.broker.retention.tiered_log import WholeLogs, whole_logs
from goq.delivery.events.frame_codec import StoredEvent
from goq.errors import InvalidFrame, TooLarge
from goq.frame.view import FrameView
from goq.storage.log.reader import LogReader

T = TypeVar("T")


class Run(Protocol):
    """Runs work in a thread."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        """Return what to await for what ``work`` returns."""
        ...


class Source(NamedTuple):
    """Where messages of a partition, and what happened to them, may be read.

    ``run`` runs what reads them in a thread: what decompresses takes none that commits need.
    """

    messages: LogReader
    events: Events
    run: Run


class Sources:
    """Where to look for the messages and events of each partition: what is live, and the archive.

    Readers are kept as long as their partition is open, with what they know.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._known: WeakKeyDictionary[Partition, tuple[WholeLogs, SpanIndex]] = WeakKeyDictionary()

    def of(self, partition: Partition) -> Source:
        """Return where to look for a partition's messages; on the event loop."""
        known = self._known.get(partition)
        if known is None:
            logs = whole_logs(self._archive, partition)
            known = self._known[partition] = logs, SpanIndex(self._archive.disk, logs.events)
        logs, index = known
        rows, identity = self._archive.rows, partition.identity
        is_archived = rows(identity, "messages") or rows(identity, "events")
        return Source(
            logs.messages,
            Events(logs.events, index, partition.spans.live()),
            self._archive.in_thread if is_archived else partition.in_thread,
        )

    def archived_at_us(self, partition: Partition, offset: int) -> int | None:
        """Return when a message went to the archive, None where it is not there alone."""
        if offset >= partition.log_start_offset:
            return None
        row = self._archive.find(partition.identity, "messages", offset)
        return None if row is None else row.archived_at_us


def frame_of(source: Source, offset: int) -> tuple[FrameView | None, bool]:
    """Return the frame with a message, and whether there should be one; none where damaged."""
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
    """Return the time by which retention judges a message: the latest of its segment."""
    return max(append_us, messages.sealed_time_us(offset) or 0)


def first_event(logs: Sequence[Events]) -> StoredEvent | None:
    """Return the earliest event that is left, None where there is none or it is damaged."""
    for log in logs:
        segments = log.reader.segments
        if segments and segments[-1].end_offset > segments[0].base_offset:
            start = segments[0].base_offset
            found = next(events_between(log.reader, start, start + 1), None)
            return found if isinstance(found, StoredEvent) else None
    return None
