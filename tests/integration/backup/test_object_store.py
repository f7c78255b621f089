"""Backups in an object store: the same as in a folder, and what a store does differently."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import goq
from goq.backup import place as backup_place
from goq.backup.backup import back_up_folder
from goq.backup.inspection import prune_place, verify_place
from goq.backup.manifest import BackupManifest
from goq.backup.place import YOUNG_S, BackupPlace, open_place
from goq.backup.restore import RestoreOrder, restore
from goq.clock import SystemClock
from goq.errors import Conflict, CorruptData, NotFound, Unavailable, UsageError
from goq.storage.disk import RealDisk
from goq.units import parse_time_us
from tests.support.cli.command import GOQ, Run
from tests.support.node.ports import HOST
from tests.support.storage.backup_source import SETTINGS, fill, stopped_source, view, view_of
from tests.support.storage.s3_server import BUCKET, PROGRAM, S3Server, s3_server

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="there is no S3 server here")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def url(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{tmp_path.name}"


@pytest.fixture
def place(url: str) -> BackupPlace:
    return open_place(RealDisk(), url)


def now_us() -> int:
    return time.time_ns() // 1000


def backed_up(data_dir: Path, url: str) -> int:
    return back_up_folder(RealDisk(), data_dir, url, now_us()).copied_bytes


def test_a_backup_in_a_store_restores_all_and_the_next_copies_what_is_new(
    url: str, place: BackupPlace, tmp_path: Path, server: S3Server
) -> None:
    before = stopped_source(tmp_path / "data")
    assert backed_up(tmp_path / "data", url) > 0
    assert backed_up(tmp_path / "data", url) == 0
    report = verify_place(open_place(RealDisk(), url))
    assert (report.backups, report.problems) == (2, [])
    restore(place, tmp_path / "new", RestoreOrder(), now_us())
    assert view_of(tmp_path / "new") == before
    assert not [key for key in server.keys(f"{tmp_path.name}/") if "object.new" in key]


def test_a_running_node_backs_itself_up_to_a_store(url: str, tmp_path: Path) -> None:
    settings = SETTINGS | {"backup.to": url}
    with goq.Node(tmp_path / "data", settings=settings) as node, node.client() as q:
        fill(q)
        before = view(q)
        done = q.create_backup(url + "/")
        assert done.copied_bytes == done.bytes > 0
        assert q.create_backup().copied_bytes == 0
    restore(open_place(RealDisk(), url), tmp_path / "new", RestoreOrder(), now_us())
    assert view_of(tmp_path / "new") == before


def test_an_object_of_many_parts_arrives_whole(
    url: str, place: BackupPlace, tmp_path: Path
) -> None:
    values = [os.urandom(1 << 20) for _ in range(20)]
    with goq.Node(tmp_path / "data") as node, node.client() as q:
        q.create_topic("big", partitions=1)
        for value in values:
            q.publish("big", value)
    assert backed_up(tmp_path / "data", url) > 20 << 20
    restore(place, tmp_path / "new", RestoreOrder(), now_us())
    with goq.Node(tmp_path / "new") as node, node.client() as q:
        assert [bytes(m.value or b"") for m in q.read_log("big")] == values


def test_commands_take_the_url(url: str, goq: Run, tmp_path: Path) -> None:
    stopped_source(tmp_path / "data")
    goq("backup", "--data-dir", str(tmp_path / "data"), "--to", url)
    assert goq("backup", "list", url).stdout.count(b"\n") >= 2
    assert b"sound" in goq("backup", "verify", url).stdout
    assert b"removed 0 backups" in goq("backup", "prune", url, "--keep", "1h").stdout
    goq("restore", url, "--data-dir", str(tmp_path / "new"))
    assert b"has no backups" in goq("backup", "list", url + "/none", code=3).stderr


def test_a_backup_that_is_killed_leaves_the_earlier_one_and_the_next_is_whole(
    url: str, environment: dict[str, str], tmp_path: Path
) -> None:
    before = stopped_source(tmp_path / "data")
    command = [*GOQ, "backup", "--data-dir", str(tmp_path / "data"), "--to", url]
    for wait_s in (0.3, 0.6, 0.9):
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
        process.kill()
        process.wait()
        place = open_place(RealDisk(), url)
        assert not place.names() or verify_place(place).problems == []
    backed_up(tmp_path / "data", url)
    assert verify_place(open_place(RealDisk(), url)).problems == []
    restore(open_place(RealDisk(), url), tmp_path / "new", RestoreOrder(), now_us())
    assert view_of(tmp_path / "new") == before


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_damaged_object_is_named(
    is_gone: bool, url: str, place: BackupPlace, tmp_path: Path, server: S3Server
) -> None:
    stopped_source(tmp_path / "data")
    backed_up(tmp_path / "data", url)
    key = server.keys(f"{tmp_path.name}/objects/")[0]
    if is_gone:
        server.client.delete_object(Bucket=BUCKET, Key=key)
    else:
        data = server.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        data = bytes([data[0] ^ 1]) + data[1:]
        server.client.put_object(Bucket=BUCKET, Key=key, Body=data)
    problems = verify_place(place).problems
    assert [f"s3://{BUCKET}/{key}" in problem for problem in problems] == [True]
    with pytest.raises(CorruptData, match=key):
        restore(open_place(RealDisk(), url), tmp_path / "new", RestoreOrder(), now_us())


def test_a_prune_keeps_young_objects_and_removes_old_ones_that_no_backup_needs(
    url: str, place: BackupPlace, tmp_path: Path, server: S3Server
) -> None:
    with goq.Node(tmp_path / "data") as node, node.client() as q:
        q.create_topic("orders", partitions=1)
        q.publish("orders", b"1")
    backed_up(tmp_path / "data", url)
    with goq.Node(tmp_path / "data") as node, node.client() as q:
        q.publish("orders", b"2")
    backed_up(tmp_path / "data", url)
    foreign = f"{tmp_path.name}/objects/notes.txt"
    server.client.put_object(Bucket=BUCKET, Key=foreign, Body=b"mine")
    left = f"{tmp_path.name}/objects/object.new.0123456789abcdef"
    server.client.put_object(Bucket=BUCKET, Key=left, Body=b"of a backup that was killed")
    young = prune_place(place, now_us(), time.time() + YOUNG_S - 600)
    assert (young.backups, young.objects) == (1, 0)
    old = prune_place(place, now_us(), time.time() + YOUNG_S + 600)
    assert old.objects >= 2
    keys = server.keys(f"{tmp_path.name}/")
    assert foreign in keys
    assert left not in keys
    assert verify_place(open_place(RealDisk(), url)).problems == []


def older_of_two(data: Path, url: str, place: BackupPlace) -> BackupManifest:
    """Return the older one of two backups, between which a message was published."""
    for number in range(2):
        with goq.Node(data) as node, node.client() as q:
            q.publish("orders", b"%d" % number, partition=0)
        backed_up(data, url)
    older = place.read(place.names()[0]).manifest
    assert older is not None
    return older


def test_a_backup_that_needs_what_a_prune_is_about_to_remove_fails(
    url: str, place: BackupPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = older_of_two(tmp_path / "data", url, place)
    pruner, refused = open_place(RealDisk(), url), list[Conflict]()
    remove = pruner.disk.remove

    def add_then_remove(path: Path) -> None:
        if path.parent.name == "objects" and not refused:
            with pytest.raises(Conflict, match="back up again") as caught:
                place.add(older)
            refused.append(caught.value)
        remove(path)

    monkeypatch.setattr(pruner.disk, "remove", add_then_remove)
    assert prune_place(pruner, now_us(), time.time() + YOUNG_S + 600).objects > 0
    assert refused
    assert len(place.names()) == 1
    assert verify_place(open_place(RealDisk(), url)).problems == []
    newest = place.newest()
    assert newest is not None
    place.add(newest)  # the prune is done


def test_a_prune_that_was_killed_long_ago_keeps_no_backup_from_being_made(
    url: str, place: BackupPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_source(tmp_path / "data")
    backed_up(tmp_path / "data", url)
    newest = place.newest()
    assert newest is not None
    place.disk.replace(place.folder / "prunes" / "0123456789abcdef", b"prune")
    with pytest.raises(Conflict, match="is under way, or was killed; back up again") as told:
        place.add(newest)
    until = re.search(r"after ([-:.TZ\d]+)", told.value.detail)
    assert until is not None
    assert parse_time_us(until[1], now_us=0) <= now_us() + 15 * 60_000_000
    monkeypatch.setattr(backup_place, "MARK_S_MAX", -60.0)
    assert place.add(newest) in place.names()


def test_a_prune_that_stood_still_removes_nothing_that_backups_may_need_by_then(
    url: str, place: BackupPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = older_of_two(tmp_path / "data", url, place)
    size, uptime_us = place.disk.size, SystemClock.uptime_us

    with monkeypatch.context() as an_hour_later:

        def size_later(path: Path) -> int:
            if path.parent.name == "objects":  # it has decided, and removes them one by one
                an_hour_later.setattr(SystemClock, "uptime_us", lambda at: uptime_us(at) + 3600e6)
            return size(path)

        an_hour_later.setattr(place.disk, "size", size_later)
        with pytest.raises(Conflict, match="prune again"):
            prune_place(place, now_us(), time.time() + YOUNG_S + 600)
    place.add(older)  # as a backup would that saw no mark any more
    assert verify_place(open_place(RealDisk(), url)).problems == []


def test_backups_of_several_nodes_at_once_do_each_other_no_harm(
    url: str, place: BackupPlace, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        with goq.Node(tmp_path / name) as node, node.client() as q:
            q.create_topic("orders", partitions=1)
            q.publish("orders", b"the same")
    with ThreadPoolExecutor(3) as pool:
        names = [pool.submit(backed_up, tmp_path / name, url) for name in ("a", "b", "c")]
        assert all(each.result() > 0 for each in names)
    assert len(place.names()) == 3
    assert verify_place(place).problems == []


@pytest.mark.parametrize("is_cut", [False, True])
def test_objects_that_are_removed_or_cut_before_the_manifest_is_written_are_missed(
    url: str, place: BackupPlace, tmp_path: Path, server: S3Server, is_cut: bool
) -> None:
    stopped_source(tmp_path / "data")
    backed_up(tmp_path / "data", url)
    manifest = place.newest()
    assert manifest is not None
    place.add(manifest)
    key = server.keys(f"{tmp_path.name}/objects/")[0]
    if is_cut:
        server.client.put_object(Bucket=BUCKET, Key=key, Body=b"its first bytes")
    else:
        server.client.delete_object(Bucket=BUCKET, Key=key)
    with pytest.raises(Conflict, match="back up again"):
        place.add(manifest)
    assert backed_up(tmp_path / "data", url) > 0
    assert not verify_place(open_place(RealDisk(), url), place.names()[-1]).problems


@pytest.mark.parametrize(
    ("bucket", "more", "told"),
    [
        (BUCKET, {"AWS_ACCESS_KEY_ID": "nobody"}, b"InvalidAccessKeyId"),
        ("no-such-bucket", {}, b"NoSuchBucket"),
        (BUCKET, {"AWS_ENDPOINT_URL": f"http://{HOST}:1"}, b"error sending request"),
    ],
)
def test_a_store_that_refuses_or_does_not_answer_is_told_in_one_line(
    bucket: str, more: dict[str, str], told: bytes, url: str, goq: Run
) -> None:
    failed = goq("backup", "list", f"s3://{bucket}/prefix", code=7, **more)
    assert f"s3://{bucket}/prefix/manifests".encode() in failed.stderr
    assert told in failed.stderr
    assert failed.stderr.count(b"\n") == 1


def test_a_node_whose_store_refuses_it_tells_so_and_serves(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with goq.Node(tmp_path / "data", settings={"backup.to": url}) as node, node.client() as q:
        with pytest.raises(Unavailable, match="no backup"):
            q.create_backup()
        q.publish("orders", b"1")


@pytest.mark.parametrize("bad", ["s3://", "s3://b", "s3://BUCKET/x", "s3://bucket/a b", "gs://b/c"])
def test_a_url_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="s3://bucket/prefix"):
        open_place(RealDisk(), bad)


def test_a_place_without_backups_cannot_be_restored(place: BackupPlace, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no backups"):
        restore(place, tmp_path / "new", RestoreOrder(), now_us())
