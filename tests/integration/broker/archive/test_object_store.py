"""Archived segments in an object store: they leave the disk, and are read as those on it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from goq.backup import data_dir_source
from goq.backup.backup import back_up_folder
from goq.backup.place import open_place
from goq.backup.planned_files import PlannedFile, list_archived_files
from goq.backup.restore import RestoreOrder, restore
from goq.broker.retention.archive_uploader import ArchiveUploader
from goq.client import Client
from goq.errors import CorruptData
from goq.storage.archive import store_cache
from goq.storage.archive.object_store import StoreUpload
from goq.storage.archive.store_cache import StoreCache
from goq.storage.archive.stored_entry import read_entry
from goq.storage.archive.tiered_disk import TieredDisk
from goq.storage.catalog.rows import ArchiveRow
from goq.storage.disk import RealDisk
from goq.storage.verification import verify_data_dir
from tests.support.eventually import eventually
from tests.support.node.archive import publish_segments, retire, value_of
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import topic_dir
from tests.support.storage.s3_server import BUCKET, S3Server
from tests.support.storage.store_proxy import StoreProxy, Way

TOPIC = "orders"
WAIT_S = 60


def stored_node(data: Path, url: str) -> AbstractContextManager[RunningNode]:
    return running_node(data, archive={"to": url}, defaults={"topic": {"partitions": 1}})


def fill(node: RunningNode, count: int = 6) -> None:
    with Client(node.url) as q:
        q.create_topic(TOPIC)
        for number in range(count):
            publish_segments(node, TOPIC, [number])
            q.receive_batch(TOPIC, "g", max_messages=1, wait="5s").ack()
    retire(node, TOPIC, archive=True)


def files_here(node: RunningNode) -> list[str]:
    folder = node.data_dir / "archive"
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and p.suffix != ".stored")


def wait_until_moved(node: RunningNode) -> None:
    def is_moved() -> bool:
        return not files_here(node) and metric(node, "goq_archive_waiting_bytes") == 0

    eventually(is_moved, seconds=WAIT_S)


def metric(node: RunningNode, name: str) -> float:
    with urlopen(f"{node.url}/metrics") as answer:
        found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)", answer.read().decode(), re.MULTILINE)
    assert found, name
    return float(found[1])


def read(node: RunningNode, query: str = "include_deleted=true&limit=200") -> dict[str, Any]:
    found: dict[str, Any] = node.call("GET", f"/v1/topics/{TOPIC}/messages?partition=0&{query}")
    return found


def numbers(found: dict[str, Any]) -> list[int]:
    return [int(message["value"].split()[0]) for message in found["messages"]]


def seen(node: RunningNode) -> dict[str, Any]:
    """Return all that is told of archived messages."""
    found = node.call("GET", f"/v1/topics/{TOPIC}/trace?key=k1")
    traces = [
        {**each, "events": [step["event"] for step in each["events"]]} for each in found["traces"]
    ]
    path = f"/v1/topics/{TOPIC}/events?partition=0&include_deleted=true&limit=20"
    return {
        "messages": read(node)["messages"],
        "traces": traces,
        "events": node.call("GET", path)["events"],
    }


def test_archived_segments_leave_the_disk_and_are_read_traced_and_exported_as_before(
    url: str, proxy: StoreProxy, server: S3Server, tmp_path: Path
) -> None:
    with running_node(tmp_path / "data", defaults={"topic": {"partitions": 1}}) as node:
        fill(node)
        before = seen(node)
        assert len(before["messages"]) == 6
        assert before["traces"][0]["message"]["state"] == "archived"
    with stored_node(tmp_path / "data", url) as node:
        wait_until_moved(node)
        assert [key for key in server.keys(f"{tmp_path.name}/node-1/") if key.endswith(".zst")]
        assert seen(node) == before
        with Client(node.url) as q:
            hits = q.search_messages(TOPIC, "3 xxx").messages
            assert [str(hit.id) for hit in hits] == [f"{TOPIC}:0:3"]
    with stored_node(tmp_path / "data", url) as node:  # the cache is empty again
        assert seen(node) == before
    with running_node(tmp_path / "data") as node:  # what is there is found without the setting
        assert numbers(read(node)) == [0, 1, 2, 3, 4, 5]
    report = verify_data_dir(RealDisk(), tmp_path / "data")
    assert report.is_sound, report.problems


def test_while_the_store_does_not_answer_segments_stay_and_readers_are_told(
    url: str, proxy: StoreProxy, tmp_path: Path
) -> None:
    with stored_node(tmp_path / "data", url) as node:
        proxy.go()
        fill(node)
        eventually(lambda: metric(node, "goq_archive_store_failures_total") > 0, seconds=WAIT_S)
        assert metric(node, "goq_archive_waiting_bytes") > 0
        assert numbers(read(node)) == [0, 1, 2, 3, 4, 5], "they are still here"
        proxy.way = Way.OPEN
        wait_until_moved(node)
    proxy.go()
    with stored_node(tmp_path / "data", url) as node:
        answer = node.request(
            "GET", f"/v1/topics/{TOPIC}/messages?partition=0&include_deleted=true"
        )
        assert (answer.status, answer.json["code"]) == (503, "archive_unreachable")
        assert url in answer.json["detail"]
        assert numbers(read(node, "")) == [5], "live messages need no store"
        with Client(node.url) as q:
            q.publish(TOPIC, b"6 is taken")
        proxy.way = Way.OPEN
        eventually(lambda: read_status(node) == 200, seconds=WAIT_S)
        found = read(node)
        assert (numbers(found), found["damaged"]) == ([0, 1, 2, 3, 4, 5, 6], [])


def read_status(node: RunningNode) -> int:
    path = f"/v1/topics/{TOPIC}/messages?partition=0&include_deleted=true&limit=200"
    return node.request("GET", path).status


def test_a_store_that_goes_in_the_middle_of_a_download_or_an_upload_costs_nothing(
    url: str, proxy: StoreProxy, tmp_path: Path
) -> None:
    with stored_node(tmp_path / "data", url) as node:
        proxy.closed_after_bytes = 900  # between two objects, or within one
        fill(node)
        eventually(lambda: proxy.way is Way.GONE, seconds=WAIT_S)
        assert numbers(read(node)) == [0, 1, 2, 3, 4, 5] or read_status(node) == 503
        proxy.way = Way.OPEN
        wait_until_moved(node)
        for count in (1, 300, 2000):
            proxy.closed_after_bytes = count
            read_status(node)
            proxy.closed_after_bytes = None
            proxy.way = Way.OPEN
        eventually(lambda: read_status(node) == 200, seconds=WAIT_S)
        found = read(node)
        assert (numbers(found), found["damaged"]) == ([0, 1, 2, 3, 4, 5], [])
    with stored_node(tmp_path / "data", url) as node:
        proxy.way = Way.SLOW
        assert numbers(read(node)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("harm", ["gone", "cut", "flipped"])
def test_a_damaged_object_is_told_and_costs_only_what_it_held(
    harm: str,
    url: str,
    proxy: StoreProxy,
    server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def health() -> bytes:
        try:
            answer: bytes = urlopen(f"{node.url}/healthz").read()
        except HTTPError as error:
            answer = error.read()
        return answer

    monkeypatch.setattr(store_cache, "_DAMAGED_S", 0.0)
    with stored_node(tmp_path / "data", url) as node:
        fill(node)
        wait_until_moved(node)
        (key,) = [
            key
            for key in server.keys(f"{tmp_path.name}/node-1/")
            if key.endswith(".zst") and f"/messages/{2:020d}." in key
        ]
        data = server.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        if harm == "gone":
            server.client.delete_object(Bucket=BUCKET, Key=key)
        else:
            bad = data[:20] if harm == "cut" else flipped(data, 20)
            server.client.put_object(Bucket=BUCKET, Key=key, Body=bad)
        found = read(node)
        assert numbers(found) == [0, 1, 3, 4, 5]
        assert found["damaged"], "it is no deletion"
        if harm != "gone":
            assert metric(node, "goq_archive_store_damaged_total") > 0
        assert b"archived messages of orders:0" in health()
        problems = verify_data_dir(RealDisk(), tmp_path / "data").problems
        assert [key in problem for problem in problems] == [True]
        server.client.put_object(Bucket=BUCKET, Key=key, Body=data)
        found = read(node)
        assert (numbers(found), found["damaged"]) == ([0, 1, 2, 3, 4, 5], [])
        assert b"archived messages of orders:0" not in health()


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]


def test_a_store_that_keeps_other_bytes_than_were_sent_gets_no_segment(
    url: str, proxy: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = StoreUpload.append

    def damage(self: StoreUpload, buffers: Sequence[bytes | memoryview]) -> None:
        append(self, [flipped(bytes(each), 0) for each in buffers])

    with stored_node(tmp_path / "data", url) as node, monkeypatch.context() as patch:
        patch.setattr(StoreUpload, "append", damage)
        fill(node)
        eventually(lambda: metric(node, "goq_archive_store_failures_total") > 0, seconds=WAIT_S)
        assert len([name for name in files_here(node) if name.endswith(".zst")]) >= 5
        patch.undo()
        wait_until_moved(node)
    with stored_node(tmp_path / "data", url) as node:
        assert numbers(read(node)) == [0, 1, 2, 3, 4, 5]


def test_every_flipped_byte_of_an_entry_is_named(
    url: str, proxy: StoreProxy, tmp_path: Path
) -> None:
    with stored_node(tmp_path / "data", url) as node:
        fill(node, 2)
        wait_until_moved(node)
    path = next((tmp_path / "data" / "archive").rglob("*.log.stored"))
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(flipped(data, place))
        with pytest.raises(CorruptData, match=re.escape(str(path))):
            read_entry(RealDisk(), path)
    path.write_bytes(data)
    assert read_entry(RealDisk(), path).url == f"{url}/node-1"


def test_a_deleted_topic_takes_its_objects_with_it_even_if_the_store_comes_back_later(
    url: str, proxy: StoreProxy, server: S3Server, tmp_path: Path
) -> None:
    prefix = f"{tmp_path.name}/node-1/"
    with stored_node(tmp_path / "data", url) as node:
        fill(node)
        wait_until_moved(node)
        folder = topic_dir(node.data_dir, TOPIC).name
        server.client.put_object(
            Bucket=BUCKET, Key=f"{prefix}{folder}/0/messages/left.by.a.kill", Body=b"x"
        )
        with Client(node.url) as q:
            q.create_topic("other")
        publish_segments(node, "other", range(3))
        retire(node, "other", archive=True)
        wait_until_moved(node)
        kept = [key for key in server.keys(prefix) if "/other~" in key]
        proxy.go()
        node.call("DELETE", f"/v1/topics/{TOPIC}")
        assert len(server.keys(prefix)) > len(kept)
    proxy.way = Way.OPEN
    with stored_node(tmp_path / "data", url):
        eventually(lambda: server.keys(prefix) == kept, seconds=WAIT_S)
        assert kept


def test_a_damaged_entry_keeps_no_topic_from_being_deleted_and_no_segment_from_expiring(
    url: str, proxy: StoreProxy, server: S3Server, tmp_path: Path
) -> None:
    prefix = f"{tmp_path.name}/node-1/"
    with stored_node(tmp_path / "data", url) as node:
        fill(node)
        wait_until_moved(node)
    entries = sorted((tmp_path / "data" / "archive").rglob("*/messages/*.stored"))
    for path in entries[:2]:
        path.write_bytes(flipped(path.read_bytes(), 40))
    with stored_node(tmp_path / "data", url) as node:
        found = read(node)
        assert numbers(found) == [2, 3, 4, 5]
        assert found["damaged"]
        settings = {"retention.total_bytes": "130KiB"}
        node.call("PATCH", f"/v1/topics/{TOPIC}", {"settings": settings})
        broker = node.node.broker
        assert broker is not None
        node.on_loop(broker.retention_manager.apply)
        eventually(lambda: not any(path.exists() for path in entries[:3]), seconds=WAIT_S)
        node.call("DELETE", f"/v1/topics/{TOPIC}")
        eventually(lambda: server.keys(prefix) == [], seconds=WAIT_S)


def test_total_retention_deletes_archived_segments_everywhere(
    url: str, proxy: StoreProxy, server: S3Server, tmp_path: Path
) -> None:
    prefix = f"{tmp_path.name}/node-1/"
    with stored_node(tmp_path / "data", url) as node:
        fill(node, 8)
        wait_until_moved(node)
        many = len(server.keys(prefix))
        node.call("PATCH", f"/v1/topics/{TOPIC}", {"settings": {"retention.total_bytes": "130KiB"}})
        broker = node.node.broker
        assert broker is not None
        node.on_loop(broker.retention_manager.apply)
        assert numbers(read(node)) == [5, 6, 7]
        eventually(lambda: len(server.keys(prefix)) < many / 2, seconds=WAIT_S)
        node.clock.ahead_ms += 3_600_000
        settings = {"retention.total_bytes": None, "retention.total_age": "30m"}
        node.call("PATCH", f"/v1/topics/{TOPIC}", {"settings": settings})
        node.on_loop(broker.retention_manager.apply)
        eventually(
            lambda: not [k for k in server.keys(prefix) if "/messages/" in k], seconds=WAIT_S
        )
        assert numbers(read(node)) == [7]
        archived = node.call("GET", f"/v1/topics/{TOPIC}").get("archived", {})
        assert archived.get("messages", 0) == 0
    with stored_node(tmp_path / "data", url) as node:
        assert numbers(read(node)) == [7], "what has expired does not come back"


def test_a_backup_has_what_is_in_the_store_and_copies_it_once(
    url: str, proxy: StoreProxy, tmp_path: Path
) -> None:
    with stored_node(tmp_path / "data", url) as node:
        fill(node)
        before = read(node)
        place = tmp_path / "place"
    first = back_up_folder(RealDisk(), tmp_path / "data", place, time.time_ns() // 1000)
    with stored_node(tmp_path / "data", url) as node:
        wait_until_moved(node)
    second = back_up_folder(RealDisk(), tmp_path / "data", place, time.time_ns() // 1000)
    assert second.bytes >= first.bytes > 0
    assert second.copied_bytes == 0
    other = tmp_path / "other"
    assert back_up_folder(RealDisk(), tmp_path / "data", other, time.time_ns() // 1000).copied_bytes
    for number, each in enumerate((place, other)):
        new = tmp_path / f"new{number}"
        restore(open_place(RealDisk(), each), new, RestoreOrder(), time.time_ns() // 1000)
        with running_node(new) as node:
            assert read(node)["messages"] == before["messages"]


def test_a_backup_has_what_moves_to_the_store_while_it_copies_other_files(
    url: str, proxy: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with running_node(data, defaults={"topic": {"partitions": 1}}) as node:
        fill(node)
        before = read(node)

    def list_then_move(disk: RealDisk, directory: Path) -> list[PlannedFile]:
        found = list_archived_files(disk, directory)
        move_to_store(data / "archive", directory, url)
        return found

    monkeypatch.setattr(data_dir_source, "list_archived_files", list_then_move)
    back_up_folder(RealDisk(), data, tmp_path / "place", time.time_ns() // 1000)
    assert not list((data / "archive").rglob("*.zst"))
    new = tmp_path / "new"
    restore(open_place(RealDisk(), tmp_path / "place"), new, RestoreOrder(), time.time_ns() // 1000)
    with running_node(new) as node:
        assert read(node)["messages"] == before["messages"]


def move_to_store(root: Path, directory: Path, url: str) -> None:
    """Move the archived segments of a log, as a running node does."""
    disk = TieredDisk(RealDisk(), StoreCache(RealDisk(), root.with_name("cache"), 2**20))
    with ThreadPoolExecutor(1) as executor:
        uploader = ArchiveUploader(root, disk, url, executor)
        for path in directory.glob("*.zst"):
            uploader.add(ArchiveRow("t", 0, directory.name, 0, 1, 1, 1, 1, 1, 1, 1), path)
        asyncio.run(uploader.run_once())


def test_a_backup_fails_and_names_the_object_if_the_store_has_lost_one(
    url: str, proxy: StoreProxy, server: S3Server, tmp_path: Path
) -> None:
    with stored_node(tmp_path / "data", url) as node:
        fill(node, 3)
        wait_until_moved(node)
    (key, *_) = [key for key in server.keys(f"{tmp_path.name}/node-1/") if key.endswith(".zst")]
    server.client.delete_object(Bucket=BUCKET, Key=key)
    with pytest.raises(CorruptData, match=re.escape(key)):
        back_up_folder(RealDisk(), tmp_path / "data", tmp_path / "place", time.time_ns() // 1000)


def test_one_read_at_a_time_fetches_an_object_for_all_that_wait(
    url: str, proxy: StoreProxy, tmp_path: Path
) -> None:
    with stored_node(tmp_path / "data", url) as node:
        fill(node)
        wait_until_moved(node)
        proxy.way = Way.SLOW
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: numbers(read(node)), range(8)))
        assert found == [[0, 1, 2, 3, 4, 5]] * 8
        folder = node.data_dir / "archive.cache"
        assert len(list(folder.iterdir())) <= 6 * 5
        assert value_of(0).startswith(b"0")
