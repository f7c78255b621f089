"""Redo: gives the segments of a log what only the journal has, after a power cut.

An entry newer than the log's journal mark may be missing in its segment, whole or in part. It is
written there, the segment is synced, and the recovery point says that everything up to the last
entry is durable. Redo may be repeated, and cut short at any point.

Entries of an earlier log of that path do not count: a new log begins with a mark behind them, as
does one that was truncated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from goq.storage.disk import Disk
from goq.storage.journal.record import JournalEntry
from goq.storage.log.recovery_point import NO_MARK, DurableEnd, JournalMark, RecoveryPoint
from goq.storage.log.segment import Segment
from goq.storage.log.segment_files import list_segments

MarkedEntry = tuple[JournalMark, JournalEntry]


def redo_log(
    disk: Disk, directory: Path, entries: Sequence[MarkedEntry], up_to: JournalMark = NO_MARK
) -> None:
    """Apply entries to the log in ``directory``, in their order. Raises ``OSError``.

    Records up to ``up_to`` do not count for the log from then on, whether they are among the
    entries or could not be read. Nothing is done to a log that is gone, or that never held a frame.
    """
    segments = {segment.base_offset: segment for segment in list_segments(disk, directory)}
    if not segments:
        return
    point = RecoveryPoint.load(disk, directory)
    if point is None:  # lost, so all of the log counts as durable; or the log was never used
        if any(segment.size_bytes for segment in segments.values()):
            _complete_all(disk, segments, [entry for _, entry in entries])
        return
    try:
        newer = [each for each in entries if each[0] > point.journal_mark]
        if newer:
            _complete_all(disk, segments, [entry for _, entry in newer])
            mark, last = newer[-1]
            end = DurableEnd(last.segment, last.position + len(last.data), last.end_offset)
            point.durable = max(point.durable, end)
            point.journal_mark = mark
        if newer or point.journal_mark < up_to:
            point.journal_mark = max(point.journal_mark, up_to)
            point.sync()
    finally:
        point.close()


def _complete_all(
    disk: Disk, segments: Mapping[int, Segment], entries: Sequence[JournalEntry]
) -> None:
    """Complete the segments that are there; recovery reports missing ones."""
    for base_offset in sorted({entry.segment for entry in entries}):
        segment = segments.get(base_offset)
        if segment is not None and not segment.generation:
            own = (entry for entry in entries if entry.segment == base_offset)
            _complete(disk, segment.path, _runs(own))


def _runs(entries: Iterable[JournalEntry]) -> Iterator[tuple[int, bytes]]:
    """Yield positions with bytes; adjacent entries are joined."""
    start, end, parts = 0, 0, list[bytes | memoryview]()
    for entry in entries:
        if entry.position != end and parts:
            yield start, b"".join(parts)
            parts = []
        if not parts:
            start = entry.position
        parts.append(entry.data)
        end = entry.position + len(entry.data)
    if parts:
        yield start, b"".join(parts)


def _complete(disk: Disk, path: Path, runs: Iterable[tuple[int, bytes]]) -> None:
    """Write what a file may lack, and sync it.

    It may lack bytes that it reads: after a failed sync the system takes them for written.
    """
    file = disk.open(path)
    try:
        for position, data in runs:
            file.write_at(data, position)
        file.sync()
    finally:
        file.close()
