"""Staging the pieces of an export as tasks of Spark: the same function, so the same rows and names.

Plan, publishing and manifest stay with the driver. The tasks read from the nodes and write to a
folder that they share with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from pyspark.sql import SparkSession

from goq.client import Client
from goq.pipeline.export import PieceFiles, Stager, Work, stage_piece
from goq.pipeline.plan import Piece
from goq.pipeline.source import NodeSource


class Node(NamedTuple):
    """Where tasks read from, and whether the archive, too; travels to them."""

    servers: Sequence[str]
    token: str | None
    include_deleted: bool = False


def stage_in_spark(spark: SparkSession, node: Node) -> Stager:
    """Return what stages pieces in tasks, as many at a time as the session has room for."""
    context = spark.sparkContext

    def stage(work: Work, todo: Sequence[Piece]) -> Iterator[PieceFiles]:
        at_once = max(1, context.defaultParallelism)
        for first in range(0, len(todo), at_once):
            some = todo[first : first + at_once]
            task = partial(_stage, work, node)
            yield from context.parallelize(some, len(some)).map(task).collect()

    return stage


def _stage(work: Work, node: Node, piece: Piece) -> PieceFiles:
    with Client(list(node.servers), token=node.token) as client:
        source = NodeSource(client, include_deleted=node.include_deleted)
        return stage_piece(source, work, piece, f"-{uuid4().hex}")
