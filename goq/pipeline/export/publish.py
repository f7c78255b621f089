"""Publication of the staged files of a piece, idempotent over interrupted runs.

An export may stop between publishing files and storing its progress. By the next run the node may
have deleted, or repaired, some of the source. A published file stays as it is, and its contents are
read from the file itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from goq.pipeline.arrow.tables import Table
from goq.pipeline.export.destination import Destination
from goq.pipeline.export.errors import explained
from goq.pipeline.export.ledger import FileEntry
from goq.pipeline.export.parquet import WrittenFile
from goq.pipeline.export.plan import Piece, file_name
from goq.pipeline.export.staged_files import PieceFiles

Positions = npt.NDArray[np.int64]
OffsetRanges = list[tuple[int, int]]


def publish_piece(
    target: Destination, table: Table, topic: str, staged: PieceFiles
) -> tuple[list[FileEntry], OffsetRanges]:
    """Publish the missing files; return all entries of a piece, and the missing offsets."""
    folder, name = f"{table.name}/topic_folder={topic}", file_name(staged.piece)
    staging = target.staging(table.name, topic)
    entries: list[FileEntry] = []
    found: list[Positions] = []
    lost = [np.empty(0, np.int64)]
    for file in staged.files:
        path = f"{folder}/date={file.date}/{name}"
        if not target.exists(path):
            target.publish(file.path, path)
            entries.append(entry_of(path, staged.piece, file))
            continue
        before = read_published(target, path, staged.piece, table.time, table.position)
        if before.entry.rows != file.rows:
            with explained(file.path), staging.filesystem.open_input_file(file.path) as made:
                lost.append(_positions(pq.read_table(made, columns=[table.position])))
        staging.remove(file.path)
        entries.append(before.entry)
        found.append(before.positions)
    if staged.missing:
        dates = {f"date={file.date}" for file in staged.files}
        for date in target.names(folder):
            path = f"{folder}/{date}/{name}"
            if date not in dates and target.exists(path):
                before = read_published(target, path, staged.piece, table.time, table.position)
                entries.append(before.entry)
                found.append(before.positions)
    if not found:
        return entries, staged.missing
    return entries, missing_positions(staged.missing, np.concatenate(lost), np.concatenate(found))


class PublishedFile(NamedTuple):
    """A file's manifest entry, and the log positions of its rows."""

    entry: FileEntry
    positions: Positions


def read_published(
    target: Destination, path: str, piece: Piece, time: str, position: str
) -> PublishedFile:
    """Return the contents of a published file, from its columns ``time`` and ``position``."""
    with explained(path), target.open(path) as file:
        size_bytes = file.size()
        table = pq.read_table(file, columns=[time, position])
    bounds = pc.min_max(table.column(time).cast(pa.int64())).as_py()
    date = path.split("/")[-2].removeprefix("date=")
    crc = target.checksum(path)
    written = WrittenFile(date, path, table.num_rows, size_bytes, bounds["min"], bounds["max"], crc)
    return PublishedFile(entry_of(path, piece, written), _positions(table.select([position])))


def missing_positions(ranges: OffsetRanges, lost: Positions, found: Positions) -> OffsetRanges:
    """Return as ranges the positions in ``ranges`` or ``lost`` that are not in ``found``."""
    each = [np.arange(start, end, dtype=np.int64) for start, end in ranges]
    gone = np.setdiff1d(np.concatenate([lost, *each]), found)
    if not len(gone):
        return []
    cuts = np.flatnonzero(np.diff(gone) > 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(gone, cuts)]


def _positions(table: pa.Table) -> Positions:
    return np.asarray(table.column(0).cast(pa.int64()).to_numpy(), np.int64)


def entry_of(path: str, piece: Piece, file: WrittenFile) -> FileEntry:
    """Return the manifest entry of a file."""
    return FileEntry(
        path=path,
        partition=piece.partition,
        start_offset=piece.start,
        end_offset=piece.end,
        rows=file.rows,
        bytes=file.bytes,
        first_time_us=file.first_us,
        last_time_us=file.last_us,
        crc32c=file.crc32c,
    )
