"""The tables of a report have all rows of an export, or there is no report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from goq.errors import CorruptData, InvalidInput
from goq.pipeline.export.compaction import compact
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.ledger import ExportLedger
from goq.pipeline.reports.tables import ExportedTables, check_has_topics
from tests.unit.pipeline.export.test_compaction import LATER_US, small_files
from tests.unit.pipeline.export.test_export import Stopped, StoppingTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SESSION = cast("SparkSession", None)


def tables(root: Path) -> ExportedTables:
    return ExportedTables(NO_SESSION, str(root), [])


@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_a_file_that_cannot_be_read_is_told_and_not_left_out(tmp_path: Path, harm: str) -> None:
    small_files(tmp_path)
    ledger = ExportLedger(LocalDestination(tmp_path), "messages", "orders")
    path = tmp_path / ledger.manifests()[0].files[0].path
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CorruptData, match=path.name):
        tables(tmp_path).table("messages")


def test_topics_that_were_not_exported_are_told_before_spark_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"is no export: make one with: goq export"):
        check_has_topics(str(tmp_path), [])
    small_files(tmp_path)
    check_has_topics(str(tmp_path), [])
    check_has_topics(str(tmp_path), ["orders"])
    with pytest.raises(InvalidInput, match=r"no messages of order; it has those of orders"):
        check_has_topics(str(tmp_path), ["orders", "order"])
    check_has_topics("s3://bucket/out", ["order"])  # its files are not listed here


class NoManifests(StoppingTarget):
    """Ends the process before the manifest of merged files, which are visible by then."""

    def write(self, path: str, data: bytes) -> None:
        if "manifest" in path:
            raise Stopped
        LocalDestination.write(self, path, data)


def test_after_a_merge_that_was_cut_short_the_next_export_is_asked_for(tmp_path: Path) -> None:
    small_files(tmp_path)
    with pytest.raises(Stopped):
        compact(NoManifests(tmp_path, 1000, after=True), "orders", LATER_US)
    with pytest.raises(CorruptData, match="run the export again"):
        tables(tmp_path).table("messages")
