"""The pieces of an export staged by Spark tasks, with the same function and thus the same files.

Plan, publication and manifest stay with the driver. Tasks read from the nodes and write to the
destination's staging folder, which they reach as the driver does.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from goq.client import Client
from goq.errors import BY_CODE, GoqError, Unavailable
from goq.pipeline.arrow.node_source import NodeSource
from goq.pipeline.export.plan import Piece
from goq.pipeline.export.staged_files import PieceFiles, Stager, Work, stage_piece


class NodeAccess(NamedTuple):
    """The nodes that tasks read from, with or without archives; pickled into tasks."""

    servers: Sequence[str]
    token: str | None
    include_deleted: bool = False


def stage_in_spark(spark: SparkSession, node: NodeAccess) -> Stager:
    """Return a stager that runs pieces as tasks, as many at once as the session has slots."""
    context = spark.sparkContext

    def stage(work: Work, todo: Sequence[Piece]) -> Iterator[PieceFiles]:
        at_once = max(1, context.defaultParallelism)
        for first in range(0, len(todo), at_once):
            some = todo[first : first + at_once]
            task = partial(_stage, work, node)
            with _explained():
                done = context.parallelize(some, len(some)).map(task).collect()
            for each in done:
                if isinstance(each, _Failed):
                    raise BY_CODE[each.code](each.detail)
                yield each

    return stage


class _Failed(NamedTuple):
    """A task's error, as sent to the driver."""

    code: str
    detail: str


def _stage(work: Work, node: NodeAccess, piece: Piece) -> PieceFiles | _Failed:
    try:
        with Client(list(node.servers), token=node.token) as client:
            source = NodeSource(client, include_deleted=node.include_deleted)
            return stage_piece(source, work, piece, f"-{uuid4().hex}")
    except GoqError as error:
        return _Failed(error.code, error.detail)


@contextmanager
def _explained() -> Generator[None, None, None]:
    """Turn a failure of Spark itself, with its stack, into one line."""
    try:
        yield
    except (Py4JError, PySparkException, ConnectionError) as error:
        raise Unavailable(f"Spark failed ({_cause(error)}); run the same command again") from error


def _cause(error: Exception) -> str:
    """Return the last line of a stack that names an error."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if "Error: " in line or "Exception: " in line]
    return ([*filter(None, lines), type(error).__name__][0] if not named else named[-1])[:300]
