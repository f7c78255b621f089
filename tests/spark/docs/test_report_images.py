"""The pictures and answers of docs/spark.md are what the reports of the made-up traffic say."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import REPOSITORY

pytest.importorskip("pyspark", minversion="4.2")

from goq.pipeline.reports.audit.audit import audit
from goq.pipeline.reports.tables import ExportedTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = REPOSITORY / "docs" / "spark.md"
IMAGES = REPOSITORY / "docs" / "images"
SIZE_MAX = 200_000


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    """Return tools/report_images.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY / "tools")
        yield importlib.import_module("report_images")


@pytest.fixture(scope="module")
def export(tool: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traffic") / "lake"
    tool.write_export(tool.traffic(), folder)
    return folder


@pytest.mark.long
def test_the_pictures_are_those_that_the_tool_draws(
    spark: SparkSession, tool: ModuleType, export: Path
) -> None:
    drawn = tool.draw(spark, export)
    assert {path.name for path in IMAGES.glob("*.svg")} == set(drawn)
    text = PAGE.read_text()
    for name, picture in drawn.items():
        assert (IMAGES / name).read_text() == picture, "run: python tools/report_images.py"
        assert len(picture) < SIZE_MAX
        assert f"images/{name}" in text


@pytest.mark.long
def test_the_question_to_events_has_the_answer_of_the_page(
    spark: SparkSession, export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = PAGE.read_text().split("\n## What happened?\n", 1)[1].split("\n## ", 1)[0]
    [(code, answer)] = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", asked, re.DOTALL)
    exec(code.replace("/home/me/lake", str(export)), {"spark": spark})
    assert capsys.readouterr().out.strip() == answer.strip()


@pytest.mark.long
def test_the_made_up_traffic_is_accounted_for(spark: SparkSession, export: Path) -> None:
    tables = ExportedTables(spark, str(export), [])
    report = audit(tables.slices(), tables.changed_files())
    assert not report.failed
    assert report.scope is not None
    assert report.scope.messages > 10_000
