"""The tables that a report reads: from an export, or live from a node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from goq.client import Client
from goq.errors import Conflict, CorruptData, InvalidInput
from goq.pipeline.arrow.node_source import LogSource, NodeSource
from goq.pipeline.arrow.schema import EVENTS, GROUPS, MESSAGES, ddl_of
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.groups_table import groups_batch
from goq.pipeline.export.ledger import ExportLedger
from goq.pipeline.reports.audit.file_faults import FileFault, changed_files, row_count
from goq.pipeline.reports.audit.file_rows import TableFile
from goq.pipeline.reports.audit.file_slices import FileSlices, SparkTasks
from goq.pipeline.reports.audit.frame_slices import FrameSlices
from goq.pipeline.reports.audit.node_comparison import NodeComparison, compare_with_node
from goq.pipeline.reports.audit.slices import TableSlices
from goq.pipeline.spark.source import GoqDataSource
from goq.units import format_time_us

_TOPIC_FOLDER = "topic_folder"  # a column that Spark makes of the paths; each row has its topic
_DDL = {"messages": ddl_of(MESSAGES), "events": ddl_of(EVENTS), "groups": ddl_of(GROUPS)}


def check_has_topics(folder: str, topics: Sequence[str]) -> None:
    """Raise ``InvalidInput`` unless a folder is an export, and has ``topics``.

    It needs no Spark, which takes seconds to start. Nothing is said of a folder behind a URI.
    """
    if "://" in folder:
        return
    if not Path(folder, "_goq").is_dir():
        raise InvalidInput(
            f"{folder} is no export: make one with: goq export TOPIC --to DIR", field="from"
        )
    exported = LocalDestination(Path(folder)).names("_goq/messages")
    for topic in topics:
        if topic not in exported:
            raise InvalidInput(
                f"{folder} has no messages of {topic}; it has those of {', '.join(exported)}",
                field="topic",
            )


class ExportedTables:
    """The tables of an export, with the files of finished plans."""

    def __init__(self, spark: SparkSession, folder: str, topics: Sequence[str]) -> None:
        self._spark = spark
        self._folder = folder
        self._topics = topics

    def table(self, name: str) -> DataFrame:
        """Return a table, restricted to the chosen topics."""
        folder = self._folder if "://" in self._folder else str(Path(self._folder).absolute())
        root = f"{folder.rstrip('/')}/{name}"
        files = self._finished(name)
        _check_readable(files or ())
        reader = self._spark.read.schema(_DDL[name])
        if files is None:
            frame = reader.parquet(root)
        elif files:
            frame = reader.option("basePath", root).parquet(*(file.path for file in files))
        else:
            frame = self._spark.createDataFrame([], _DDL[name])
        frame = frame.drop(_TOPIC_FOLDER)
        return frame.where(f.col("topic").isin(*self._topics)) if self._topics else frame

    def lane_names(self) -> dict[str, list[str]]:
        """Return the names of each topic's lanes; of none behind a URI."""
        if "://" in self._folder:
            return {}
        target = LocalDestination(Path(self._folder))
        topics = self._topics or target.names("_goq/messages")
        states = {topic: ExportLedger(target, "messages", topic).state() for topic in topics}
        return {topic: state.lanes for topic, state in states.items() if state is not None}

    def check_whole(self) -> None:
        """Raise ``InvalidInput`` if the export is bounded by time.

        The outcome of a message may lie outside the bounds.
        """
        if "://" in self._folder:
            return
        target = LocalDestination(Path(self._folder))
        for topic in self._topics or target.names("_goq/messages"):
            state = ExportLedger(target, "messages", topic).state()
            if state is not None and (state.from_time_us, state.to_time_us) != (None, None):
                raise InvalidInput(
                    f"{self._folder} has only a span of {topic}: make an export without"
                    " --from-time and --to-time, into another folder",
                    field="from",
                )

    def changed_files(self) -> list[FileFault]:
        """Return files, and manifests, that are not as the export wrote them, and their fault.

        None of a folder behind a URI is checked.
        """
        if "://" in self._folder:
            return []
        return changed_files(Path(self._folder), tuple(_DDL), self._topics)

    def compare_with_node(self, source: LogSource) -> NodeComparison:
        """Compare the messages of a folder with what the node has.

        Raises ``InvalidInput`` for a URI, and ``Conflict`` if a topic was created anew since.
        """
        files = self._finished("messages")
        if files is None:
            raise InvalidInput("only an export in a folder is compared with the node", field="from")
        found = [file for file in files if _is_readable(file)]
        target = LocalDestination(Path(self._folder))
        for topic in sorted({file.topic for file in found}):
            state = ExportLedger(target, "messages", topic).state()
            if state is not None and state.topic_id not in ("", source.topic_id(topic)):
                raise Conflict(
                    f"{topic} was deleted and created again since it was exported", field="topic"
                )
        return compare_with_node(source, str(target.root.absolute()), found)

    def slices(self) -> TableSlices:
        """Return the tables for an audit."""
        found = [self._finished(name) for name in _DDL]
        if None in found:
            return FrameSlices(*map(self.table, _DDL))
        readable = ([each for each in files or () if _is_readable(each)] for files in found)
        return FileSlices(SparkTasks(self._spark), *readable)

    def _finished(self, name: str) -> list[TableFile] | None:
        """Return the files of the chosen topics in the manifests; None behind a URI."""
        if "://" in self._folder:
            return None
        check_has_topics(self._folder, self._topics)
        target = LocalDestination(Path(self._folder))
        return [
            TableFile(str((target.root / entry.path).absolute()), topic, entry.partition)
            for topic in self._topics or target.names(f"_goq/{name}")
            for manifest in ExportLedger(target, name, topic).manifests()
            for entry in manifest.files
        ]


def _check_readable(files: Sequence[TableFile]) -> None:
    """Raise ``CorruptData`` for a file that is gone: without its rows an answer is wrong."""
    for file in files:
        if not _is_readable(file):
            raise CorruptData(
                f"{file.path} is gone, or is no Parquet file any more: if files were being merged,"
                " run the export again, which finishes that; else restore the file. goq report"
                " audit names all of them"
            )


def _is_readable(file: TableFile) -> bool:
    return row_count(file.path) is not None


class LiveSource(NamedTuple):
    """A node and the topics that are read; ``include_deleted`` adds archives.

    Messages are read from ``since_us`` up to ``until_us``, in microseconds since 1970.
    """

    servers: Sequence[str]
    token: str | None
    topics: Sequence[str]
    include_deleted: bool = False
    since_us: int | None = None
    until_us: int | None = None


class LiveTables:
    """The tables of topics, read from the node at the time of each call."""

    def __init__(self, spark: SparkSession, node: LiveSource) -> None:
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
        bounds = {"startingTimestamp": node.since_us, "endingTimestamp": node.until_us}
        for option, us in bounds.items():
            if us is not None and name == "messages":
                reader = reader.option(option, format_time_us(us))
        return reader.load()

    def _groups(self) -> DataFrame:
        with Client(list(self._node.servers), token=self._node.token) as client:
            source = NodeSource(client)
            batches = [
                groups_batch(client, topic, source.time_us(topic)) for topic in self._node.topics
            ]
        rows = pa.Table.from_batches(batches, GROUPS).to_pylist()
        return self._spark.createDataFrame(
            [tuple(row[name] for name in GROUPS.names) for row in rows], ddl_of(GROUPS)
        )
