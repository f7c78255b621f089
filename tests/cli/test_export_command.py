"""``goq export`` and ``goq report``: what is written, and what is said when it cannot be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.cli import Run

pq = pytest.importorskip("pyarrow.parquet")


def rows(folder: Path, table: str) -> list[dict[str, object]]:
    paths = sorted(folder.glob(f"{table}/topic=*/date=*/*.parquet"))
    return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]


def test_a_topic_is_exported_with_what_happened_and_then_only_what_is_new(
    goq: Run, topic: str, tmp_path: Path
) -> None:
    to = str(tmp_path / "out")
    goq("produce", topic, stdin=b"a\nb\nc\n")
    goq("consume", topic, "--group", "g", "--max", "2")
    first = json.loads(goq("export", topic, "--to", to, "--json").stdout)
    assert {e["table"]: e["rows"] for e in first["exports"]} == {"messages": 3, "events": 4}
    assert sorted(bytes(r["value"]) for r in rows(tmp_path / "out", "messages")) == [
        b"a",
        b"b",
        b"c",
    ]
    assert sum(int(str(r["lag"])) for r in rows(tmp_path / "out", "groups")) == 1
    goq("produce", topic, stdin=b"d\n")
    second = json.loads(goq("export", topic, "--to", to, "--json").stdout)
    assert {e["table"]: e["rows"] for e in second["exports"]} == {"messages": 1, "events": 0}
    assert len(rows(tmp_path / "out", "messages")) == 4


def test_json_values_become_columns_that_the_folder_remembers(
    goq: Run, topic: str, tmp_path: Path
) -> None:
    to = str(tmp_path / "out")
    goq("produce", topic, stdin=b'{"id": 1, "total": 2.5}\nnot json\n')
    goq("export", topic, "--to", to, "--decode", "json")
    found = {(r["id"], r["total"], r["_corrupt"]) for r in rows(tmp_path / "out", "messages")}
    assert found == {(1, 2.5, None), (None, None, "not json")}
    goq("produce", topic, stdin=b'{"id": 2, "new": 1}\n')
    goq("export", topic, "--to", to, "--decode", "json")
    assert {r["id"] for r in rows(tmp_path / "out", "messages")} == {1, 2, None}
    other = goq("export", topic, "--to", to, "--decode", "json", "--schema", "id string", code=6)
    assert b"id bigint, total double" in other.stderr


def test_bounds_in_time_are_kept_by_the_folder(goq: Run, topic: str, tmp_path: Path) -> None:
    to = str(tmp_path / "out")
    goq("produce", topic, stdin=b"a\n")
    goq("export", topic, "--to", to, "--from-time", "2020-01-01")
    done = goq("export", topic, "--to", to, code=6)
    assert b"other bounds" in done.stderr


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("nope", "--to", "{}/out"), 3, b"there is no topic 'nope'"),
        (("{topic}", "--to", "{}/full"), 6, b"no export of goq"),
        (("{topic}", "--to", "what://ever"), 7, b"cannot be written to"),
        (("{topic}", "--to", "{}/out", "--engine", "abacus"), 2, b"there is no engine"),
        (("{topic}", "--to", "{}/out", "--from-time", "soon"), 7, b"soon"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    goq: Run, topic: str, tmp_path: Path, options: tuple[str, ...], code: int, said: bytes
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letters.txt").write_text("mine")
    words = [w.replace("{topic}", topic).replace("{}", str(tmp_path)) for w in options]
    goq("produce", topic, stdin=b"a\n")
    done = goq("export", *words, code=code)
    assert said in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert sorted(os.listdir(tmp_path / "full")) == ["letters.txt"]


def test_a_report_needs_an_export(goq: Run, tmp_path: Path) -> None:
    goq("report", "audit", code=2)
    goq("report", "nope", "--from", str(tmp_path), code=2)
