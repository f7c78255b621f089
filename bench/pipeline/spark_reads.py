"""``python -m bench.pipeline.spark_reads URL TOPIC LAKE``: how fast Spark reads, three ways.

All read every column and throw the rows away, on all cores of this machine: from a node, from the
exported files, and from a Python source whose rows are ready, a piece of those files again and
again. The last is what Spark itself takes for rows that come from Python. They are read in turns,
of which the last ones count: a JVM gets faster for half a minute.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from statistics import median

import pyarrow as pa
import pyarrow.dataset
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from goq.pipeline.spark.session import spark_session

_TURNS, _COUNTED = 6, 3
_BATCH_ROWS = 20_000


class ReadyRows(DataSource):
    """A source whose rows are ready: options ``files``, ``rows``, ``tasks``."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ReadyReader(dict(self.options), to_arrow_schema(schema, timezone="UTC"))


class _ReadyReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: pa.Schema) -> None:
        rows = pyarrow.dataset.dataset(options["files"]).head(_BATCH_ROWS, columns=schema.names)
        (self._batch,) = rows.cast(schema).combine_chunks().to_batches()
        self._tasks = int(options["tasks"])
        self._rows = int(options["rows"]) // self._tasks

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for begin in range(0, self._rows, self._batch.num_rows):
            yield self._batch.slice(0, self._rows - begin)


def _read_s(frame: DataFrame) -> float:
    began_s = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began_s


def main() -> None:
    """Print the rates as JSON."""
    url, topic, lake = sys.argv[1:]
    spark = spark_session()
    folder = f"{lake}/messages"
    goq = spark.read.format("goq").option("server", url).option("topic", topic).load()
    spark.dataSource.register(ReadyRows)
    rows, tasks = goq.count(), goq.rdd.getNumPartitions()
    ready = spark.read.format("ready").schema(goq.schema).option("files", folder)
    frames = {
        "goq": goq,
        "parquet": spark.read.option("basePath", folder).parquet(folder),
        "ready": ready.option("rows", str(rows)).option("tasks", str(tasks)).load(),
    }
    seconds: dict[str, list[float]] = {name: [] for name in frames}
    for _ in range(_TURNS):
        for name, frame in frames.items():
            seconds[name].append(_read_s(frame))
    print(json.dumps({name: rows / median(took[-_COUNTED:]) for name, took in seconds.items()}))
    spark.stop()


if __name__ == "__main__":
    main()
