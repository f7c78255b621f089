"""docs/examples/orders, run twice as a user would."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.paths import REPOSITORY

pytest.importorskip("pyspark", minversion="4.2")

from goq.client import Client
from goq.pipeline.reports.audit.audit import audit
from goq.pipeline.reports.tables import ExportedTables
from tests.support.node.running_node import RunningNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = REPOSITORY / "docs" / "examples" / "orders" / "orders.py"


def orders_of(client: Client, topic: str) -> list[dict[str, Any]]:
    found = [json.loads(message.value or b"") for message in client.read_log(topic)]
    return sorted(found, key=lambda order: (order["number"], order["total"]))


@pytest.mark.long
def test_the_orders_of_the_example_arrive_once_and_are_accounted_for(
    node: RunningNode, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOQ_SERVER", node.url)
    example = runpy.run_path(str(EXAMPLE))
    reasons = example["run"](spark, tmp_path, 1)
    assert reasons.keys() == {"no such customer", "connection reset"}
    example["run"](spark, tmp_path, 2)
    with Client(node.url) as client:
        placed = orders_of(client, "orders")
        large = orders_of(client, "large-orders")
    assert len(placed) == 2 * example["ORDERS"]
    assert large == [order for order in placed if order["total"] >= example["LARGE"]]
    tables = ExportedTables(spark, str(tmp_path / "lake"), [])
    report = audit(tables.slices())
    assert not report.failed
    fates = {row[2]: row[3] for row in report.sections[0].rows}
    refused = sum(order["customer"] == example["NO_SUCH_CUSTOMER"] for order in placed)
    assert fates == {"acknowledged": len(placed) - refused, "dead": refused}
