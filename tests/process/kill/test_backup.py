"""Backup, prune and restore processes, and nodes that back up and restore, killed at any moment.

After each kill the place is verified whole. A later backup and a restore give all that was
confirmed before that backup began.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

import httpx
import pytest

import goq
from goq.backup.backup import back_up_folder
from goq.backup.inspection import prune_place, verify_place
from goq.backup.place import BackupPlace
from goq.backup.restore import RestoreOrder, restore
from goq.client import Client
from goq.storage.disk import RealDisk
from goq.storage.verification import verify_data_dir
from tests.support.cli.forked_goq import start_goq
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess, clean_environment

SEED = int(os.environ.get("GOQ_KILL_SEED") or random.SystemRandom().getrandbits(32))
NEWEST = RestoreOrder()
SETTINGS = {"segment.bytes": "64KiB", "retention.bytes": "128KiB", "archive": True}
WAIT_S = 60.0
ROUNDS = [2, pytest.param(40, marks=pytest.mark.long)]


def publish(client: Client, count: int, said: list[bytes]) -> None:
    for _ in range(count):
        value = (b"%d " % len(said)).ljust(20_000, b"x")
        client.publish("orders", value, key=b"k%d" % len(said))
        said.append(value)


def verified(folder: Path) -> BackupPlace:
    place = BackupPlace(RealDisk(), folder)
    assert place.names(), f"seed {SEED}"
    assert verify_place(place).problems == [], f"seed {SEED}"
    return place


def all_values(url: str) -> list[bytes]:
    """Return the values of the topic, archived ones too."""
    found: list[bytes] = []
    end = 1
    while len(found) < end:
        query: dict[str, str | int] = {
            "partition": 0,
            "include_deleted": "true",
            "offset": len(found),
            "limit": 200,
        }
        answer = httpx.get(f"{url}/v1/topics/orders/messages", params=query, timeout=30).json()
        assert [m["offset"] for m in answer["messages"]][:1] == [len(found)], answer["damaged"]
        found += [m["value"].encode() for m in answer["messages"]]
        end = answer["end"]
    return found


def check_restored(folder: Path, data_dir: Path, said: list[bytes]) -> None:
    """Restore the newest backup; compare all of its messages, then remove it."""
    restore(verified(folder), data_dir, NEWEST, time.time_ns() // 1000)
    assert verify_data_dir(RealDisk(), data_dir).is_sound, f"seed {SEED}"
    with goq.Node(data_dir) as node:
        found = all_values(node.url)
    assert found[: len(said)] == said, (
        f"seed {SEED}: {len(said)} were confirmed, {len(found)} are there"
    )
    rmtree(data_dir)


def kill_at_some_moment(chance: random.Random, words: Sequence[str], home: Path, s: float) -> bool:
    """Run ``goq`` and kill it within so many seconds; return whether it had not ended."""
    process = start_goq(
        [*words],
        env=clean_environment(home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        code = process.wait(chance.random() * s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    assert code == 0, f"seed {SEED}: {words}"
    return False


@pytest.mark.parametrize("rounds", ROUNDS)
def test_killed_commands_leave_whole_backups(rounds: int, tmp_path: Path) -> None:
    chance, said = random.Random(SEED), list[bytes]()
    data, folder, new = tmp_path / "data", tmp_path / "place", tmp_path / "new"
    back_up = ["backup", "--data-dir", str(data), "--to", str(folder)]
    for number in range(rounds):
        with goq.Node(data) as node, node.client() as client:
            if not number:
                client.create_topic("orders", 1, settings=SETTINGS)
            publish(client, 20, said)
        if not number:
            back_up_folder(RealDisk(), data, folder, time.time_ns() // 1000)
        kill_at_some_moment(chance, back_up, tmp_path, 1.0)
        prune = ["backup", "prune", str(folder), "--keep", "0s"]
        kill_at_some_moment(chance, prune, tmp_path, 1.0)
        verified(folder)
        kill_at_some_moment(chance, ["restore", str(folder), "--data-dir", str(new)], tmp_path, 1.0)
        if new.exists():
            rmtree(new)
        back_up_folder(RealDisk(), data, folder, time.time_ns() // 1000)
        check_restored(folder, new, said)
    prune_place(BackupPlace(RealDisk(), folder), time.time_ns() // 1000)
    check_restored(folder, new, said)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_node_killed_while_it_backs_itself_up_leaves_whole_backups(
    rounds: int, tmp_path: Path
) -> None:
    chance, said = random.Random(SEED), list[bytes]()
    folder = tmp_path / "place"

    def copied() -> int:
        return len(list((folder / "objects").iterdir()))

    def wait_for_more(than: int) -> None:
        eventually(lambda: copied() > than, "it copies", seconds=WAIT_S)

    settings = [f"backup.to={folder}"]
    with (
        NodeProcess(tmp_path / "data", settings=settings) as node,
        Client(node.url, timeout="5s", retries="20s") as client,
    ):
        client.create_topic("orders", 1, settings=SETTINGS)
        for _ in range(rounds):
            publish(client, 20, said)
            client.create_backup()
            confirmed = list(said)
            publish(client, 20, said)
            objects = copied()
            command = start_goq(
                ["backup", "--server", node.url],
                env=clean_environment(tmp_path),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            wait_for_more(objects)
            threading.Event().wait(chance.random() * 0.02)
            node.kill()
            command.kill()
            command.wait()
            check_restored(folder, tmp_path / "new", confirmed)
            node.start()
        client.create_backup()
        assert node.stop() == 0
    check_restored(folder, tmp_path / "new", said)


@pytest.mark.long
def test_a_node_killed_while_it_restores_a_topic_has_all_of_it_or_nothing(tmp_path: Path) -> None:
    chance, count = random.Random(SEED), 20_000
    data, settings = tmp_path / "data", [f"backup.to={tmp_path / 'place'}"]
    with (
        NodeProcess(data, settings=settings) as node,
        Client(node.url, timeout="5s", retries="20s") as client,
    ):
        client.create_topic("orders", 2, settings={"segment.bytes": "256KiB"})
        for _ in range(count // 500):
            client.publish_many("orders", [os.urandom(1000) for _ in range(500)])
        for message in client.receive("orders", "g", max_messages=100):
            message.ack()
        client.create_backup()
        lag = client.describe_group("orders", "g").lag
        began_s = time.monotonic()
        client.restore_topic("orders", "first")
        took_s = time.monotonic() - began_s
        for number in range(20):
            name = f"old{number}"
            command = start_goq(
                ["restore", str(tmp_path / "place"), "--topic", f"orders={name}"],
                env=clean_environment(tmp_path) | {"GOQ_SERVER": node.url},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            threading.Event().wait(chance.random() * (took_s + 1.0))
            node.kill()
            command.kill()
            command.wait()
            node.start()
            eventually(lambda: not RealDisk().names(data / "restoring"), seconds=WAIT_S)
            is_there = name in {topic.name for topic in client.list_topics()}
            if is_there:
                ends = [each.end_offset for each in client.describe_topic(name).partitions]
                assert sum(ends) == count, f"seed {SEED}"
                assert client.describe_group(name, "g").lag == lag, f"seed {SEED}"
            folders = [each for each in RealDisk().names(data / "topics") if f"{name}~" in each]
            assert len(folders) == is_there, f"seed {SEED}"
        assert node.stop() == 0
    assert verify_data_dir(RealDisk(), data).is_sound
