"""A place that someone else can write to leads nothing out of it, and gives no other bytes."""

from __future__ import annotations

import time
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

import goq
from goq.backup.backup import back_up_folder
from goq.backup.inspection import prune_place, verify_place
from goq.backup.manifest import BackupManifest, encode_manifest
from goq.backup.place import BackupPlace
from goq.backup.restore import RestoreOrder, restore
from goq.errors import CorruptData, GoqError
from goq.storage.data_dir_lock import FORMAT_NAME, RESTORING
from goq.storage.disk import RealDisk


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with goq.Node(tmp_path / "data") as node, node.client() as q:
        for name in ("orders", "payments"):
            q.create_topic(name, partitions=1)
            q.publish(name, name.encode() * 50)
    return tmp_path / "data"


@pytest.fixture
def place(data: Path, tmp_path: Path) -> BackupPlace:
    found = BackupPlace(RealDisk(), tmp_path / "place")
    back_up(data, found)
    return found


def back_up(data: Path, place: BackupPlace) -> None:
    back_up_folder(RealDisk(), data, place.folder, time.time_ns() // 1000)


def restored(place: BackupPlace, data_dir: Path) -> None:
    restore(place, data_dir, RestoreOrder(), time.time_ns() // 1000)


def forge(place: BackupPlace, manifest: BackupManifest) -> None:
    """Write a manifest with a right checksum over the newest one."""
    (place.manifests / f"{place.names()[-1]}.backup").write_bytes(encode_manifest(manifest))


def newest(place: BackupPlace) -> BackupManifest:
    found = place.newest()
    assert found is not None
    return found


def test_links_in_a_place_are_not_written_through(
    place: BackupPlace, data: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (place.objects / "object.new").symlink_to(outside)
    with goq.Node(data) as node, node.client() as q:
        q.publish("orders", b"more")
    back_up(data, place)
    assert not outside.exists()
    (place.folder / "lock").unlink()
    (place.folder / "lock").symlink_to(outside)
    with pytest.raises(OSError, match="lock"):
        back_up(data, place)
    assert not outside.exists()


def test_an_object_that_is_a_link_to_another_file_is_damage(
    place: BackupPlace, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not of a backup")
    for path in place.objects.iterdir():
        path.unlink()
        path.symlink_to(secret)
    assert len(verify_place(place).problems) == len(list(place.objects.iterdir()))
    with pytest.raises(CorruptData, match="damaged"):
        restored(place, tmp_path / "new")
    prune_place(place, time.time_ns() // 1000)
    assert secret.read_bytes() == b"not of a backup"


def test_a_forged_manifest_makes_nothing_outside_of_the_new_folder(
    place: BackupPlace, tmp_path: Path
) -> None:
    real = newest(place)
    topic = real.topics[-1]
    (stored,) = topic.logs[0].messages.segments
    log = topic.logs[0].messages

    def with_segment(**changes: object) -> BackupManifest:
        file = msgspec.structs.replace(stored, **changes)
        messages = msgspec.structs.replace(log, segments=(file,))
        partition = msgspec.structs.replace(topic.logs[0], messages=messages)
        return with_topic(logs=(partition,))

    def with_topic(**changes: object) -> BackupManifest:
        changed = msgspec.structs.replace(topic, **changes)
        return msgspec.structs.replace(real, topics=(*real.topics[:-1], changed))

    before = sorted(path for path in tmp_path.rglob("*") if "new" not in path.parts)
    forged = [
        with_topic(name="../../payments"),
        with_topic(name="/tmp/payments"),
        with_topic(groups={"../g": {}}),
        with_topic(settings={"retention.age": "ever"}),
        with_topic(partitions=10**9),
        with_segment(digest="../../secret"),
        with_segment(digest=sha256(b"").hexdigest()),
        with_segment(size_bytes=2**62),
        with_segment(base_offset=-1),
        with_segment(generation=-1),
        with_segment(digest=real.topics[0].logs[0].events.segments[0].digest),
    ]
    for number, manifest in enumerate(forged):
        forge(place, manifest)
        new = tmp_path / "new" / str(number)
        with pytest.raises(GoqError):
            restored(place, new)
        assert not new.exists() or (new / FORMAT_NAME).read_bytes() == RESTORING
    assert sorted(path for path in tmp_path.rglob("*") if "new" not in path.parts) == before
    fresh = goq.Node(tmp_path / "fresh", settings={"backup.to": place.folder})
    with fresh as node, node.client() as q:
        with pytest.raises(GoqError):
            q.restore_topic("payments", "old")
        assert [topic.name for topic in q.list_topics()] == []


@pytest.mark.parametrize("keep", [0, 5])
def test_a_truncated_object_is_named_and_not_restored(
    place: BackupPlace, tmp_path: Path, keep: int
) -> None:
    for path in place.objects.iterdir():
        path.write_bytes(path.read_bytes()[:keep])
    assert all("damaged" in problem for problem in verify_place(place).problems)
    with pytest.raises(CorruptData):
        restored(place, tmp_path / "new")
