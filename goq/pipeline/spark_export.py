"""Staging the pieces of an export as tasks of Spark: the same function, so the same rows and names.

Plan, publishing and manifest stay with the driver. The tasks read from the nodes and write to a
folder that they share with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from uuid import uuid4

from pyspark.sql import SparkSession

from goq.client import Client
from goq.pipeline.export import PieceFiles, Stager, Work, stage_piece
from goq.pipeline.plan import Piece
from goq.pipeline.source import NodeSource


def stage_in_spark(spark: SparkSession, servers: Sequence[str], token: str | None) -> Stager:
    """Return what stages pieces in tasks, as many at a time as the session has room for."""
    context = spark.sparkContext

    def stage(work: Work, todo: Sequence[Piece]) -> Iterator[PieceFiles]:
        at_once = max(1, context.defaultParallelism)
        for first in range(0, len(todo), at_once):
            some = todo[first : first + at_once]
            task = partial(_stage, work, list(servers), token)
            yield from context.parallelize(some, len(some)).map(task).collect()

    return stage


def _stage(work: Work, servers: list[str], token: str | None, piece: Piece) -> PieceFiles:
    with Client(servers, token=token) as client:
        return stage_piece(NodeSource(client), work, piece, f"-{uuid4().hex}")
