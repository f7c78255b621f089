"""A made-up lake, as ``goq export`` leaves it: audits of many messages need no node.

Every message has 100 bytes, one delivery in a lease of a thousand, and one ack.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.pipeline.export import documents
from goq.pipeline.arrow.schema import EVENTS, EXPORTED, GROUPS, MESSAGES
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.ledger import ExportLedger, ExportState, Manifest
from goq.pipeline.export.parquet import DatedWriter
from goq.pipeline.export.plan import Piece, file_name
from goq.pipeline.export.publish import entry_of

_PARTITIONS, _LEASE, _SIZE_BYTES = 6, 1_000, 100
_PIECE = 1_000_000
_BATCH = 20 * _LEASE
_HOUR_US = 3_600_000_000


def make_lake(root: Path, topic: str, group: str, messages: int) -> int:
    """Write an export of a topic; return the number of messages."""
    now_us = time.time_ns() // 1000
    each = messages // _PARTITIONS // _LEASE * _LEASE
    values = pa.array(documents(random.Random(20_261_126), _BATCH, _SIZE_BYTES), pa.binary())
    began_us = now_us - _HOUR_US
    pieces = [
        Piece(partition, start, min(each, start + _PIECE))
        for partition in range(_PARTITIONS)
        for start in range(0, each, _PIECE)
    ]
    batches = {
        "messages": lambda piece: _messages(topic, piece, values, began_us),
        "events": lambda piece: _events(topic, group, piece, began_us),
        "groups": lambda piece: _groups(topic, group, each, piece.start),
    }
    for table in EXPORTED:
        found = pieces if table != "groups" else [Piece(-1, now_us, now_us + 1)]
        _write(LocalDestination(root), table, topic, [(p, batches[table](p)) for p in found])
    return each * _PARTITIONS


def _write(
    target: LocalDestination,
    table: str,
    topic: str,
    pieces: list[tuple[Piece, Iterator[pa.RecordBatch]]],
) -> None:
    schema, column = EXPORTED[table]
    staging = target.staging(table, topic)
    staging.empty()
    entries = []
    for piece, batches in pieces:
        writer = DatedWriter(staging, f"{piece.partition}-{piece.start}", schema, column)
        for batch in batches:
            writer.add(batch)
        for file in writer.finish():
            path = f"{table}/topic_folder={topic}/date={file.date}/{file_name(piece)}"
            target.publish(file.path, path)
            entries.append(entry_of(path, piece, file))
    ledger = ExportLedger(target, table, topic)
    state = ExportState(id=f"{table} {topic}", topic=topic, plans=1)
    ledger.finish(Manifest(number=1, files=entries), state)


def _starts(piece: Piece) -> Iterator[tuple[int, int]]:
    for start in range(piece.start, piece.end, _BATCH):
        yield start, min(piece.end, start + _BATCH)


def _messages(
    topic: str, piece: Piece, values: pa.Array, began_us: int
) -> Iterator[pa.RecordBatch]:
    for start, end in _starts(piece):
        offset = np.arange(start, end)
        columns = {
            "value": values.slice(0, end - start),
            "timestamp": began_us + offset // _LEASE * 100,
            "headers": [[]] * (end - start),
            "lane": np.ones(end - start, np.int16),
        }
        yield _batch(MESSAGES, topic, piece.partition, offset, columns)


def _events(topic: str, group: str, piece: Piece, began_us: int) -> Iterator[pa.RecordBatch]:
    """Yield a delivery and an ack of each thousand messages in turn."""
    for start, end in _starts(piece):
        leases = np.arange(start // _LEASE, end // _LEASE)
        sequence = np.repeat(np.stack([2 * leases, 2 * leases + 1], axis=1).ravel(), _LEASE)
        offset = np.tile(np.arange(start, end).reshape(-1, 1, _LEASE), (1, 2, 1)).ravel()
        is_ack = sequence % 2 == 1
        time_us = began_us + 10_000_000 + 50 * sequence
        columns = {
            "event": pa.array(["DELIVERED", "ACKNOWLEDGED"]).take(pa.array(sequence % 2)),
            "time": time_us,
            "group": pa.array([group]).take(pa.array(np.zeros(len(offset), int))),
            "consumer": pa.array(["consumer-1", None]).take(pa.array(sequence % 2)),
            "attempt": pa.array(np.ones(len(offset), np.int32), mask=is_ack),
            "lease": sequence // 2 * 2 + 2**40,
            "due": pa.array(time_us + 30_000_000, mask=is_ack),
            "sequence": sequence,
        }
        yield _batch(EVENTS, topic, piece.partition, offset, columns)


def _groups(topic: str, group: str, end: int, now_us: int) -> Iterator[pa.RecordBatch]:
    rows = [
        dict.fromkeys(GROUPS.names, 0)
        | {"time": now_us, "topic": topic, "group": group, "partition": partition}
        | {"end_offset": end, "cursor": end}
        for partition in range(_PARTITIONS)
    ]
    yield pa.RecordBatch.from_pylist(rows, schema=GROUPS)


def _batch(
    schema: pa.Schema, topic: str, partition: int, offset: np.ndarray, columns: dict[str, Any]
) -> pa.RecordBatch:
    count = len(offset)
    same = pa.array(np.zeros(count, int))
    known = {
        "topic": pa.array([topic]).take(same),
        "partition": np.full(count, partition, np.int32),
        "offset": offset,
        "message_id": pc.binary_join_element_wise(
            f"{topic}:{partition}:", pa.array(offset).cast(pa.string()), ""
        ),
    } | columns
    arrays = []
    for field in schema:
        found = known.get(field.name)
        found = pa.nulls(count, field.type) if found is None else found
        if not isinstance(found, pa.Array):
            found = pa.array(found, field.type if field.name == "headers" else None)
        arrays.append(found.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
