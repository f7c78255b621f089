"""Incremental export of a topic's tables to Parquet: exact, however often it is killed.

Readers of the destination see whole files, and each row once. The plan is stored before its files
are written, a file's name determines its rows, and an existing file is not written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import uuid4

import msgspec

from goq.errors import Conflict
from goq.pipeline.arrow.json_columns import Columns
from goq.pipeline.arrow.json_inference import counted, evolved, left_out, merged, stated
from goq.pipeline.arrow.node_source import LogSource
from goq.pipeline.arrow.schema import FOLDERS
from goq.pipeline.arrow.tables import Table
from goq.pipeline.export.compaction import finish_merges
from goq.pipeline.export.destination import Destination
from goq.pipeline.export.ledger import (
    VERSION,
    ExportLedger,
    ExportState,
    Manifest,
    MissingRange,
    Plan,
)
from goq.pipeline.export.plan import (
    PIECE_MESSAGES,
    Piece,
    began_after,
    pieces,
    pieces_before,
    reached_after,
)
from goq.pipeline.export.publish import publish_piece
from goq.pipeline.export.staged_files import PieceFiles, Stager, TimeSpan, Work, stage_here
from goq.units import format_time_us

_SAMPLE = 1_000  # new messages of each partition from which columns are inferred
_ALL = TimeSpan()


class ExportResult(NamedTuple):
    """The files and rows that one run added."""

    files: int
    rows: int
    bytes: int
    missing: int
    """Messages that were damaged or deleted before they could be exported."""
    fields_left_out: tuple[str, ...] = ()
    """Fields of decoded values that have no column yet."""


class Decoding(NamedTuple):
    """The decoding of JSON values: into the columns given, else into inferred ones."""

    schema: Columns | None = None


class Export:
    """The export of one table of one topic; the caller has claimed the topic at the destination."""

    def __init__(
        self,
        source: LogSource,
        target: Destination,
        table: Table,
        topic: str,
        span: TimeSpan = _ALL,
        *,
        stager: Stager | None = None,
        decoding: Decoding | None = None,
        include_deleted: bool = False,
        messages_max: int = PIECE_MESSAGES,
        on_done: Callable[[int], None] | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._table = table
        self._topic = topic
        self._span = span
        self._stager = stager or stage_here(source)
        self._decoding = decoding
        self._include_deleted = include_deleted
        self._messages_max = messages_max
        self._on_done = on_done
        self._ledger = ExportLedger(target, table.name, topic)

    def check(self) -> ExportState | None:
        """Return the state of the export; None before the first run.

        Raises ``Conflict`` if it began with other bounds or columns, or is that of an earlier topic
        of the name, ``CorruptData`` if its state is gone.
        """
        state = self._ledger.state()
        if state is None:
            self._ledger.check_unbegun()
            return None
        self._check_topic(state)
        kept = TimeSpan(state.from_time_us, state.to_time_us)
        if kept != self._span:
            raise Conflict(
                f"{self._topic} was exported there with other bounds in time ({_bounds(kept)});"
                " give the same, or another folder",
                field="from_time",
            )
        if state.decoded is not None and self._decoding is None:
            raise Conflict(
                f"{self._topic} was exported there with decoded values; give --decode json again,"
                " or another folder",
                field="decode",
            )
        self._check_folder_names(state)
        if self._decoding is not None and self._decoding.schema is not None:
            stated(state.decoded or {}, self._decoding.schema)
        if state.include_deleted and not self._include_deleted:
            raise Conflict(
                f"{self._topic} was exported there with what was deleted; do so again, or use"
                " another folder",
                field="include_deleted",
            )
        return state

    def _check_topic(self, state: ExportState) -> None:
        topic_id = self._source.topic_id(self._topic)
        if state.topic_id and topic_id and state.topic_id != topic_id:
            raise Conflict(
                f"{self._topic} was deleted and created again since it was exported there (id"
                f" {state.topic_id}, now {topic_id}); use another folder",
                field="topic",
            )

    def _check_folder_names(self, stored: ExportState | Plan) -> None:
        """Raise ``Conflict`` if an earlier version gave a column the name of a folder."""
        if stored.version == VERSION:
            return
        for field in stored.decoded or {}:
            if field.lower() in FOLDERS:
                raise Conflict(
                    f"{self._topic} was exported there by an earlier goq, with a column {field!r}"
                    " that no reader tells from the folder of this name; use another folder",
                    field="decode",
                )

    def outstanding(self) -> int:
        """Return how many offsets a run would export now."""
        state = self.check()
        bounds = self._table.bounds(self._source, self._topic)
        reached = {} if state is None else state.reached
        return sum(max(0, each.end - reached.get(p, each.start)) for p, each in bounds.items())

    def run(self) -> ExportResult:
        """Finish an interrupted plan, then export what is new."""
        finish_merges(self._target, self._table.name, self._topic)
        state = self.check() or self._begin()
        known = msgspec.structs.replace(
            state,
            version=VERSION,
            include_deleted=self._include_deleted,
            topic_id=state.topic_id or self._source.topic_id(self._topic),
            lanes=list(self._source.lane_names(self._topic)),
        )
        if known != state:
            state = known
            self._ledger.put_state(state)
        total = ExportResult(0, 0, 0, 0)
        unfinished = self._ledger.plan()
        if unfinished is not None and unfinished.number > state.plans:
            self._check_folder_names(unfinished)
            state, total = self._carry_out(unfinished, state)
            self.check()
        plan = self._plan(state)
        if plan.pieces:
            self._ledger.note(plan)
            state, added = self._carry_out(plan, state)
            total = ExportResult(
                total.files + added.files,
                total.rows + added.rows,
                total.bytes + added.bytes,
                total.missing + added.missing,
            )
        return total._replace(fields_left_out=tuple(left_out(state.decoded or {}, state.fields)))

    def _begin(self) -> ExportState:
        topic_id = self._source.topic_id(self._topic)  # before its bounds
        reached = {
            p: bounds.start for p, bounds in self._table.bounds(self._source, self._topic).items()
        }
        span = self._span
        state = ExportState(
            id=uuid4().hex,
            topic=self._topic,
            from_time_us=span.from_us,
            to_time_us=span.to_us,
            decoded=None if self._decoding is None else {},
            include_deleted=self._include_deleted,
            began=reached,
            reached=reached,
            topic_id=topic_id,
            lanes=list(self._source.lane_names(self._topic)),
        )
        self._ledger.put_state(state)
        return state

    def _plan(self, state: ExportState) -> Plan:
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
        again = self._back_again(state)
        found = [
            *pieces_before(state.began, starts, messages_max=self._messages_max),
            *(piece for each in again for piece in self._cut(each)),
            *pieces(state.reached, ends, messages_max=self._messages_max),
        ]
        return Plan(
            number=state.plans + 1,
            pieces=found,
            again=again,
            decoded=self._columns(state, found),
        )

    def _cut(self, missing: MissingRange) -> Iterator[Piece]:
        partition, start, end = missing
        return pieces({partition: start}, {partition: end}, messages_max=self._messages_max)

    def _missing(self, state: ExportState) -> list[MissingRange]:
        if state.missing is not None:
            return state.missing
        return [each for manifest in self._ledger.manifests() for each in manifest.missing]

    def _back_again(self, state: ExportState) -> list[MissingRange]:
        """Return missing offsets that the archive, or the log again, has some of."""
        if not self._include_deleted:
            return []
        return [
            (partition, start, end)
            for partition, start, end in self._missing(state)
            if any(
                view.header.base_offset < end
                for frame_batch in self._table.read(
                    self._source, self._topic, partition, start, end
                )
                for view in frame_batch.frames
            )
        ]

    def _columns(self, state: ExportState, todo: Sequence[Piece]) -> dict[str, str] | None:
        """Return the columns of new files: those so far, and more as the fields want them.

        Inferred from the first new messages of each partition and all of the last plan.
        """
        if self._decoding is None:
            return None
        known = state.decoded or {}
        if self._decoding.schema is not None:
            return stated(known, self._decoding.schema)
        firsts = {piece.partition: piece for piece in reversed(todo)}
        sample: list[bytes | None] = []
        for partition, start, end in firsts.values():
            to = min(end, start + _SAMPLE)
            for frame_batch in self._source.read_messages(self._topic, partition, start, to):
                for view in frame_batch.frames:
                    sample += view.values(0, view.header.message_count)
        return evolved(known, merged(state.fields, counted(sample, known)))

    def _carry_out(self, plan: Plan, state: ExportState) -> tuple[ExportState, ExportResult]:
        """Write the rest of a plan; store the progress now and then."""
        files_before, unnoted = len(plan.files), 0
        columns = plan.decoded if plan.decoded is not None else state.decoded
        for staged in self._stage(plan.pieces[plan.done :], columns):
            self._check_topic(state)  # what was read is of the topic that it was before
            plan = self._publish(plan, staged)
            count = staged.piece.end - staged.piece.start
            unnoted += count
            if self._on_done is not None:
                self._on_done(count)
            if unnoted >= self._messages_max and plan.done < len(plan.pieces):
                self._ledger.note(plan)
                unnoted = 0
        missing = [each for each in self._missing(state) if each not in plan.again] + plan.missing
        reached = reached_after(state.reached, plan.pieces)
        began = began_after(state.began, plan.pieces)
        after = msgspec.structs.replace(
            state,
            began=began,
            reached=reached,
            plans=plan.number,
            decoded=columns,
            fields=plan.fields,
            missing=missing,
        )
        manifest = Manifest(
            number=plan.number, files=plan.files, missing=plan.missing, again=plan.again
        )
        self._ledger.finish(manifest, after)
        added = plan.files[files_before:]
        return after, ExportResult(
            len(added),
            sum(entry.rows for entry in added),
            sum(entry.bytes for entry in added),
            sum(end - start for _, start, end in plan.missing),  # of unknown number
        )

    def _stage(self, todo: Sequence[Piece], columns: Columns | None) -> Iterable[PieceFiles]:
        if not todo:
            return ()
        lane = self._source.default_lane(self._topic)
        staging = self._target.staging(self._table.name, self._topic)
        staging.empty()
        work = Work(self._table.name, self._topic, self._span, lane, staging, columns)
        return self._stager(work, todo)

    def _publish(self, plan: Plan, staged: PieceFiles) -> Plan:
        """Publish one piece and return the plan with that piece done."""
        entries, missing = publish_piece(self._target, self._table, self._topic, staged)
        return msgspec.structs.replace(
            plan,
            done=plan.done + 1,
            files=[*plan.files, *entries],
            missing=[*plan.missing, *((staged.piece.partition, *each) for each in missing)],
            fields=merged(plan.fields, staged.fields),
        )


def _bounds(span: TimeSpan) -> str:
    names = ("--from-time", "--to-time")
    given = [f"{n} {format_time_us(t)}" for n, t in zip(names, span, strict=True) if t is not None]
    return " ".join(given) or "none"
