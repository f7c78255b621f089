"""``goq export`` and ``goq report``: what is written, and what is said when it cannot be."""

from __future__ import annotations

import io
import json
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.cli.command import Run
from tests.support.cli.forked_goq import start_goq
from tests.support.effort import first_of
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node
from tests.support.node.small_disk import unmount

pq = pytest.importorskip("pyarrow.parquet")


def rows(folder: Path, table: str) -> list[dict[str, object]]:
    paths = sorted(folder.glob(f"{table}/topic_folder=*/date=*/*.parquet"))
    # Arrow may close a file later than its table is there, and a disk in use is not unmounted.
    files = (pq.ParquetFile(io.BytesIO(path.read_bytes())) for path in paths)
    return [row for file in files for row in file.read().to_pylist()]


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


@pytest.fixture
def late() -> Iterator[RunningNode]:
    """A node whose clock is about two hours behind, and half past an hour."""
    with running_node() as running:
        half_past_ms = 1_800_000 - running.clock.wall_ms() % 3_600_000
        running.clock.set_ahead_ms(half_past_ms - 7_200_000)
        yield running


def test_the_groups_of_an_export_are_of_a_time_by_the_clock_of_the_node(
    goq: Run, late: RunningNode, topic: str, tmp_path: Path
) -> None:
    goq("produce", topic, stdin=b"a\n", GOQ_SERVER=late.url)
    goq("consume", topic, "--group", "g", "--max", "1", GOQ_SERVER=late.url)
    goq("export", topic, "--to", str(tmp_path / "out"), GOQ_SERVER=late.url)
    (read,) = {row["time"] for row in rows(tmp_path / "out", "groups")}
    assert isinstance(read, datetime)
    assert read.timestamp() < time.time() - 3600


def test_the_clock_of_the_node_tells_which_hours_are_over(
    goq: Run, late: RunningNode, topic: str, tmp_path: Path
) -> None:
    to = tmp_path / "out"
    for value in (b"a\n", b"b\n"):
        goq("produce", topic, "--partition", "0", stdin=value, GOQ_SERVER=late.url)
        goq("export", topic, "--to", str(to), "--compact", GOQ_SERVER=late.url)
    assert len(list(to.glob("messages/*/*/*.parquet"))) == 2


def test_a_topic_that_was_created_again_is_not_exported_to_the_folder_of_the_earlier_one(
    goq: Run, topic: str, tmp_path: Path
) -> None:
    to = tmp_path / "out"
    goq("produce", topic, stdin=b"old\n")
    goq("export", topic, "--to", str(to))
    before = rows(to, "messages")
    goq("topic", "delete", topic, "--yes")
    goq("produce", topic, stdin=b"new\n" * 3)  # it has grown past what was exported
    refused = goq("export", topic, "--to", str(to), code=6)
    assert b"was deleted and created again since it was exported there" in refused.stderr
    assert rows(to, "messages") == before
    goq("export", topic, "--to", str(tmp_path / "other"))
    assert len(rows(tmp_path / "other", "messages")) == 3


def test_an_export_without_a_topic_id_takes_that_of_the_topic(
    goq: Run, topic: str, tmp_path: Path
) -> None:
    to = tmp_path / "out"
    goq("produce", topic, stdin=b"a\n")
    goq("export", topic, "--to", str(to))
    for path in to.glob("_goq/**/state.json"):
        state = json.loads(path.read_text())
        assert state.pop("topic_id")
        path.write_text(json.dumps(state))
    goq("produce", topic, stdin=b"b\n")
    goq("export", topic, "--to", str(to))
    goq("topic", "delete", topic, "--yes")
    goq("produce", topic, stdin=b"new\n" * 3)
    goq("export", topic, "--to", str(to), code=6)


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
    narrower = ("--decode", "json", "--schema", "total bigint")
    other = goq("export", topic, "--to", to, *narrower, code=6)
    assert b"id bigint, total double, new bigint" in other.stderr
    assert b"give --decode json again" in goq("export", topic, "--to", to, code=6).stderr
    goq("produce", topic, stdin=b'{"id": "seven"}\n')
    goq("export", topic, "--to", to, "--decode", "json", "--schema", "id string")
    assert "seven" in [r.get("id_string") for r in rows(tmp_path / "out", "messages")]


def test_an_export_that_begins_on_an_empty_topic_decodes_what_comes(
    goq: Run, topic: str, tmp_path: Path
) -> None:
    words = ("export", topic, "--to", str(tmp_path / "out"), "--decode", "json")
    goq("topic", "create", topic)
    goq(*words)
    goq("produce", topic, stdin=b'{"id": 7}\n')
    goq(*words)
    assert [row["id"] for row in rows(tmp_path / "out", "messages")] == [7]


def test_a_field_that_the_sample_lacks_is_told_and_has_its_column_in_the_next_run(
    goq: Run, topic: str, tmp_path: Path
) -> None:
    words = ("export", topic, "--to", str(tmp_path / "out"), "--decode", "json")
    goq("topic", "create", topic, "--partitions", "1")
    goq("produce", topic, stdin=b'{"id": 1}\n' * 1000)
    goq("produce", topic, stdin=b'{"id": 2, "late": true}\n')
    said = goq(*words).stderr
    assert f"goq: {topic}: fields without a column: late\n".encode() in said
    goq("produce", topic, stdin=b'{"id": 3}\n')
    assert b"late" not in goq(*words).stderr
    found = [row for row in rows(tmp_path / "out", "messages") if row["id"] in (2, 3)]
    assert [row.get("late", "no column") for row in found] == ["no column", None]


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
        (
            ("{topic}", "--to", "{}/out", "--from-time", "now", "--to-time", "-1h"),
            *(2, b"--to-time is not after --from-time"),
        ),
        (("{topic}", "nope", "--to", "{}/out"), 3, b"there is no topic 'nope'"),
        (("{topic}", "--to", "{}/full/letters.txt"), 6, b"a file has a folder's place"),
        (("{topic}", "--to", "{}/out", "--schema", "id bigint"), 2, b"--schema goes with"),
        (("{topic}", "--to", "{}/out", "--decode", "json", "--schema", "id"), 7, b"NAME TYPE"),
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
    assert not rows(tmp_path / "out", "groups") + rows(tmp_path / "out", "messages")


@pytest.mark.parametrize(
    ("version", "said"),
    first_of(
        [
            ('openjdk version "11.0.22" 2024-01-16', b"version 11: install a newer one"),
            (None, b"there is none in JAVA_HOME"),
            ('java version "1.8.0_402"', b"version 8: install a newer one"),
            ("not found", b"is no Java"),
        ],
        quick=1,
    ),
)
def test_spark_without_its_java_says_what_to_install(
    goq: Run, topic: str, tmp_path: Path, version: str | None, said: bytes
) -> None:
    pytest.importorskip("pyspark")
    java = tmp_path / "java" / "bin" / "java"
    if version is not None:
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
        java.chmod(0o755)
    goq("produce", topic, stdin=b"a\n")
    words = ("export", topic, "--to", str(tmp_path / "out"), "--engine", "spark")
    done = goq(*words, code=2, JAVA_HOME=str(tmp_path / "java"))
    assert said in done.stderr
    assert done.stderr.count(b"\n") == 1
    goq("export", topic, "--to", str(tmp_path / "out"))
    assert len(rows(tmp_path / "out", "messages")) == 1


def test_without_any_java_it_is_said_what_to_install(goq: Run, topic: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    goq("produce", topic, stdin=b"a\n")
    words = ("export", topic, "--to", str(tmp_path / "out"), "--engine", "spark")
    done = goq(*words, code=2, JAVA_HOME="", PATH=str(tmp_path))
    assert b"install it (for instance openjdk-17-jre-headless)" in done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for 200 KB, where the tests may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("only root may mount")
    try:
        yield folder
    finally:
        unmount(folder)


def test_a_full_disk_is_said_and_with_more_room_the_export_goes_on(
    goq: Run, topic: str, small_disk: Path
) -> None:
    sent = [os.urandom(1500).hex().encode() for _ in range(400)]
    goq("produce", topic, stdin=b"\n".join(sent) + b"\n")
    done = goq("export", topic, "--to", str(small_disk / "out"), code=5)
    assert b"no room for" in done.stderr
    assert done.stderr.count(b"\n") == 1
    seen = [bytes(r["value"]) for r in rows(small_disk / "out", "messages")]
    assert len(seen) == len(set(seen) & set(sent)) < len(sent)
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    goq("export", topic, "--to", str(small_disk / "out"))
    assert sorted(bytes(r["value"]) for r in rows(small_disk / "out", "messages")) == sorted(sent)


def test_a_folder_that_may_not_be_written_is_said(goq: Run, topic: str, small_disk: Path) -> None:
    goq("produce", topic, stdin=b"a\n")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = goq("export", topic, "--to", str(small_disk / "out"), code=4)
    assert b"check its owner and mode" in done.stderr
    assert done.stderr.count(b"\n") == 1
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    goq("export", topic, "--to", str(small_disk / "out"))
    assert len(rows(small_disk / "out", "messages")) == 1


def test_times_that_are_told_from_now_hold_for_all_of_a_following_export(
    node: RunningNode, environment: dict[str, str], goq: Run, topic: str, tmp_path: Path
) -> None:
    goq("produce", topic, stdin=b"a\n")
    words = ("export", topic, "--to", str(tmp_path / "out"), "--from-time", "-1h")
    process = start_goq(
        [*words, "--follow", "--every", "1ms"], env=environment, stdout=subprocess.DEVNULL
    )
    try:
        eventually(lambda: len(rows(tmp_path / "out", "messages")) == 1)
        goq("produce", topic, stdin=b"b\n")
        eventually(lambda: len(rows(tmp_path / "out", "messages")) == 2)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) >= 10
    finally:
        process.terminate()
        process.wait()
    done = goq(*words, code=6)
    assert b"other bounds in time (--from-time 20" in done.stderr


def test_times_that_are_told_from_now_are_by_the_clock_of_the_node(
    node: RunningNode, goq: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_hours_us = 7_200_000_000
    with monkeypatch.context() as behind:
        behind.setattr(
            node.node.broker.clock, "wall_us", lambda: time.time_ns() // 1000 - two_hours_us
        )
        goq("produce", topic, stdin=b"a\n")
        goq("export", topic, "--to", str(tmp_path / "new"), "--from-time", "-1h")
        goq("export", topic, "--to", str(tmp_path / "old"), "--to-time", "-1h")
    assert len(rows(tmp_path / "new", "messages")) == 1
    assert rows(tmp_path / "old", "messages") == []


def test_a_following_export_waits_for_enough_rows_of_a_topic(
    environment: dict[str, str], goq: Run, topic: str, tmp_path: Path
) -> None:
    other = f"{topic}-other"
    goq("topic", "create", other, "--partitions", "1")
    goq("produce", topic, stdin=b"a\n")
    goq("produce", other, stdin=b"1\n2\n3\n")
    words = ("export", topic, other, "--to", str(tmp_path / "out"), "--follow", "--every", "1ms")
    gated = [*words, "--min-rows", "3", "--max-wait", "1h"]
    process = start_goq(gated, env=environment, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: len(rows(tmp_path / "out", "messages")) == 3)
        goq("produce", other, stdin=b"4\n5\n6\n")
        eventually(lambda: len(rows(tmp_path / "out", "messages")) == 6)
        assert {row["topic"] for row in rows(tmp_path / "out", "messages")} == {other}
        goq("produce", topic, stdin=b"b\nc\n")
        eventually(lambda: len(rows(tmp_path / "out", "messages")) == 9)
    finally:
        process.terminate()
        process.wait()
    process = start_goq(
        [*words, "--min-rows", "100", "--max-wait", "1ms"],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        goq("produce", topic, stdin=b"d\n")
        eventually(lambda: len(rows(tmp_path / "out", "messages")) == 10)
    finally:
        process.terminate()
        process.wait()


def test_options_that_need_another_are_refused_without_it(
    goq: Run, topic: str, tmp_path: Path
) -> None:
    words = ("export", topic, "--to", str(tmp_path / "out"))
    goq(*words, "--min-rows", "5", code=2)
    goq(*words, "--conf", "spark.executor.memory=512m", code=2)
    goq(*words, "--follow", "--max-wait", "5s", code=2)
    goq(*words, "--follow", "--min-rows", "0", code=2)


def test_a_report_needs_an_export(goq: Run, tmp_path: Path) -> None:
    goq("report", "audit", code=2)
    goq("report", "nope", "--from", str(tmp_path), code=2)
    goq("report", "retries", "--slo", "5s", "--from", str(tmp_path), code=2)
    goq("report", "audit", "--since", "-1h", "--from", str(tmp_path), code=2)
    goq("report", "skew", "--since", "-1h", "--until", "-1h", "--from", str(tmp_path), code=2)
    told = goq("report", "traffic", "--from", str(tmp_path), code=7).stderr
    assert b"is no export" in told
    assert b"starting Spark" not in told


def an_hour_later(to: Path) -> None:
    """Make the manifests say that all rows are two hours older."""
    for path in to.glob("_goq/*/*/manifest-*.json"):
        manifest = json.loads(path.read_text())
        for entry in manifest["files"]:
            entry["first_time_us"] -= 7_200_000_000
            entry["last_time_us"] -= 7_200_000_000
        path.write_text(json.dumps(manifest))


def test_small_files_of_hours_that_are_over_are_merged(
    goq: Run, topic: str, tmp_path: Path
) -> None:
    to = tmp_path / "out"
    for value in (b"a\n", b"b\n", b"c\n"):
        goq("produce", topic, "--partition", "0", stdin=value)
        goq("export", topic, "--to", str(to))
    before = len(list(to.rglob("*.parquet")))
    an_hour_later(to)
    told = json.loads(goq("export", topic, "--to", str(to), "--compact", "--json").stdout)
    assert [(e["table"], e["files"], e["into"]) for e in told["compacted"]] == [("messages", 3, 1)]
    assert len(list(to.rglob("*.parquet"))) == before - 2
    assert sorted(bytes(row["value"]) for row in rows(to, "messages")) == [b"a", b"b", b"c"]
    again = json.loads(goq("export", topic, "--to", str(to), "--compact", "--json").stdout)
    assert again["compacted"] == []
    goq("produce", topic, "--partition", "0", stdin=b"d\n")
    goq("export", topic, "--to", str(to))
    an_hour_later(to)
    small = goq("export", topic, "--to", str(to), "--compact", "--target-size", "1KiB", "--json")
    assert json.loads(small.stdout)["compacted"] == []
    assert len(rows(to, "messages")) == 4


def test_what_cannot_be_compacted_is_refused(goq: Run, topic: str, tmp_path: Path) -> None:
    goq("produce", topic, stdin=b"a\n")
    to = ("--to", str(tmp_path / "out"))
    assert b"--compact" in goq("export", topic, *to, "--target-size", "1MiB", code=2).stderr
    goq("export", topic, *to, "--compact", "--target-size", "0", code=2)
    goq("export", topic, *to, "--compact", "--target-size", "big", code=7)
