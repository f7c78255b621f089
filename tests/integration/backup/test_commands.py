"""``goq backup`` and ``goq restore`` at the terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path

from goq import Node
from tests.support.cli.command import Run
from tests.support.eventually import eventually
from tests.support.storage.backup_source import stopped_source, view_of


def test_a_folder_is_backed_up_listed_verified_and_restored(goq: Run, tmp_path: Path) -> None:
    before = stopped_source(tmp_path / "data")
    data, place, new = (str(tmp_path / name) for name in ("data", "place", "new"))
    first = json.loads(goq("backup", "--data-dir", data, "--to", place, "--json").stdout)
    again = json.loads(goq("backup", "--data-dir", data, "--to", place, "--json").stdout)
    assert (first["topics"], again["copied_bytes"]) == (3, 0)
    listed = json.loads(goq("backup", "list", place, "--json").stdout)["backups"]
    assert [each["name"] for each in listed] == [first["name"], again["name"]]
    assert json.loads(goq("backup", "verify", place, "--json").stdout)["sound"]
    unitless = goq("backup", "prune", place, "--keep", "7", code=7)
    assert b"'7' has no unit" in unitless.stderr
    pruned = json.loads(goq("backup", "prune", place, "--keep", "0s", "--json").stdout)
    assert pruned == {"backups": 1, "objects": 0, "bytes": 0}
    assert b"3 topics" in goq("restore", place, "--data-dir", new).stdout
    assert view_of(tmp_path / "new") == before


def test_a_running_node_is_told_to_back_itself_up(goq: Run, tmp_path: Path) -> None:
    place = tmp_path / "place"
    with Node(tmp_path / "data", settings={"backup.to": place}) as node:
        server = {"GOQ_SERVER": node.url}
        assert b"0 topics" in goq("backup", **server).stdout
        assert b"0 topics" in goq("backup", "--to", str(place), **server).stdout
        goq("backup", "--to", str(tmp_path / "other"), code=7, **server)
    assert len(json.loads(goq("backup", "list", str(place), "--json").stdout)["backups"]) == 2


def test_topics_that_retention_will_empty_are_named_where_no_terminal_is(
    goq: Run, tmp_path: Path
) -> None:
    with Node(tmp_path / "data") as node, node.client() as q:
        published_us = q.publish("orders", b"1").timestamp
    eventually(lambda: time.time_ns() // 1000 > published_us + 1_000_000, seconds=30)
    data, place, new = (str(tmp_path / name) for name in ("data", "place", "new"))
    goq("backup", "--data-dir", data, "--to", place)
    done = goq("restore", place, "--data-dir", new, "--set", "retention.age=1s")
    assert b"goq: orders has messages older than its retention.age" in done.stderr


def test_damage_is_named_and_the_exit_code_tells_it(goq: Run, tmp_path: Path) -> None:
    stopped_source(tmp_path / "data")
    place = tmp_path / "place"
    goq("backup", "--data-dir", str(tmp_path / "data"), "--to", str(place))
    named = max((place / "objects").iterdir(), key=lambda path: path.stat().st_size)
    named.write_bytes(named.read_bytes()[:-1])
    assert named.name in goq("backup", "verify", str(place), code=1).stdout.decode()
    goq("restore", str(place), "--data-dir", str(tmp_path / "new"), code=7)
    (manifest,) = (place / "manifests").iterdir()
    manifest.write_bytes(manifest.read_bytes()[:-2])
    assert b"is damaged" in goq("backup", "list", str(place), code=7).stdout


def test_what_cannot_be_done_is_refused_with_a_reason(goq: Run, tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    goq("backup", "--to", str(tmp_path / "place"), "--data-dir", none, code=3)
    goq("backup", "list", none, code=3)
    goq("restore", none, "--data-dir", str(tmp_path / "new"), code=3)
    done = goq("backup", "--to", "gs://bucket/prefix", "--data-dir", none, code=2)
    assert b"is not a folder" in done.stderr
    (tmp_path / "data" / "cluster").mkdir(parents=True)
    done = goq("backup", "--to", none, "--data-dir", str(tmp_path / "data"), code=2)
    assert b"of a cluster" in done.stderr
