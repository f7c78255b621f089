"""Where groups stand, as a table that grows by a file with each export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from goq.client import Client
from goq.pipeline.ledger import FileEntry, Ledger, Manifest, State
from goq.pipeline.parquet import DatedWriter
from goq.pipeline.schema import GROUPS
from goq.pipeline.target import Target

TABLE = "groups"
_COUNTS = ("cursor", "lag", "ready", "leased", "retry", "blocked", "scheduled")


def groups_batch(
    topic: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], now_us: int
) -> pa.RecordBatch:
    """Return a row for each group and partition, from what the node says of them."""
    bounds = {p["partition"]: p for p in topic["partitions"]}
    rows = [
        {
            "time": now_us,
            "topic": topic["name"],
            "group": group["group"],
            "partition": each["partition"],
            "start_offset": bounds[each["partition"]]["start_offset"],
            "end_offset": bounds[each["partition"]]["high_watermark"],
            **{name: each[name] for name in _COUNTS},
        }
        for group in groups
        for each in group["partitions"]
    ]
    return pa.RecordBatch.from_pylist(rows, schema=GROUPS)


def export_groups(client: Client, target: Target, topic: str, staging: Path, now_us: int) -> int:
    """Add a file that says where the groups of a topic stand; return how many rows it has.

    Made before the other tables are exported, it speaks of nothing that they will not have.
    """
    batch = groups_batch(client.topic(topic), client.groups(topic), now_us)
    if not batch.num_rows:
        return 0
    staging.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(target, TABLE, topic)
    state = ledger.state() or State(topic=topic)
    writer = DatedWriter(staging, f"{topic}-{TABLE}-{now_us}", GROUPS, "time")
    writer.add(batch)
    entries = []
    for file in writer.finish():
        path = f"{TABLE}/topic={topic}/date={file.date}/{now_us}.parquet"
        size_bytes = file.path.stat().st_size
        target.publish(file.path, path)
        entries.append(
            FileEntry(
                path=path,
                partition=-1,
                start_offset=now_us,
                end_offset=now_us + 1,
                rows=file.rows,
                bytes=size_bytes,
                first_time_us=file.first_us,
                last_time_us=file.last_us,
            )
        )
    number = state.plans + 1
    ledger.finish(Manifest(number=number, files=entries), State(topic=topic, plans=number))
    return len(batch)
