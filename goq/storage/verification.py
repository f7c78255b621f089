"""Verification of every stored byte: one pass over the segments, a chunk in memory at a time.

It changes nothing and locks nothing, so a node may be running. Frames that the node has not made
durable yet, and segments that retention deletes meanwhile, are no damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from goq import limits
from goq.errors import CorruptData, GoqError, describe_os_error
from goq.storage.archive.manifest import verify_archive
from goq.storage.catalog.rows import LOG_NAMES, SegmentRow, TopicRow
from goq.storage.catalog.topic_file import FILE_NAME as TOPIC_FILE_NAME
from goq.storage.catalog.topic_file import read_topic_file
from goq.storage.compaction.checkpoint import CHECKPOINT_NAME, is_checkpoint_damaged
from goq.storage.disk import Disk
from goq.storage.journal.journal import JOURNAL_DIR
from goq.storage.journal.piece import ScannedPiece, journal_damage, scan_pieces, told_damage
from goq.storage.log.recovery_point import DurableEnd, read_durable_end
from goq.storage.log.segment import Segment
from goq.storage.log.segment_files import is_listed, list_segments
from goq.storage.node_db import FILE_NAME, NodeDb
from goq.storage.scanner import Damage, ScannedFrame, Scanner

TOPICS_DIR = "topics"


class LogReport(msgspec.Struct):
    """The sound, durable frames of a log, and its damage."""

    frames: int = 0
    messages: int = 0
    bytes: int = 0
    damage: list[Damage] = msgspec.field(default_factory=list)


class VerifiedLog(msgspec.Struct, frozen=True):
    """One log of a data directory; ``log`` is ``messages`` or ``events``."""

    topic: str
    partition: int
    log: str
    report: LogReport


class DataDirReport(msgspec.Struct):
    """All logs of a data directory, and its other problems."""

    logs: list[VerifiedLog] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Sound bytes in all logs."""
        return sum(log.report.bytes for log in self.logs)

    @property
    def is_sound(self) -> bool:
        """Whether there is no damage and no other problem."""
        return not self.problems and not any(log.report.damage for log in self.logs)


def verify_log(disk: Disk, directory: Path, journaled: DurableEnd | None = None) -> LogReport:
    """Read and check every durable frame of a log.

    What the journal has, up to ``journaled``, may be missing or bad in the segment: the next start
    completes it. Sound frames there are counted.
    """
    report = LogReport()
    durable = read_durable_end(disk, directory)  # before the listing, so that it reaches this far
    segments = list_segments(disk, directory)
    if durable is not None and journaled is not None and segments:
        _count_journaled(disk, segments[-1], durable, journaled, report)
    if durable is not None:
        segments = [s for s in segments if s.base_offset <= durable.segment]
    has_merged = False
    for segment, after in pairwise([*segments, None]):
        assert segment is not None
        end_position, end_offset = segment.size_bytes, after.base_offset if after else None
        if durable is not None and after is None:
            end_offset = durable.offset
            if segment.base_offset == durable.segment:
                end_position = min(end_position, durable.position)
        try:
            _verify_newest(disk, segment, end_position, end_offset, report)
        except FileNotFoundError:
            lost = (segment.base_offset, max(segment.base_offset + 1, end_offset or 0))
            now = list_segments(disk, directory)
            if is_listed(disk, now, *lost):  # merged into another meanwhile
                has_merged = True
            elif any(s.base_offset < segment.base_offset for s in now):
                report.damage.append(Damage(segment.path, 0, 0, *lost, "the segment is missing"))
            # else retention deleted it: it deletes the oldest first
    if has_merged:
        return verify_log(disk, directory, journaled)
    if durable is not None and not segments:
        _add_lost_log(directory, durable, report)
    return report


def _count_journaled(
    disk: Disk, last: Segment, durable: DurableEnd, journaled: DurableEnd, report: LogReport
) -> None:
    if last.base_offset != journaled.segment or last.base_offset < durable.segment:
        return
    start = durable if durable.segment == last.base_offset else None
    position, offset = (start.position, start.offset) if start else (0, last.base_offset)
    scanner = Scanner(disk, last.path, min(last.size_bytes, journaled.position))
    for place in scanner.frames(position, offset):
        if isinstance(place, ScannedFrame):
            report.frames += 1
            report.messages += place.view.header.message_count
            report.bytes += place.view.header.frame_bytes


def _journaled_ends(pieces: Iterable[ScannedPiece]) -> dict[str, DurableEnd]:
    """Return by path where the logs end by the records of the journal."""
    ends: dict[str, DurableEnd] = {}
    for piece in pieces:
        for record in piece.records:
            for entry in record.entries():
                end = entry.position + len(entry.data)
                ends[entry.path] = DurableEnd(entry.segment, end, entry.end_offset)
    return ends


def _add_lost_log(directory: Path, durable: DurableEnd, report: LogReport) -> None:
    if durable.segment < durable.offset:
        reason = "every segment is missing"
        report.damage.append(Damage(directory, 0, 0, durable.segment, durable.offset, reason))


def _verify_newest(
    disk: Disk, segment: Segment, end_position: int, end_offset: int | None, report: LogReport
) -> None:
    """Check a segment, or the generation that replaced it meanwhile."""
    while True:
        found = LogReport()
        try:
            _verify_segment(disk, segment, end_position, end_offset, found)
        except FileNotFoundError:
            newest = _newest_generation(disk, segment)
            if newest is None or newest.generation == segment.generation:
                raise
            segment, end_position = newest, newest.size_bytes
            continue
        report.frames += found.frames
        report.messages += found.messages
        report.bytes += found.bytes
        report.damage += found.damage
        return


def _newest_generation(disk: Disk, segment: Segment) -> Segment | None:
    segments = list_segments(disk, segment.path.parent)
    return next((s for s in segments if s.base_offset == segment.base_offset), None)


def _verify_segment(
    disk: Disk, segment: Segment, end_position: int, end_offset: int | None, report: LogReport
) -> None:
    scanner = Scanner(disk, segment.path, end_position, chunk_bytes=limits.MIB)
    lost_from: int | None = segment.base_offset
    for place in scanner.frames(0, segment.base_offset):
        if isinstance(place, ScannedFrame):
            header = place.view.header
            report.frames += 1
            report.messages += header.message_count
            report.bytes += header.frame_bytes
            continue
        lost_to = place.end_offset
        if lost_to is None:
            lost_to = max(scanner.offset + 1, end_offset or 0)
        report.damage.append(
            Damage(
                segment.path,
                place.position,
                place.end_position,
                place.start_offset,
                lost_to,
                place.reason,
            )
        )
        lost_from = None if place.end_offset is None else lost_from
    if lost_from is not None and end_offset is not None and scanner.offset != end_offset:
        reason = "messages are missing here" if scanner.offset < end_offset else "segments overlap"
        first, last = sorted((scanner.offset, end_offset))
        report.damage.append(Damage(segment.path, end_position, end_position, first, last, reason))


def verify_data_dir(disk: Disk, data_dir: Path) -> DataDirReport:
    """Check all logs of a data directory, its archive, its topic files, and ``node.db``.

    Indexes, columns and keys beside the segments are not checked: they are derived, checked when
    they are read, and made again. Every file that ``node.db`` lists must exist. A file that cannot
    be read is a problem, and the others are checked.
    """
    result = DataDirReport()
    reports: dict[tuple[str, int, str], LogReport] = {}
    pieces: list[ScannedPiece] = []
    try:
        pieces = scan_pieces(disk, data_dir / JOURNAL_DIR)
        result.problems += [f"{path}: {reason}" for path, reason in journal_damage(pieces)]
        result.problems += told_damage(disk, data_dir / JOURNAL_DIR)
    except OSError as error:
        result.problems.append(describe_os_error(error, data_dir / JOURNAL_DIR))
    ends = _journaled_ends(pieces)
    for topic, partition, log in _logs_in(disk, data_dir):
        directory = _log_dir(data_dir, topic, partition, log)
        journaled = ends.get(directory.relative_to(data_dir / TOPICS_DIR).as_posix())
        report = reports[topic, partition, log] = LogReport()
        try:
            report = reports[topic, partition, log] = verify_log(disk, directory, journaled)
            if is_checkpoint_damaged(disk, directory):
                result.problems.append(
                    f"{directory / CHECKPOINT_NAME} is damaged: the next pass of compaction reads"
                    " the whole log"
                )
        except OSError as error:
            result.problems.append(describe_os_error(error, directory))
        result.logs.append(VerifiedLog(topic, partition, log, report))
    result.problems += _topic_file_problems(disk, data_dir)
    try:
        result.problems += verify_archive(disk, data_dir)
        missing = _missing_segments(disk, data_dir, _read_manifest(data_dir)[1])
        result.problems += _row_problems(data_dir)
        topics, rows = _read_manifest(data_dir)  # again: retention may have deleted some
    except GoqError as error:
        result.problems.append(error.detail)
        return result
    result.problems += _lost_files(disk, data_dir, topics, {topic for topic, _, _ in reports})
    still, present = set(rows), set(reports)
    for row, reason in missing:
        if row in still:
            _add_missing(result, reports, data_dir, row, reason)
    for topic_row in topics:
        for partition in range(0 if topic_row.deleting else topic_row.partitions):
            if (topic_row.folder, partition, "messages") not in present:
                result.problems.append(f"partition {partition} of {topic_row.name} has no folder")
    return result


def _topic_file_problems(disk: Disk, data_dir: Path) -> Iterator[str]:
    topics_dir = data_dir / TOPICS_DIR
    for folder in disk.names(topics_dir):
        try:
            record = read_topic_file(disk, topics_dir / folder)
        except CorruptData as error:
            yield error.detail
        else:
            if record is not None and record.adopted:
                yield (
                    f"topic {record.name} is adopted: its settings were lost; nothing of it is"
                    f" deleted until goq topic alter {record.name} decides on them"
                )


def _lost_files(
    disk: Disk, data_dir: Path, topics: Iterable[TopicRow], folders: Iterable[str]
) -> Iterator[str]:
    """Yield the files that each topic folder, of those with logs, and the data directory need.

    A new topic gets its file a moment after its row, and the folders had logs before that.
    """
    if folders and not (data_dir / FILE_NAME).exists():
        yield f"{FILE_NAME} is missing: only what topic folders say of their topics is left"
    deleting = {row.folder for row in topics if row.deleting}
    for folder in sorted(set(folders) - deleting):
        names = disk.names(data_dir / TOPICS_DIR / folder)
        if names and TOPIC_FILE_NAME not in names:
            path = data_dir / TOPICS_DIR / folder / TOPIC_FILE_NAME
            yield f"{path} is missing: only {FILE_NAME} has the settings of this topic"


def _row_problems(data_dir: Path) -> list[str]:
    """Return the damage of ``node.db``, by SQLite's own check and by the CRCs of its rows."""
    if not (data_dir / FILE_NAME).exists():
        return []
    db = NodeDb(data_dir, read_only=True)
    try:
        damaged = [f"{FILE_NAME} has {row}" for row in db.damaged_rows()]
        return [*db.integrity_problems(), *damaged]
    finally:
        db.close()


def _logs_in(disk: Disk, data_dir: Path) -> Iterator[tuple[str, int, str]]:
    topics_dir = data_dir / TOPICS_DIR
    for topic in disk.names(topics_dir):
        if topic.startswith("."):  # not a topic, but a file of the node itself
            continue
        for partition in disk.names(topics_dir / topic):
            if not (partition.isascii() and partition.isdigit()):
                continue
            for log in LOG_NAMES:
                if disk.names(_log_dir(data_dir, topic, int(partition), log)):
                    yield topic, int(partition), log


def _log_dir(data_dir: Path, topic: str, partition: int, log: str) -> Path:
    return data_dir / TOPICS_DIR / topic / str(partition) / log


def _read_manifest(data_dir: Path) -> tuple[list[TopicRow], list[SegmentRow]]:
    if not (data_dir / FILE_NAME).exists():
        return [], []
    db = NodeDb(data_dir, read_only=True)
    try:
        topics = db.topics()
        deleting = {topic.folder for topic in topics if topic.deleting}
        return topics, [row for row in db.segments() if row.topic not in deleting]
    finally:
        db.close()


def _missing_segments(
    disk: Disk, data_dir: Path, rows: Iterable[SegmentRow]
) -> list[tuple[SegmentRow, str]]:
    found = []
    listed: dict[Path, list[Segment]] = {}
    for row in rows:
        directory = _log_dir(data_dir, row.topic, row.partition, row.log)
        if directory not in listed:
            listed[directory] = list_segments(disk, directory)
        segments = listed[directory]
        segment = next((s for s in segments if s.base_offset == row.base_offset), None)
        if segment is None:
            if not is_listed(disk, segments, row.base_offset, row.end_offset):
                found.append((row, "the segment is missing; node.db lists it"))
            continue
        size_bytes = segment.size_bytes
        if size_bytes != row.size_bytes and not segment.generation:
            found.append((row, f"{size_bytes} bytes; node.db lists {row.size_bytes}"))
    return found


def _add_missing(
    result: DataDirReport,
    reports: dict[tuple[str, int, str], LogReport],
    data_dir: Path,
    row: SegmentRow,
    reason: str,
) -> None:
    key = (row.topic, row.partition, row.log)
    if key not in reports:
        reports[key] = LogReport()
        result.logs.append(VerifiedLog(*key, reports[key]))
    report = reports[key]
    if not any(
        d.start_offset < row.end_offset and row.base_offset < d.end_offset for d in report.damage
    ):
        path = Segment(_log_dir(data_dir, *key), row.base_offset).path
        report.damage.append(Damage(path, 0, 0, row.base_offset, row.end_offset, reason))
