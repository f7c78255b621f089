"""The tables that a job reads: from an export, or straight from a node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from goq.errors import InvalidInput
from goq.pipeline.arrow.schema import EVENTS, GROUPS, MESSAGES, ddl_of
from goq.pipeline.export.destination import LocalTarget
from goq.pipeline.export.ledger import Ledger

_DDL = {"messages": ddl_of(MESSAGES), "events": ddl_of(EVENTS), "groups": ddl_of(GROUPS)}


class Exported:
    """The tables of an export, as of the plans that were finished."""

    def __init__(self, spark: SparkSession, folder: str, topics: Sequence[str]) -> None:
        self._spark = spark
        self._folder = folder
        self._topics = topics

    def table(self, name: str) -> DataFrame:
        """Return a table, with only the topics that were asked for."""
        if "://" not in self._folder and not Path(self._folder, "_goq").is_dir():
            raise InvalidInput(
                f"{self._folder} is no export: make one with: goq export TOPIC --to DIR",
                field="from",
            )
        root = f"{self._folder.rstrip('/')}/{name}"
        paths = self._finished(name)
        reader = self._spark.read.schema(_DDL[name])
        if paths is None:
            frame = reader.parquet(root)
        elif paths:
            frame = reader.option("basePath", root).parquet(*paths)
        else:
            frame = self._spark.createDataFrame([], _DDL[name])
        return frame.where(f.col("topic").isin(*self._topics)) if self._topics else frame

    def check_whole(self) -> None:
        """Raise ``InvalidInput`` if the export leaves out what it was told to, by time.

        What became of a message may be among what it left out.
        """
        if "://" in self._folder:
            return
        target = LocalTarget(Path(self._folder))
        for topic in self._topics or target.names("_goq/messages"):
            state = Ledger(target, "messages", topic).state()
            if state is not None and (state.from_time_us, state.to_time_us) != (None, None):
                raise InvalidInput(
                    f"{self._folder} has only a span of {topic}: make an export without"
                    " --from-time and --to-time, into another folder",
                    field="from",
                )

    def _finished(self, name: str) -> list[str] | None:
        """Return the files that manifests name; None where that is not for this process to see."""
        if "://" in self._folder:
            return None
        target = LocalTarget(Path(self._folder))
        topics = target.names(f"_goq/{name}")
        return [
            f"{self._folder.rstrip('/')}/{entry.path}"
            for topic in topics
            for manifest in Ledger(target, name, topic).manifests()
            for entry in manifest.files
        ]
