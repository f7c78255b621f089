"""Files of an export that are not as it wrote them, by its manifests.

Files are listed before manifests are read: one that an export adds meanwhile is in its plan, or in
a manifest by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.ledger import ExportLedger, FileEntry, Manifest, Plan
from goq.pipeline.export.plan import file_name

FileFault = tuple[str, str]
"""The path of a file, or of the folder of manifests, and what is wrong with it."""
_TOPIC = "topic_folder="
_HIDDEN = (".", "_")  # as readers of the folder pass them over


def changed_files(root: Path, tables: Sequence[str], topics: Sequence[str]) -> list[FileFault]:
    """Return files and manifests that are not as the export wrote them.

    ``topics`` are the chosen ones; without any, all that there are.
    """
    target = LocalDestination(root)
    return [
        fault
        for table in tables
        for topic in topics or _topics(target, table)
        for fault in _faults(target, table, topic)
    ]


def row_count(path: Path | str) -> int | None:
    """Return the number of rows of a file, None if it cannot be read."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException):
        return None


def _topics(target: LocalDestination, table: str) -> list[str]:
    with_files = [n.removeprefix(_TOPIC) for n in target.names(table) if n.startswith(_TOPIC)]
    return sorted({*with_files, *target.names(f"_goq/{table}")})


def _faults(target: LocalDestination, table: str, topic: str) -> Iterator[FileFault]:
    there = _files(target, f"{table}/{_TOPIC}{topic}")
    ledger = ExportLedger(target, table, topic)
    plan, state, manifests = ledger.plan(), ledger.state(), ledger.manifests()
    numbers = {manifest.number for manifest in manifests}
    gone = [] if state is None else sorted({*range(1, state.plans + 1)} - numbers)
    for number in gone:
        yield f"_goq/{table}/{topic}", f"manifest {number} is missing"
    if state is None and (there or manifests):
        yield f"_goq/{table}/{topic}", "state.json is missing"
    elif not gone:
        yield from _unnamed(there, manifests, plan)
    for entry in (entry for manifest in manifests for entry in manifest.files):
        fault = _fault_of(target, entry)
        if fault is not None:
            yield entry.path, fault


def _files(target: LocalDestination, folder: str) -> list[str]:
    """Return the files of a folder that its readers see."""
    found = []
    for path in sorted((target.root / folder).rglob("*")):
        parts = path.relative_to(target.root / folder).parts
        if path.is_file() and not any(part.startswith(_HIDDEN) for part in parts):
            found.append(str(path.relative_to(target.root)))
    return found


def _unnamed(
    there: Sequence[str], manifests: Sequence[Manifest], plan: Plan | None
) -> Iterator[FileFault]:
    """Yield files that readers see, and that neither a manifest nor the plan under way has."""
    named = {entry.path for manifest in manifests for entry in manifest.files}
    pieces = [] if plan is None else plan.pieces
    coming = {name for piece in pieces for name in (file_name(piece), f"{piece.start}.parquet")}
    for path in there:
        if path not in named and Path(path).name not in coming:
            yield path, "is in no manifest"


def _fault_of(target: LocalDestination, entry: FileEntry) -> str | None:
    """Return how a file differs from what was exported."""
    if not target.exists(entry.path):
        return "is missing"
    rows = row_count(target.root / entry.path)
    if rows is None:
        return "is no Parquet file"
    if rows != entry.rows:
        return f"has {rows} rows, not {entry.rows}"
    if entry.crc32c is not None and target.checksum(entry.path) != entry.crc32c:
        return "has another checksum"
    return None
