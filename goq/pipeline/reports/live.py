"""The tables that a job reads straight from a node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from goq.client import Client
from goq.pipeline.arrow.schema import GROUPS, ddl_of
from goq.pipeline.export.groups_table import groups_batch
from goq.pipeline.spark.source import GoqDataSource


class Node(NamedTuple):
    """The node and what of it is read; with ``include_deleted`` archives, too."""

    servers: Sequence[str]
    token: str | None
    topics: Sequence[str]
    include_deleted: bool = False


class Live:
    """The tables of some topics as the node has them when each is asked for."""

    def __init__(self, spark: SparkSession, node: Node) -> None:
        self._spark = spark
        self._node = node
        spark.dataSource.register(GoqDataSource)

    def table(self, name: str) -> DataFrame:
        """Return a table: ``messages``, ``events`` or ``groups``."""
        node = self._node
        if name == "groups":
            return self._groups()
        reader = self._spark.read.format("goq").options(
            table=name,
            server=",".join(node.servers),
            token=node.token or "",
            topic=",".join(node.topics),
            includeDeleted=str(node.include_deleted).lower(),
        )
        return reader.load()

    def _groups(self) -> DataFrame:
        now_us = time.time_ns() // 1000
        with Client(list(self._node.servers), token=self._node.token) as client:
            batches = [
                groups_batch(client.describe_topic(topic), client.list_groups(topic), now_us)
                for topic in self._node.topics
            ]
        rows = pa.Table.from_batches(batches, GROUPS).to_pylist()
        return self._spark.createDataFrame(
            [tuple(row[name] for name in GROUPS.names) for row in rows], ddl_of(GROUPS)
        )
