"""``goq report``: from an export, beside its node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", minversion="4.2")

import pyarrow as pa
import pyarrow.parquet as pq

from goq.client import Client
from tests.support.node.running_node import RunningNode
from tests.support.pipeline.goq_command import Goq


def sections(out: str) -> dict[str, list[dict[str, Any]]]:
    return {each["title"]: each["rows"] for each in json.loads(out)["sections"]}


def test_an_export_is_reported_on_with_the_names_of_lanes_and_beside_its_node(
    goq: Goq, node: RunningNode, topic: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with Client(node.url) as client:
        with client.producer(topic) as producer:
            for number in range(6):
                producer.send(f"v{number}", priority="high" if number % 2 else None)
        while len(batch := client.receive_batch(topic, "g", max_messages=6)):
            batch.ack()
    goq("export", topic, "--to", str(lake))
    words = (topic, "--from", str(lake), "--json")
    found = sections(goq("report", "latency", *words)[0])
    assert [row["lane"] for row in found["Until first delivered"]] == ["high", "normal"]
    (total,) = sections(goq("report", "traffic", *words, "--slo", "1m")[0])["In all"]
    assert (total["published"], total["delivered"], total["acknowledged"]) == (6, 6, 6)
    found = sections(goq("report", "audit", *words, "--with-node")[0])
    assert found["Messages compared with the node"] == [{"compared": 6, "not_on_the_node": 0}]
    path = next(lake.glob("messages/*/*/*.parquet"))
    rows = pq.read_table(path, partitioning=None)
    other = pa.array([b"other"] * len(rows), rows["value"].type)
    pq.write_table(rows.set_column(rows.schema.get_field_index("value"), "value", other), path)
    found = sections(goq("report", "audit", *words, "--with-node", code=1)[0])
    faults = [row["fault"] for row in found["Files that are not as exported"]]
    assert any("another value of offset 0 than the node" in fault for fault in faults)
