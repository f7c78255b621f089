"""A running node backs itself up, while clients publish and settle."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import goq
from goq.backup import node_source
from goq.backup.inspection import verify_place
from goq.backup.node_backups import configured_place
from goq.backup.place import BackupPlace
from goq.backup.planned_files import PlannedFile, PlannedPartition
from goq.backup.restore import RestoreOrder, restore
from goq.client import Client
from goq.config.backup import BackupConfig
from goq.errors import InvalidInput, Unavailable, UsageError
from goq.storage.disk import RealDisk
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node
from tests.support.storage.backup_source import SETTINGS, dead_letter_count, fill, view, view_of

NEWEST = RestoreOrder()
WAIT_S = 60
DAY_MS = 86_400_000


def settings(folder: Path, **more: str) -> dict[str, object]:
    return SETTINGS | {"backup.to": folder} | {f"backup.{k}": v for k, v in more.items()}


def restored(folder: Path, data_dir: Path) -> Path:
    restore(BackupPlace(RealDisk(), folder), data_dir, NEWEST, time.time_ns() // 1000)
    return data_dir


def metrics(node: goq.Node) -> str:
    text: str = urlopen(f"{node.url}/metrics").read().decode()
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "place"


@pytest.fixture
def running(tmp_path: Path, folder: Path) -> Iterator[goq.Node]:
    with goq.Node(tmp_path / "data", settings=settings(folder)) as node:
        yield node


@pytest.fixture
def q(running: goq.Node) -> Iterator[Client]:
    with running.client() as client:
        yield client


def test_a_backup_of_a_running_node_has_all_that_clients_were_told(
    q: Client, tmp_path: Path, folder: Path
) -> None:
    fill(q)
    before = view(q)
    done = q.create_backup()
    assert (done.topics, done.copied_bytes) == (3, done.bytes)
    q.publish("payments", b"after")
    assert view_of(restored(folder, tmp_path / "new")) == before


def test_a_second_backup_copies_what_is_new(q: Client, tmp_path: Path, folder: Path) -> None:
    fill(q)
    first, again = q.create_backup(), q.create_backup(str(folder))
    assert (first.bytes, again.copied_bytes) == (again.bytes, 0)
    q.publish("payments", b"d")
    before = view(q)
    third = q.create_backup()
    assert 0 < third.copied_bytes < first.bytes / 4
    assert view_of(restored(folder, tmp_path / "new")) == before
    assert verify_place(BackupPlace(RealDisk(), folder)).problems == []


def test_what_was_acknowledged_before_a_backup_under_load_began_is_in_it(
    q: Client, tmp_path: Path, folder: Path
) -> None:
    q.create_topic("orders", partitions=2, settings={"segment.bytes": "64KiB"})
    published: list[int] = []
    acked: list[str] = []
    is_over = threading.Event()

    def publish() -> None:
        number = 0
        while not is_over.is_set():
            q.publish("orders", b"%d" % number + bytes(2000), key=f"k{number}")
            published.append(number)
            number += 1

    def settle() -> None:
        while not is_over.is_set():
            for message in q.receive("orders", "g", max_messages=5, wait="100ms"):
                message.ack()
                acked.append(str(message.id))

    threads = [threading.Thread(target=work) for work in (publish, settle)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: len(published) > 50 and len(acked) > 20, seconds=WAIT_S)
        told, settled = len(published), list(acked)
        q.create_backup()
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    with goq.Node(restored(folder, tmp_path / "new")) as node, node.client() as new:
        values = {int((m.value or b"").rstrip(b"\0")) for m in new.read_log("orders")}
        assert values >= set(range(told))
        again = set()
        while messages := new.receive("orders", "g", max_messages=100, visibility="1h"):
            again |= {str(message.id) for message in messages}
            for message in messages:
                message.ack()
        assert not again & set(settled)


def test_a_segment_that_goes_meanwhile_makes_the_partition_be_planned_again(
    q: Client, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(q)
    before = view(q)
    real, failed = node_source.plan_partition, list[int]()

    def planned(*arguments: object) -> object:
        plan = real(*arguments)
        if len(failed) < 3:
            failed.append(plan.number)
            gone = plan.messages.files[0]._replace(path=Path("/no/such/segment"))
            return plan._replace(messages=plan.messages._replace(files=[gone]))
        return plan

    monkeypatch.setattr(node_source, "plan_partition", planned)
    q.create_backup()
    assert len(failed) == 3
    assert view_of(restored(folder, tmp_path / "new")) == before


def test_a_backup_ends_though_a_segment_of_each_partition_goes_before_it_is_copied(
    q: Client, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_source, "PLAN_TRIES", 3)
    q.create_topic("orders", partitions=8)
    for number in range(8):
        q.publish("orders", b"%d" % number, partition=number)
    real, gone = node_source.plan_partition, set[int]()

    def planned(*arguments: object) -> object:
        plan = real(*arguments)
        return plan._replace(messages=plan.messages._replace(list_archived=partial(lost, plan)))

    def lost(plan: PlannedPartition) -> Sequence[PlannedFile]:
        if plan.number not in gone:
            gone.add(plan.number)
            raise FileNotFoundError
        return plan.messages.list_archived()

    monkeypatch.setattr(node_source, "plan_partition", planned)
    q.create_backup()
    assert gone == set(range(8))
    with (
        goq.Node(restored(folder, tmp_path / "new"), settings=SETTINGS) as node,
        node.client() as q,
    ):
        values = {(m.partition, m.value) for m in q.read_log("orders")}
    assert values == {(number, b"%d" % number) for number in range(8)}


@pytest.mark.parametrize("turnover", [False, True])
def test_what_retention_deletes_meanwhile_is_left_out_and_the_rest_is_backed_up(
    running: goq.Node,
    q: Client,
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    turnover: bool,
) -> None:
    monkeypatch.setattr(node_source, "PLAN_TRIES", 2)
    q.create_topic("orders", partitions=1)
    q.create_topic("other", partitions=1)
    q.publish("other", b"kept")
    on_loop, broker = running._thread.call, running._thread._server.broker
    assert broker is not None
    partition = broker.topic("orders").partitions[0]

    def publish_segment(name: str) -> None:
        q.publish("orders", name.encode())
        on_loop(partition.trimmer.roll)

    for number in range(4):
        publish_segment(f"before {number}")
    for message in q.receive("orders", "g", max_messages=3):
        message.ack()
    plan_partition, real, plans = node_source.plan_partition, node_source._advance, [False]

    def planned(*arguments: Any) -> Any:
        plans.append(True)
        return plan_partition(*arguments)

    def advance(copying: Any, step_s: float) -> Any:  # everything is planned by now
        if plans[-1]:
            plans.append(False)
            publish_segment("after")
            ends = partition.log_end_offset, partition.log_start_offset + 1
            on_loop(partial(partition.trimmer.trim, ends[0] if turnover else ends[1]))
        return real(copying, step_s)

    monkeypatch.setattr(node_source, "plan_partition", planned)
    monkeypatch.setattr(node_source, "_advance", advance)
    q.create_backup()
    with (
        goq.Node(restored(folder, tmp_path / "new"), settings=SETTINGS) as node,
        node.client() as new,
    ):
        assert [m.value for m in new.read_log("other")] == [b"kept"]
        left = [m.value for m in new.read_log("orders")]
        assert left == ([] if turnover else [b"before 1", b"before 2", b"before 3"])
        group = new.describe_group("orders", "g")
        assert group.lag == (0 if turnover else 1)
        new.publish("orders", b"new")
        received = [m.value for m in new.receive("orders", "g", max_messages=9)]
        assert received == [*left[2:], b"new"]


def test_a_message_that_moves_between_topics_meanwhile_is_not_lost(
    q: Client, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_topic("jobs", partitions=1)
    q.publish("jobs", b"1")
    q.receive("jobs", "g")[0].reject("broken")
    eventually(lambda: dead_letter_count(q, "jobs") == 1, seconds=WAIT_S)
    real, moved = node_source._advance, list[bool]()

    def advance(copying: Any, step_s: float) -> Any:  # the first topic is planned by now
        if not moved:
            moved.append(True)
            q.redrive_dead_letters("jobs")
            eventually(lambda: len(list(q.read_log("jobs"))) == 2, seconds=WAIT_S)
        return real(copying, step_s)

    monkeypatch.setattr(node_source, "_advance", advance)
    q.create_backup()
    with (
        goq.Node(restored(folder, tmp_path / "new"), settings=SETTINGS) as node,
        node.client() as q,
    ):
        assert dead_letter_count(q, "jobs") == 1
        assert len(list(q.read_log("jobs"))) == 1


def test_topics_may_be_deleted_and_get_partitions_meanwhile(
    q: Client, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(q)
    before = view(q, ["orders"])
    real, changed = node_source._advance, list[bool]()

    def advance(
        copying: Any, step_s: float
    ) -> Any:  # in a thread of its own, while the node serves
        if not changed:
            changed.append(True)
            q.alter_topic("orders", partitions=5)
            q.delete_topic("payments")
        return real(copying, step_s)

    monkeypatch.setattr(node_source, "_advance", advance)
    assert q.create_backup().topics == 2
    assert verify_place(BackupPlace(RealDisk(), folder)).problems == []
    assert view_of(restored(folder, tmp_path / "new"), ["orders"]) == before


def test_a_request_cannot_name_another_folder(q: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="backs up to"):
        q.create_backup(str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()


def test_a_node_without_a_folder_says_which_setting_it_lacks() -> None:
    refused = pytest.raises(InvalidInput, match=r"backup\.to")
    with goq.Node.temporary() as node, node.client() as q, refused:
        q.create_backup()


def test_a_place_in_the_data_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contain each other"):
        goq.Node(tmp_path / "data", settings=settings(tmp_path / "data" / "place"))


def test_a_failed_backup_is_told_with_its_reason(
    q: Client, running: goq.Node, folder: Path
) -> None:
    folder.mkdir()
    (folder / "objects").write_bytes(b"in the way")
    with pytest.raises(Unavailable, match="no backup"):
        q.create_backup()
    assert "goq_backup_failures_total 1.0" in metrics(running)


def test_a_node_backs_itself_up_and_removes_old_backups(tmp_path: Path, folder: Path) -> None:
    place = BackupPlace(RealDisk(), folder)
    every = settings(folder, every="1s", keep="1s")
    with goq.Node(tmp_path / "data", settings=every) as node, node.client() as q:
        q.publish("orders", b"1")
        eventually(place.names, seconds=WAIT_S)
        first = place.names()[0]
        eventually(lambda: first not in place.names(), seconds=WAIT_S)
        assert 1 <= len(place.names()) <= 3
    assert view_of(restored(folder, tmp_path / "new"), ["orders"])["orders"][1]


def test_a_restart_does_not_begin_the_schedule_anew(tmp_path: Path, folder: Path) -> None:
    place = BackupPlace(RealDisk(), folder)
    hourly = settings(folder, every="1h")
    with goq.Node(tmp_path / "data", settings=hourly) as node, node.client() as q:
        eventually(place.names, seconds=WAIT_S)
        (first,) = place.names()
    with goq.Node(tmp_path / "data", settings=hourly) as node, node.client() as q:
        q.create_topic("orders")  # the schedule has begun before the node answers
        status = json.loads(urlopen(f"{node.url}/v1/backups").read())
    assert "running" not in status
    assert "last" not in status
    assert place.names() == [first]


def test_the_age_of_the_newest_backup_is_a_metric(q: Client, running: goq.Node) -> None:
    assert "\ngoq_backup_age_seconds " not in metrics(running)
    q.create_backup()
    found = re.findall(r"^goq_backup_age_seconds (\S+)", metrics(running), re.MULTILINE)
    assert 0 <= float(found[0]) < WAIT_S


def test_a_place_with_a_null_character_is_another_place(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="another place"):
        configured_place(BackupConfig(to=tmp_path), f"{tmp_path}\0")


def times_of(place: BackupPlace) -> list[int]:
    return [each.manifest.time_us for each in place.all() if each.manifest is not None]


def set_ahead(node: RunningNode, ahead_ms: int) -> None:
    node.clock.ahead_ms = node.clock.jumped_ms = ahead_ms


def test_a_node_backs_itself_up_again_when_a_clock_that_was_ahead_is_set_right(
    tmp_path: Path, folder: Path
) -> None:
    place, backup = BackupPlace(RealDisk(), folder), {"to": str(folder), "every": "1s"}
    with running_node(tmp_path / "data", backup=backup) as node:
        set_ahead(node, 400 * DAY_MS)
        later_us = time.time_ns() // 1000 + 300 * DAY_MS * 1000
        eventually(lambda: max(times_of(place), default=0) > later_us, seconds=WAIT_S)
        set_ahead(node, 0)
        right_us = time.time_ns() // 1000
        eventually(lambda: any(right_us < t < later_us for t in times_of(place)), seconds=WAIT_S)
    with pytest.raises(InvalidInput, match="choose one with --backup 2"):
        restored(folder, tmp_path / "new")


def test_a_clock_that_jumps_ahead_removes_no_backups(tmp_path: Path, folder: Path) -> None:
    place = BackupPlace(RealDisk(), folder)
    backup = {"to": str(folder), "every": "1s", "keep": "1d"}
    with running_node(tmp_path / "data", backup=backup) as node:
        eventually(lambda: len(place.names()) >= 2, seconds=WAIT_S)
        before, later_us = place.names(), time.time_ns() // 1000 + 300 * DAY_MS * 1000
        set_ahead(node, 400 * DAY_MS)
        eventually(lambda: sum(t > later_us for t in times_of(place)) >= 2, seconds=WAIT_S)
        assert place.names()[: len(before)] == before
