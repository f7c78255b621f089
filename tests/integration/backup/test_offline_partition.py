"""A partition that is offline is named, and the others are backed up."""

from __future__ import annotations

import json
import time
from pathlib import Path

import goq as goq_package
from goq.backup.inspection import prune_place
from goq.backup.place import BackupPlace
from goq.client import Client
from goq.storage.disk import RealDisk
from tests.support.cli.command import Run
from tests.support.paths import topic_dir

PARTITIONS = 2


def publish(q: Client, text: str) -> None:
    for number in range(PARTITIONS):
        q.publish("t", f"{text} {number}".encode(), partition=number)


def values(q: Client) -> list[bytes]:
    return sorted(bytes(message.value or b"") for message in q.read_log("t"))


def break_partition(data: Path, number: int) -> None:
    folder = topic_dir(data, "t") / str(number) / "messages"
    (folder / f"{1:020d}.log").write_bytes(b"x")  # a segment that begins inside another one


def test_an_offline_partition_is_named_and_the_others_are_backed_up_and_restored(
    goq: Run, tmp_path: Path
) -> None:
    data, place = tmp_path / "data", tmp_path / "place"
    settings = {"backup.to": place}
    with goq_package.Node(data, settings=settings) as node, node.client() as q:
        q.create_topic("t", partitions=PARTITIONS)
        for text in ("first", "second"):
            publish(q, text)
        assert goq("--server", node.url, "backup", code=0).stderr == b""
    break_partition(data, 1)
    with goq_package.Node(data, settings=settings) as node, node.client() as q:
        q.publish("t", b"third 0", partition=0)
        failed = goq("--server", node.url, "--json", "backup", code=1)
        assert json.loads(failed.stdout)["missing"] == ["t:1"]
        assert b"offline: t:1" in goq("--server", node.url, "backup", code=1).stdout
    rows = json.loads(goq("--json", "backup", "list", str(place)).stdout)["backups"]
    assert [row["missing"] for row in rows] == [None, "t:1", "t:1"]

    opened = BackupPlace(RealDisk(), place)
    assert prune_place(opened, time.time_ns() // 1000).backups == 1
    assert opened.names() == [rows[0]["name"], rows[2]["name"]], "the complete one stays"

    new = tmp_path / "new"
    told = goq("restore", str(place), "--data-dir", str(new), code=1)
    assert b"backup lacks it: t:1" in told.stdout
    with goq_package.Node(new) as node, node.client() as q:
        assert values(q) == [b"first 0", b"second 0", b"third 0"]
        publish(q, "again")
        assert values(q)[:2] == [b"again 0", b"again 1"]
    goq("restore", str(place), "--data-dir", str(tmp_path / "old"), "--backup", rows[0]["name"])
    with goq_package.Node(tmp_path / "old") as node, node.client() as q:
        assert values(q) == [b"first 0", b"first 1", b"second 0", b"second 1"]


def test_without_any_partition_there_is_no_backup(goq: Run, tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "place"
    with goq_package.Node(data) as node, node.client() as q:
        q.create_topic("t", partitions=PARTITIONS)
        publish(q, "first")
        publish(q, "second")
    for number in range(PARTITIONS):
        break_partition(data, number)
    with goq_package.Node(data, settings={"backup.to": place}) as node:
        assert b"all partitions are offline" in goq("--server", node.url, "backup", code=5).stderr
    assert BackupPlace(RealDisk(), place).names() == []
