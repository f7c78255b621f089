"""Exporting tables of a topic to Parquet: incremental, and exact however often it is killed.

A reader of the target sees whole files, each row once. The plan says what is written before it is
written; a file has its rows in its name; a file that is there already is not written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from goq.errors import Conflict
from goq.pipeline.ahead import ahead
from goq.pipeline.decoding import Columns, columns_in, decode, decoded_schema
from goq.pipeline.ledger import FileEntry, Ledger, Manifest, Plan, State
from goq.pipeline.parquet import DatedWriter, Written
from goq.pipeline.plan import (
    PIECE_MESSAGES,
    Piece,
    began_after,
    file_name,
    pieces,
    pieces_before,
    reached_after,
)
from goq.pipeline.source import Source
from goq.pipeline.tables import MESSAGES_TABLE, TABLES, Table, rows_between
from goq.pipeline.target import Target

_SAMPLE = 1_000  # messages of each partition that say which columns there are
_READ_AHEAD = 4  # answers of a node, some MiB each


class Span(NamedTuple):
    """Which messages are wanted, by append time in microseconds: not before, and before."""

    from_us: int | None = None
    to_us: int | None = None


_ALL = Span()


class Exported(NamedTuple):
    """What one run added."""

    files: int
    rows: int
    bytes: int
    missing: int
    """Messages that were damaged or deleted before they could be exported."""


class PieceFiles(NamedTuple):
    """The files of one piece, staged, and which of its offsets are missing."""

    piece: Piece
    files: list[Written]
    missing: list[tuple[int, int]]


class Work(NamedTuple):
    """What pieces are of, and where they are written aside; travels to the tasks of Spark."""

    table: str
    topic: str
    span: Span
    default_lane: int
    staging: Path
    decoded: Columns | None = None
    """What values are decoded into; None where they are not."""

    @property
    def stem(self) -> str:
        """What the names of all its staged files begin with."""
        return f"{self.topic}-{self.table}-"


Stager = Callable[[Work, Sequence[Piece]], Iterator[PieceFiles]]
"""Stages pieces, in order."""


def stage_here(source: Source) -> Stager:
    """Return what stages pieces in this process, one after the other."""

    def stage(work: Work, todo: Sequence[Piece]) -> Iterator[PieceFiles]:
        return (stage_piece(source, work, piece) for piece in todo)

    return stage


def stage_piece(source: Source, work: Work, piece: Piece, attempt: str = "") -> PieceFiles:
    """Write the files of a piece aside: with the same rows however often, and wherever, it is done.

    ``attempt`` tells apart those who may do it at the same time.
    """
    table, topic = TABLES[work.table], work.topic
    stem = f"{work.stem}{piece.partition}-{piece.start}-{piece.end}{attempt}"
    schema = table.schema
    if work.decoded is not None:
        schema = decoded_schema(schema, work.decoded)
    writer = DatedWriter(work.staging, stem, schema, table.time)
    missing: list[tuple[int, int]] = []
    try:
        with ahead(table.stretches(source, topic, *piece), _READ_AHEAD) as stretches:
            for stretch in stretches:
                missing += stretch.missing
                for batch in table.batches(
                    topic, piece.partition, stretch.frames, work.default_lane
                ):
                    batch = within(batch, table, piece, work.span)
                    writer.add(batch if work.decoded is None else decode(batch, work.decoded))
        return PieceFiles(piece, list(writer.finish()), missing)
    except BaseException:
        writer.abandon()
        raise


def within(batch: pa.RecordBatch, table: Table, piece: Piece, span: Span) -> pa.RecordBatch:
    """Return the rows that are of the piece and whose time is in the span."""
    batch = rows_between(batch, table.position, piece.start, piece.end)
    return rows_between(batch, table.time, span.from_us, span.to_us)


class Export:
    """The export of one table of one topic to one target. One process at a time."""

    def __init__(
        self,
        source: Source,
        target: Target,
        table: Table,
        topic: str,
        staging: Path,
        span: Span = _ALL,
        *,
        stager: Stager | None = None,
        decoded: Columns | None = None,
        include_deleted: bool = False,
        messages_max: int = PIECE_MESSAGES,
    ) -> None:
        self._source = source
        self._target = target
        self._table = table
        self._topic = topic
        self._staging = staging
        self._span = span
        self._stager = stager or stage_here(source)
        self._decoded = decoded
        self._include_deleted = include_deleted
        self._messages_max = messages_max
        self._ledger = Ledger(target, table.name, topic)

    def run(self) -> Exported:
        """Export what there is now and was not exported yet; finish what was begun before."""
        state = self._ledger.state() or self._begin()
        if (state.from_time_us, state.to_time_us) != self._span:
            raise Conflict(
                f"{self._topic} was exported there with other bounds in time; give the same, or"
                " another folder",
                field="from_time",
            )
        if state.decoded != self._decoded:
            raise Conflict(
                f"{self._topic} was exported there with other columns of its values"
                f" ({_written(state.decoded)}); give the same, or another folder",
                field="schema",
            )
        if self._include_deleted and not state.include_deleted:
            state = msgspec.structs.replace(state, include_deleted=True)
            self._ledger.put_state(state)
        elif state.include_deleted and not self._include_deleted:
            raise Conflict(
                f"{self._topic} was exported there with what was deleted; do so again, or use"
                " another folder",
                field="include_deleted",
            )
        total = Exported(0, 0, 0, 0)
        unfinished = self._ledger.plan()
        if unfinished is not None and unfinished.number > state.plans:
            state, total = self._carry_out(unfinished, state)
        plan = self._plan(state)
        if plan.pieces:
            self._ledger.begin(plan)
            state, added = self._carry_out(plan, state)
            total = Exported(*(a + b for a, b in zip(total, added, strict=True)))
        return total

    def _begin(self) -> State:
        reached = {
            p: bounds.start for p, bounds in self._table.bounds(self._source, self._topic).items()
        }
        span = self._span
        state = State(
            topic=self._topic,
            from_time_us=span.from_us,
            to_time_us=span.to_us,
            decoded=None if self._decoded is None else dict(self._decoded),
            include_deleted=self._include_deleted,
            began=reached,
            reached=reached,
        )
        self._ledger.put_state(state)
        return state

    def _plan(self, state: State) -> Plan:
        bounds = self._table.bounds(self._source, self._topic)
        for partition, reached in state.reached.items():
            end = bounds[partition].end if partition in bounds else 0
            if end < reached:
                raise Conflict(
                    f"{self._topic}, partition {partition}, ends at {end}, but was exported up to"
                    f" {reached}: it is not the topic that was exported; use another folder"
                )
        ends = {partition: each.end for partition, each in bounds.items()}
        starts = {partition: each.start for partition, each in bounds.items()}
        found = [
            *pieces_before(state.began, starts, messages_max=self._messages_max),
            *pieces(state.reached, ends, messages_max=self._messages_max),
        ]
        return Plan(number=state.plans + 1, pieces=found)

    def _carry_out(self, plan: Plan, state: State) -> tuple[State, Exported]:
        entries: list[FileEntry] = []
        missing: list[tuple[int, int, int]] = []
        for staged in self._stage(plan.pieces):
            entries += [self._publish(staged.piece, file) for file in staged.files]
            missing += [(staged.piece.partition, *each) for each in staged.missing]
        reached = reached_after(state.reached, iter(plan.pieces))
        began = began_after(state.began, iter(plan.pieces))
        after = msgspec.structs.replace(state, began=began, reached=reached, plans=plan.number)
        self._ledger.finish(Manifest(number=plan.number, files=entries, missing=missing), after)
        return after, Exported(
            len(entries),
            sum(entry.rows for entry in entries),
            sum(entry.bytes for entry in entries),
            sum(end - start for _, start, end in missing),
        )

    def _stage(self, todo: Sequence[Piece]) -> Iterator[PieceFiles]:
        lane = self._source.default_lane(self._topic)
        staging = self._staging.absolute()
        work = Work(self._table.name, self._topic, self._span, lane, staging, self._decoded)
        self._staging.mkdir(parents=True, exist_ok=True)
        for leftover in self._staging.glob(f"{work.stem}*.parquet"):
            leftover.unlink()
        return self._stager(work, todo)

    def _publish(self, piece: Piece, file: Written) -> FileEntry:
        folder = f"{self._table.name}/topic={self._topic}/date={file.date}"
        path = f"{folder}/{file_name(piece)}"
        size_bytes = file.path.stat().st_size
        if self._target.exists(path):  # from a run that was stopped: it has these very rows
            file.path.unlink()
        else:
            self._target.publish(file.path, path)
        return FileEntry(
            path=path,
            partition=piece.partition,
            start_offset=piece.start,
            end_offset=piece.end,
            rows=file.rows,
            bytes=size_bytes,
            first_time_us=file.first_us,
            last_time_us=file.last_us,
        )


def _written(decoded: Columns | None) -> str:
    if decoded is None:
        return "none"
    return ", ".join(f"{name} {kind}" for name, kind in decoded.items())


def known_columns(source: Source, target: Target, topic: str) -> Columns:
    """Return the columns that values of a topic are decoded into where none are given.

    Those that the folder has already, else those that the first messages of each partition have.
    """
    state = Ledger(target, MESSAGES_TABLE.name, topic).state()
    if state is not None and state.decoded is not None:
        return state.decoded
    found: list[bytes | None] = []
    for partition, (start, end) in source.bounds(topic).items():
        for stretch in source.stretches(topic, partition, start, min(end, start + _SAMPLE)):
            for view in stretch.frames:
                found += view.values(0, view.header.message_count)
    return columns_in(found)
