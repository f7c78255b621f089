"""Schedules after a restore: as they were, and no time is missed or published twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from goq.backup.backup import back_up_folder
from goq.backup.place import BackupPlace
from goq.backup.restore import RestoreOrder, RestoreResult, restore
from goq.client import Client
from goq.storage.disk import RealDisk
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node

HOUR_MS = 3_600_000
Restore = Callable[..., RestoreResult]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "place"


@pytest.fixture
def restored(tmp_path: Path, place: Path) -> Restore:
    def run(order: RestoreOrder) -> RestoreResult:
        now_us = time.time_ns() // 1000 + HOUR_MS * 1000  # no earlier than that of the backup
        return restore(BackupPlace(RealDisk(), place), tmp_path / "new", order, now_us)

    return run


def back_up(tmp_path: Path, place: Path) -> None:
    back_up_folder(RealDisk(), tmp_path / "data", place, time.time_ns() // 1000)


def pass_hours(node: RunningNode, hours: int) -> None:
    node.clock.ahead_ms += hours * HOUR_MS
    assert node.node.app is not None
    node.on_loop(node.node.app.schedules.wake)


def values(client: Client, topic: str) -> list[bytes | None]:
    return [message.value for message in client.read_log(topic)]


def create(client: Client) -> None:
    client.create_topic("orders")
    client.create_schedule("hourly", "orders", "v", every="1h", key="k")
    client.create_schedule("later", "orders", "x", cron="0 9 * * *", tz="Europe/Zurich")
    client.pause_schedule("later")


@pytest.mark.parametrize("is_running", [False, True])
def test_a_restored_schedule_goes_on_where_the_backup_was(
    tmp_path: Path, place: Path, restored: Restore, is_running: bool
) -> None:
    backup = {"backup": {"to": str(place)}}
    with running_node(tmp_path / "data", **backup) as node, Client(node.url) as client:
        create(client)
        pass_hours(node, 1)
        eventually(lambda: client.describe_schedule("hourly").last)
        if is_running:
            client.create_backup()
        before = client.list_schedules()
    if not is_running:
        back_up(tmp_path, place)
    assert restored(RestoreOrder()).schedules == 2
    with running_node(tmp_path / "new") as node, Client(node.url) as client:
        pass_hours(node, 1)  # the clock is that of the machine again: it is as late as before
        assert client.list_schedules() == before
        assert values(client, "orders") == [b"v"]
        pass_hours(node, 1)
        eventually(lambda: len(values(client, "orders")) == 2)
        assert client.describe_schedule("later").last is None


def test_a_topic_takes_its_schedules_along_under_its_new_name(
    tmp_path: Path, place: Path, restored: Restore
) -> None:
    with running_node(tmp_path / "data") as node, Client(node.url) as client:
        create(client)
        client.create_topic("other")
        client.create_schedule("else", "other", "v", every="1h")
    back_up(tmp_path, place)
    assert restored(RestoreOrder(topics={"orders": "copy"})).schedules == 2
    with running_node(tmp_path / "new") as node, Client(node.url) as client:
        assert {each.name: each.topic for each in client.list_schedules()} == {
            "hourly": "copy",
            "later": "copy",
        }
        pass_hours(node, 1)
        eventually(lambda: values(client, "copy") == [b"v"])


def test_a_moment_knows_no_later_schedules_and_no_later_runs(
    tmp_path: Path, place: Path, restored: Restore
) -> None:
    with running_node(tmp_path / "data") as node, Client(node.url) as client:
        create(client)
        moment_us = time.time_ns() // 1000
        eventually(lambda: time.time_ns() // 1_000_000 > moment_us // 1000)
        client.create_schedule("new", "orders", "n", every="1h")
        client.resume_schedule("later")
        client.pause_schedule("hourly")
    back_up(tmp_path, place)
    assert restored(RestoreOrder(at_us=moment_us)).schedules == 2
    with running_node(tmp_path / "new") as node, Client(node.url) as client:
        assert [each.name for each in client.list_schedules()] == ["hourly", "later"]
        assert client.describe_schedule("hourly").paused is None
