"""Compaction of an export: the small files of closed hours become few large ones.

Files of one partition and date are merged in the order of their offsets. The merged files of a date
appear, and their sources go, in one step: a folder is made beside that of the date, with the merged
files and links to all others, and the two exchange their names. A reader that lists the folder sees
each row once; one that listed it before finds that a file is gone, and fails.

The order of steps:

    1. store the merges in ``compaction.json``
    2. write the merged files, link the others, exchange the folders
    3. store the manifest and the state, remove ``compaction.json`` and the folder of before

A run that was killed before the exchange has changed nothing, and its merges are given up. One
that was killed later is finished by the next export of the topic, from the stored merges. The name
of a merged file has the number of its manifest, so it tells which of the two it was, and a name
still means the same rows for ever.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from goq import limits
from goq.errors import Conflict, CorruptData, InvalidInput
from goq.pipeline.arrow.schema import EXPORTED
from goq.pipeline.export.destination import Destination, LocalDestination
from goq.pipeline.export.errors import explained
from goq.pipeline.export.ledger import (
    ExportLedger,
    ExportState,
    FileEntry,
    Manifest,
    Merge,
    MergePlan,
)
from goq.pipeline.export.parquet import DatedWriter

TARGET_BYTES: Final = 128 * limits.MIB
_STEP_BYTES: Final = 2**30  # of sources in one exchange: what a killed run has to do again
_HOUR_US: Final = 3_600_000_000
_READ_ROWS: Final = 65_536


class MergedFiles(NamedTuple):
    """The files of a table that were merged, and those that have their rows now."""

    table: str
    files: int = 0
    into: int = 0
    bytes: int = 0
    """The size of the merged files."""


def compact(
    target: Destination,
    topic: str,
    now_us: int,
    *,
    target_bytes: int = TARGET_BYTES,
    keeps_registered: bool = False,
) -> list[MergedFiles]:
    """Merge small files of hours that are over; the caller has claimed the topic.

    Files smaller than ``target_bytes`` become files of about that size. ``keeps_registered``: the
    caller tells the catalog afterwards. Raises ``InvalidInput`` if the destination is not a folder
    of this host, ``Conflict`` if a catalog would be left with files that are gone, ``CorruptData``
    for a file that is not as it was written.
    """
    local = _folder(target)
    compactions = [_Compaction(local, name, topic) for name in EXPORTED]
    if not keeps_registered:
        for each in compactions:
            each.check_unregistered()
    before_us = now_us // _HOUR_US * _HOUR_US
    return [each.run(before_us, target_bytes) for each in compactions]


def finish_merges(target: Destination, table: str, topic: str) -> None:
    """Finish the merges of a killed run if they are visible, else give them up.

    Quick, and called before anything else changes the table.
    """
    if isinstance(target, LocalDestination):
        _Compaction(target, table, topic).finish_interrupted()


def merges_of(
    files: Sequence[FileEntry], before_us: int, target_bytes: int
) -> Iterator[list[FileEntry]]:
    """Yield adjacent small files of a partition and date, so many as make one file.

    Only files are merged whose last row is older than ``before_us``.
    """
    for _, of_one in groupby(sorted(files, key=_order), key=lambda e: _order(e)[:2]):
        some: list[FileEntry] = []
        size_bytes = 0
        for entry in of_one:
            fits = entry.last_time_us < before_us and entry.bytes < target_bytes
            if not fits or size_bytes + entry.bytes > target_bytes:
                if len(some) > 1:
                    yield some
                some, size_bytes = [], 0
            if fits:
                some.append(entry)
                size_bytes += entry.bytes
        if len(some) > 1:
            yield some


class _Compaction:
    """The compaction of one table of one topic."""

    def __init__(self, target: LocalDestination, table: str, topic: str) -> None:
        self._target = target
        self._table = table
        self._topic = topic
        self._ledger = ExportLedger(target, table, topic)
        self._aside = Path(target.staging(table, topic, "merged").directory)

    def check_unregistered(self) -> None:
        state = self._ledger.state()
        if state is not None and state.is_registered:
            raise Conflict(
                f"{self._topic} is registered in a catalog, which names its files: give --register"
                " with --compact",
                field="compact",
            )

    def run(self, before_us: int, target_bytes: int) -> MergedFiles:
        self.finish_interrupted()
        done = MergedFiles(self._table)
        state, plan = self._ledger.state(), self._ledger.plan()
        if state is None or (plan is not None and plan.number > state.plans):
            return done  # an export is unfinished: its files are in no manifest
        files = [entry for manifest in self._ledger.manifests() for entry in manifest.files]
        for some in _steps(merges_of(files, before_us, target_bytes)):
            plan_of_some = self._merge_plan(state.plans + 1, some)
            state, manifest = self._carry_out(plan_of_some, state)
            done = done._replace(
                files=done.files + sum(map(len, some)),
                into=done.into + len(manifest.files),
                bytes=done.bytes + sum(entry.bytes for entry in manifest.files),
            )
        return done

    def finish_interrupted(self) -> None:
        plan, state = self._ledger.merge_plan(), self._ledger.state()
        if plan is None or state is None:
            return
        if plan.number > state.plans and self._is_visible(plan):
            self._finish(plan, state)
        else:
            self._clear()

    def _is_visible(self, plan: MergePlan) -> bool:
        return self._target.exists(plan.merges[0].path)

    def _merge_plan(self, number: int, some: Sequence[list[FileEntry]]) -> MergePlan:
        folder = _date_folder(some[0][0])
        merges = [
            Merge(path=f"{folder}/{_merged_name(sources, number)}", sources=sources)
            for sources in some
        ]
        return MergePlan(number=number, folder=folder, merges=merges)

    def _carry_out(self, plan: MergePlan, state: ExportState) -> tuple[ExportState, Manifest]:
        self._ledger.note_merges(plan)
        try:
            folder = self._fill(plan)
        except Exception:  # nothing is changed: an export must not meet a full disk again
            self._clear()
            raise
        self._target.exchange(folder, plan.folder)
        return self._finish(plan, state)

    def _fill(self, plan: MergePlan) -> Path:
        """Write the folder that takes the place of the one of the date."""
        shutil.rmtree(self._aside, ignore_errors=True)
        folder = self._aside / Path(plan.folder).name
        with explained(folder):
            folder.mkdir(parents=True)
        gone = set()
        for merge in plan.merges:
            self._write(merge, folder)
            gone |= {Path(entry.path).name for entry in merge.sources}
        place = self._target.root / plan.folder
        for name in set(self._target.names(plan.folder)) - gone:
            with explained(place / name):
                if (place / name).is_dir():
                    raise Conflict(f"{place / name} is a folder, and not of this export: move it")
                os.link(place / name, folder / name)
        return folder

    def _write(self, merge: Merge, folder: Path) -> None:
        for entry in merge.sources:
            self._check(entry)
        staging = self._target.staging(self._table, self._topic, "merged")
        schema = self._schema(merge)
        _, time = EXPORTED[self._table]
        writer = DatedWriter(staging, "merging", schema, time)
        try:
            for entry in merge.sources:
                for batch in self._batches(entry, schema):
                    writer.add(batch)
        except BaseException:
            writer.abandon()
            raise
        (file,) = writer.finish()
        rows = sum(entry.rows for entry in merge.sources)
        if file.rows != rows:
            raise CorruptData(
                f"{merge.path} would have {file.rows} rows and its files have {rows}: run goq"
                " report audit"
            )
        made = folder / Path(merge.path).name
        with explained(made):
            os.replace(file.path, made)
            with made.open("rb") as written:
                os.fsync(written.fileno())

    def _check(self, entry: FileEntry) -> None:
        """Raise ``CorruptData`` for a file that was changed: merged, it would look sound."""
        path = entry.path
        if entry.crc32c is not None and self._target.checksum(path) != entry.crc32c:
            raise CorruptData(
                f"{path} is not as it was written, so it is not merged: restore it, and run goq"
                " report audit"
            )

    def _schema(self, merge: Merge) -> pa.Schema:
        """Return the columns of the table, and those of decoded values in any of the files."""
        own, _ = EXPORTED[self._table]
        found: dict[str, pa.Field] = {field.name: field for field in own}
        for entry in merge.sources:
            with explained(entry.path), self._target.open(entry.path) as file:
                for field in pq.read_schema(file):
                    found.setdefault(field.name, field)
        return pa.schema(list(found.values()))

    def _batches(self, entry: FileEntry, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file with these columns; null in those that it lacks."""
        with explained(entry.path), self._target.open(entry.path) as opened:
            file = pq.ParquetFile(opened, page_checksum_verification=True)
            for batch in file.iter_batches(_READ_ROWS):
                columns = [
                    batch.column(field.name).cast(field.type)
                    if field.name in batch.schema.names
                    else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _finish(self, plan: MergePlan, state: ExportState) -> tuple[ExportState, Manifest]:
        """Note what is visible now."""
        manifest = Manifest(
            number=plan.number,
            files=[self._entry(merge) for merge in plan.merges],
            merged={merge.path: [e.path for e in merge.sources] for merge in plan.merges},
        )
        after = msgspec.structs.replace(state, plans=plan.number)
        self._ledger.put_manifest(manifest)
        self._ledger.put_state(after)
        self._clear()
        return after, manifest

    def _entry(self, merge: Merge) -> FileEntry:
        sources = merge.sources
        with explained(merge.path), self._target.open(merge.path) as file:
            size_bytes = file.size()
        return FileEntry(
            path=merge.path,
            partition=sources[0].partition,
            start_offset=min(entry.start_offset for entry in sources),
            end_offset=max(entry.end_offset for entry in sources),
            rows=sum(entry.rows for entry in sources),
            bytes=size_bytes,
            first_time_us=min(entry.first_time_us for entry in sources),
            last_time_us=max(entry.last_time_us for entry in sources),
            crc32c=self._target.checksum(merge.path),
        )

    def _clear(self) -> None:
        """Remove the folder aside, which has no row that is not elsewhere too, and the merges."""
        shutil.rmtree(self._aside, ignore_errors=True)
        self._ledger.drop_merges()


def _folder(target: Destination) -> LocalDestination:
    if not isinstance(target, LocalDestination):
        raise InvalidInput(
            "--compact needs a folder of this host: files of an object store cannot take the place"
            " of others in one step",
            field="compact",
        )
    return target


def _steps(merges: Iterator[list[FileEntry]]) -> Iterator[list[list[FileEntry]]]:
    """Yield merges of one date together, up to a bounded size."""
    for _, of_date in groupby(merges, key=lambda sources: _date_folder(sources[0])):
        some: list[list[FileEntry]] = []
        size_bytes = 0
        for sources in of_date:
            own_bytes = sum(entry.bytes for entry in sources)
            if some and size_bytes + own_bytes > _STEP_BYTES:
                yield some
                some, size_bytes = [], 0
            some.append(sources)
            size_bytes += own_bytes
        yield some


def _order(entry: FileEntry) -> tuple[str, int, int, int]:
    return _date_folder(entry), entry.partition, entry.start_offset, entry.end_offset


def _date_folder(entry: FileEntry) -> str:
    return entry.path.rpartition("/")[0]


def _merged_name(sources: Sequence[FileEntry], number: int) -> str:
    partition = f"{sources[0].partition:05d}-" if sources[0].partition >= 0 else ""
    start = min(entry.start_offset for entry in sources)
    end = max(entry.end_offset for entry in sources)
    return f"{partition}{start}-{end}-{number}.parquet"
