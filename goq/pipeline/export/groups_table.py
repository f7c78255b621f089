"""Table of the groups' progress; each export adds one file."""

from __future__ import annotations

from uuid import uuid4

import msgspec
import pyarrow as pa

from goq.client import Client
from goq.pipeline.arrow.node_source import NodeSource
from goq.pipeline.arrow.schema import GROUPS
from goq.pipeline.export.compaction import finish_merges
from goq.pipeline.export.destination import Destination
from goq.pipeline.export.ledger import ExportLedger, ExportState, FileEntry, Manifest, Plan
from goq.pipeline.export.parquet import DatedWriter
from goq.pipeline.export.plan import Piece
from goq.pipeline.export.publish import entry_of, read_published
from goq.units import format_time_us

TABLE = "groups"
_COUNTS = ("cursor", "lag", "ready", "leased", "retry", "blocked", "scheduled")


def groups_batch(client: Client, topic: str, now_us: int) -> pa.RecordBatch:
    """Return a row for each group and partition of a topic, at ``now_us``, the node's time.

    An audit compares it with the times of events, which are a node's, too.
    The groups are described later than the bounds: a partition that was added meanwhile has no row.
    One without a leader is waited for, as it has no bounds.
    """
    bounds = NodeSource(client).bounds(topic)
    rows = [
        {
            "time": now_us,
            "topic": topic,
            "group": group.group,
            "partition": each.partition,
            "start_offset": bounds[each.partition].start,
            "end_offset": bounds[each.partition].end,
            **{name: getattr(each, name) for name in _COUNTS},
        }
        for group in client.list_groups(topic)
        for each in group.partitions
        if each.partition in bounds
    ]
    return pa.RecordBatch.from_pylist(rows, schema=GROUPS)


def export_groups(client: Client, target: Destination, topic: str, now_us: int) -> int:
    """Add a file with the progress of a topic's groups; return its number of rows.

    It is written before the other tables, so it never refers to messages that they lack.
    """
    finish_merges(target, TABLE, topic)
    ledger = ExportLedger(target, TABLE, topic)
    stored = ledger.state()
    if stored is None:
        ledger.check_unbegun()
    state = _finished(ledger, target, stored or ExportState(id=uuid4().hex, topic=topic))
    batch = groups_batch(client, topic, now_us)
    if not batch.num_rows:
        return 0
    if stored is None:
        ledger.put_state(state)  # before any file, so files without a state have lost it
    staging = target.staging(TABLE, topic)
    staging.empty()
    piece = Piece(-1, now_us, now_us + 1)
    plan = Plan(number=state.plans + 1, pieces=[piece])
    ledger.note(plan)
    writer = DatedWriter(staging, str(now_us), GROUPS, "time")
    writer.add(batch)
    entries = []
    for file in writer.finish():
        path = _path(topic, file.date, now_us)
        target.publish(file.path, path)
        entries.append(entry_of(path, piece, file))
    _finish(ledger, plan, entries, state)
    return len(batch)


def _finished(ledger: ExportLedger, target: Destination, state: ExportState) -> ExportState:
    """Return the table's state, including the file of an interrupted run."""
    plan = ledger.plan()
    if plan is None or plan.number <= state.plans:
        return state
    (piece,) = plan.pieces
    path = _path(state.topic, format_time_us(piece.start)[:10], piece.start)
    if not target.exists(path):
        return state
    published = read_published(target, path, piece, "time", "partition")
    return _finish(ledger, plan, [published.entry], state)


def _finish(
    ledger: ExportLedger, plan: Plan, entries: list[FileEntry], before: ExportState
) -> ExportState:
    after = msgspec.structs.replace(before, plans=plan.number)
    ledger.finish(Manifest(number=plan.number, files=entries), after)
    return after


def _path(topic: str, date: str, time_us: int) -> str:
    return f"{TABLE}/topic_folder={topic}/date={date}/{time_us}.parquet"
