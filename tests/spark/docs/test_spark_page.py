"""docs/spark.md, run as it is written, and its tables against the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.paths import DOCS

pytest.importorskip("pyspark", minversion="4.2")

from goq import limits
from goq.broker.runtime.background import BUSY_SHARE, FULL_WRITES_PER_S
from goq.client import Client
from goq.errors import Unavailable
from goq.pipeline.arrow import events as event_rows
from goq.pipeline.arrow.json_columns import COLUMNS_MAX
from goq.pipeline.arrow.schema import EVENTS, GROUPS, MESSAGES, ddl_of
from goq.pipeline.export.export import _SAMPLE
from goq.pipeline.reports.audit.group_progress import SLACK_US
from goq.pipeline.reports.waits import _POINTS_MAX
from goq.pipeline.spark import session, sink_options, transaction_topics
from goq.pipeline.spark import source_options as spark_options
from goq_cli.commands.export import _NICENESS, _TARGET_SIZE
from goq_cli.commands.report import REPORTS
from tests.support.cli import terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = DOCS / "spark.md"
TEXT = PAGE.read_text()


def rows(heading: str) -> list[list[str]]:
    """Return the first table behind a heading, without its head."""
    behind = TEXT.split(f"\n{heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", behind, re.MULTILINE)
    assert table
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].splitlines()[2:]]


def names(heading: str) -> set[str]:
    return {name.lower() for row in rows(heading) for name in re.findall(r"`(\w+)`", row[0])}


def test_the_session_and_the_python_of_the_page_do_what_they_say(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "spark_session", lambda: spark)
    said: dict[str, Any] = {}
    with terminal.shell(tmp_path) as shell:
        assert terminal.run_session(PAGE, shell, tmp_path) == 5
        for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
            code = code.replace("http://127.0.0.1:8080", shell["GOQ_SERVER"])
            exec(code.replace("/home/me", str(tmp_path)), said)
        with Client(shell["GOQ_SERVER"]) as client:
            shouted = sorted(m.value or b"" for m in client.read_log("shouted"))
            [total] = client.read_log("totals")
        assert said["orders"].count() == said["lake"].count() == 3
    assert shouted == [b"PLACED 1", b"PLACED 2", b"PLACED 3"]
    assert (total.value, total.key, total.priority, total.tenant) == (b"42", b"eu", "high", "acme")


def test_the_lists_of_columns_are_the_schemas() -> None:
    for name, schema in (("messages", MESSAGES), ("events", EVENTS), ("groups", GROUPS)):
        columns = re.findall(r"`(\w+)` (\w+)", re.sub(r"<[^`]*>", "", ddl_of(schema)))
        listed = TEXT.split(f"\n### {name}\n\n```text\n", 1)[1].split("```", 1)[0]
        assert re.findall(r"^(\w+) +(\w+)", listed, re.MULTILINE) == [
            (column, kind.lower()) for column, kind in columns
        ]


def test_the_table_of_events_is_complete() -> None:
    made = set(re.findall(r'"([A-Z_]+)"', Path(event_rows.__file__).read_text()))
    told = re.findall(r"^\| `([A-Z_]+)` \|", TEXT, re.MULTILINE)
    assert sorted(told) == sorted(made)


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    """What they do is tested where it is done, mostly with smaller ones."""
    assert (spark_options.QUERY_PATIENCE, spark_options.STREAM_PATIENCE) == ("10s", "1m")
    assert (spark_options.TASK_PATIENCE, sink_options.PATIENCE) == ("5m", "5m")
    assert transaction_topics._STAGED_FOR["retention.age"] == "1d"
    defaults = {row[0].lower(): row[2] for row in rows("## Read a topic")}
    for name, default in spark_options._KNOWN.items():
        told = defaults.get(f"`{name}`")
        assert told is None or default in told.lower() or told in ("none", "", "all"), name
    told = " ".join(TEXT.split())
    for text in (
        f"without an executor after a minute it ends with {Unavailable.exit_code}",
        f"up to `--target-size`, {_TARGET_SIZE.replace('MiB', ' MiB')} by default",
        f"the first {_SAMPLE:,} new messages of each partition",
        f"there are {COLUMNS_MAX:,} columns | no column is added",
        f"its name has at most {sink_options.NAME_CHARS_MAX} characters",
        f"at most {limits.SINK_TOPICS_MAX} topics a task",
        f"Steps fit the time: at most {_POINTS_MAX}",
        f"From {FULL_WRITES_PER_S:.0f} on",
        f"the CPU priority of `nice -n {_NICENESS}`",
    ):
        assert text in told, text
    assert (session.EXECUTOR_S_MAX, SLACK_US, BUSY_SHARE) == (60, 60_000_000, 1 / 4)


def test_the_tables_of_options_are_complete() -> None:
    assert names("## Read a topic") == set(spark_options._KNOWN)
    behind_columns = TEXT.split("\nOther columns are refused", 1)[1]
    options = set(re.findall(r"^\| `(\w+)`", behind_columns, re.MULTILINE)) | {"token"}
    assert {name.lower() for name in options} >= set(sink_options._KNOWN)
    assert names("## Write messages") == {*sink_options.COLUMNS, "topic"}


def test_every_report_is_in_the_table() -> None:
    assert names("## Reports") == set(REPORTS)
