"""The staged Parquet files of a piece, one for each date.

Staging is deterministic: this process and Spark's tasks write the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from goq.pipeline.arrow.json_columns import Columns, FieldCounts, JsonDecoder, decoded_schema
from goq.pipeline.arrow.node_source import LogSource, ahead
from goq.pipeline.arrow.tables import TABLES, Table, rows_between
from goq.pipeline.export.parquet import DatedWriter, Staging, WrittenFile
from goq.pipeline.export.plan import Piece

_READ_AHEAD = 4  # responses of a node, some MiB each


class TimeSpan(NamedTuple):
    """Bounds of append time in microseconds: from, and before."""

    from_us: int | None = None
    to_us: int | None = None


class PieceFiles(NamedTuple):
    """The staged files of one piece, its missing offsets, and the fields of decoded values."""

    piece: Piece
    files: list[WrittenFile]
    missing: list[tuple[int, int]]
    fields: FieldCounts


class Work(NamedTuple):
    """The topic and table of pieces, and their staging folder; pickled into Spark's tasks."""

    table: str
    topic: str
    span: TimeSpan
    default_lane: int
    staging: Staging
    decoded: Columns | None = None
    """The columns that values are decoded into; None where they are not decoded."""


Stager = Callable[[Work, Sequence[Piece]], Iterator[PieceFiles]]
"""Stages pieces, in order."""


def stage_here(source: LogSource) -> Stager:
    """Return a stager that works in this process, one piece after another."""

    def stage(work: Work, todo: Sequence[Piece]) -> Iterator[PieceFiles]:
        return (stage_piece(source, work, piece) for piece in todo)

    return stage


def stage_piece(source: LogSource, work: Work, piece: Piece, attempt: str = "") -> PieceFiles:
    """Write the files of a piece to staging, the same rows each time.

    ``attempt`` keeps concurrent attempts apart.
    """
    table, topic = TABLES[work.table], work.topic
    stem = f"{piece.partition}-{piece.start}-{piece.end}{attempt}"
    schema = table.schema
    decoder = None if work.decoded is None else JsonDecoder(work.decoded)
    if work.decoded is not None:
        schema = decoded_schema(schema, work.decoded)
    writer = DatedWriter(work.staging, stem, schema, table.time)
    missing: list[tuple[int, int]] = []
    try:
        with ahead(table.read(source, topic, *piece), _READ_AHEAD) as frame_batches:
            for frame_batch in frame_batches:
                missing += frame_batch.missing
                for batch in table.batches(
                    topic, piece.partition, frame_batch.frames, work.default_lane
                ):
                    batch = within(batch, table, piece, work.span)
                    writer.add(batch if decoder is None else decoder.decode(batch))
        fields = {} if decoder is None else decoder.seen
        return PieceFiles(piece, list(writer.finish()), missing, fields)
    except BaseException:
        writer.abandon()
        raise


def within(batch: pa.RecordBatch, table: Table, piece: Piece, span: TimeSpan) -> pa.RecordBatch:
    """Return the rows of the piece whose time is in the span."""
    batch = rows_between(batch, table.position, piece.start, piece.end)
    return rows_between(batch, table.time, span.from_us, span.to_us)
