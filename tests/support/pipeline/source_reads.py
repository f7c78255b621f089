"""Reads of Spark's source as Spark asks for them, without Spark."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql.streaming.datasource import ReadAllAvailable

from goq.client import Client
from goq.pipeline.spark.source import BatchReader, StreamReader
from goq.pipeline.spark.source_options import SourceOptions
from tests.support.node.running_node import RunningNode

Reader = BatchReader | StreamReader
ALL: Final = ReadAllAvailable()


def options(node: RunningNode, **said: str) -> SourceOptions:
    return SourceOptions.parse({"server": node.url, **said})


def stream(node: RunningNode, topic: str, **said: str) -> StreamReader:
    return StreamReader(options(node, topic=topic, startingOffsets="earliest", **said))


def batch(node: RunningNode, topic: str, **said: str) -> BatchReader:
    return BatchReader(options(node, topic=topic, **said))


def values(reader: Reader, *place: dict[str, Any]) -> list[str]:
    """Return what the tasks of a query read, or of the batch of a stream that has this place."""
    batches = [read for task in reader.partitions(*place) for read in reader.read(task)]
    return sorted(value.decode() for each in batches for value in each["value"].to_pylist())


def fill(node: RunningNode, topic: str, count: int, *, start: int = 0) -> list[str]:
    sent = [f"v{number}" for number in range(start, start + count)]
    with Client(node.url) as client, client.producer(topic) as producer:
        for value in sent:
            producer.send(value, key=value)
    return sorted(sent)
