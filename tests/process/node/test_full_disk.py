"""A node whose disk is full starts, deletes, changes settings, and relays what others lead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from goq import limits
from tests.support.cluster.process_cluster import NAMES, ProcessCluster, process_nodes
from tests.support.effort import first_of
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess
from tests.support.node.small_disk import SmallDisk, needed_disk

DISK_MIB = 96
FILES = 60
VALUE = "x" * 400_000
BIG_MESSAGES = 60
"""Together more than the room that the node wants before it takes messages again."""
WAIT_S = 60.0
WRITERS = 12
CONSUMERS = 4
FULL = "storage_full"
Disked = tuple[NodeProcess, SmallDisk]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Disked]:
    """Run a node on a small disk, with the topics ``big`` and ``kept``."""
    folder = tmp_path / "data"
    with needed_disk(folder, DISK_MIB) as disk, NodeProcess(folder) as node:
        for name in ("big", "kept"):
            node.call("POST", "/v1/topics", {"name": name, "partitions": 1})
        for _ in range(BIG_MESSAGES):
            assert publish(node, "big").status == 200
        assert publish(node, "kept").status == 200
        eventually(lambda: (folder / "reserve").exists(), "the reserve is made", seconds=WAIT_S)
        yield node, disk


def publish(node: NodeProcess, topic: str, partition: int = 0) -> object:
    body = {"messages": [{"value": VALUE, "partition": partition}]}
    return node.request("POST", f"/v1/topics/{topic}/messages", body)


def publish_until_taken(node: NodeProcess) -> bool:
    """Send one message after the other; return whether one was taken at last."""
    # a partition that is not open yet is looked at a minute later
    eventually(lambda: publish(node, "t").status == 200, "it has room", seconds=2 * WAIT_S + 30)
    return True


def consume_until(node: NodeProcess, is_over: Event) -> None:
    """Receive and receive, whatever the node answers."""
    while not is_over.wait(0.05):
        node.request("POST", "/v1/topics/t/groups/g/receive", {"wait": "1s", "visibility": "1s"})


def health(node: NodeProcess) -> tuple[int, str]:
    answer = node.request("GET", "/healthz")
    return answer.status, answer.json.get("disk", "")


def metric(node: NodeProcess, name: str) -> float:
    lines = node.request("GET", "/metrics").body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_a_node_on_a_full_disk_deletes_and_changes_settings_and_tells(node: Disked) -> None:
    process, disk = node
    group = "/v1/topics/kept/groups/g"
    assert process.request("POST", f"{group}/receive", {}).status == 200
    disk.fill()
    answer = publish(process, "kept")
    assert (answer.status, answer.json["code"]) == (507, FULL)
    eventually(lambda: health(process) == (503, "full"), "it is told", seconds=WAIT_S)
    assert metric(process, "goq_disk_full") == 1
    settings = {"settings": {"retention.age": "1h"}}
    for _ in range(50):
        assert process.request("PATCH", "/v1/topics/kept", settings).status == 200
    assert publish(process, "kept").json["code"] == FULL, "the reserve is not for messages"
    assert process.request("POST", f"{group}/receive", {}).json["code"] == FULL
    assert process.request("DELETE", group).status == 204
    assert process.request("DELETE", "/v1/topics/big").status == 204
    eventually(lambda: health(process)[0] == 200, "the delete makes room", seconds=WAIT_S)
    assert publish(process, "kept").status == 200
    disk.give_back()
    eventually(lambda: health(process) == (200, ""), "there is room", seconds=WAIT_S)
    assert publish(process, "kept").status == 200
    assert metric(process, "goq_disk_full") == 0
    assert metric(process, "goq_disk_free_bytes") > 0
    log = process.log_text(100_000)
    assert len(re.findall("the disk of .* is full", log)) == 1
    assert log.count("has room again") == 1
    assert (process.folder / "reserve").exists()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_shorter_retention_frees_room_on_a_full_disk(tmp_path: Path, restarts: bool) -> None:
    folder = tmp_path / "data"
    with needed_disk(folder, DISK_MIB) as disk, NodeProcess(folder) as process:
        settings = {"segment.bytes": "1MiB"}
        process.call("POST", "/v1/topics", {"name": "t", "partitions": 1, "settings": settings})
        for _ in range(BIG_MESSAGES):
            assert publish(process, "t").status == 200
        eventually(lambda: (folder / "reserve").exists(), "the reserve is made", seconds=WAIT_S)
        disk.fill()
        assert publish(process, "t").json["code"] == FULL
        eventually(lambda: health(process) == (503, "full"), "it is told", seconds=WAIT_S)
        if restarts:
            process.kill()
            process.start()
        shorter = {"settings": {"retention.bytes": "1MiB"}}
        is_over = Event()
        with ThreadPoolExecutor(WRITERS + CONSUMERS) as clients:  # each goes on on a full disk
            consuming = [clients.submit(consume_until, process, is_over) for _ in range(CONSUMERS)]
            refused = [clients.submit(publish_until_taken, process) for _ in range(WRITERS)]
            assert process.request("PATCH", "/v1/topics/t", shorter).status == 200
            wait(refused)
            is_over.set()
            wait(consuming)
        assert [each.result() for each in refused] == [True] * WRITERS
        assert health(process)[0] == 200
        eventually(
            lambda: log_bytes(folder) < 8 * limits.MIB,
            "the files of what was deleted are gone",
            seconds=WAIT_S,
        )


def log_bytes(folder: Path) -> int:
    """Return the size of the messages' segments; retention may remove some meanwhile."""
    total = 0
    for each in folder.glob("topics/*/0/messages/*.log"):
        with suppress(FileNotFoundError):
            total += each.stat().st_size
    return total


@pytest.mark.parametrize("left_bytes", first_of([4096, 0, 100_000], quick=1))
def test_a_node_starts_on_a_full_disk_and_frees_room(node: Disked, left_bytes: int) -> None:
    process, disk = node
    disk.fill(left_bytes)
    process.kill()
    disk.fill(left_bytes)
    process.start()
    read = process.request("GET", "/v1/topics/kept/messages?partition=0").json
    assert len(read["messages"]) == 1
    assert process.stop() == 0
    process.start()
    assert process.request("DELETE", "/v1/topics/big").status == 204
    eventually(lambda: health(process)[0] == 200, "the delete makes room", seconds=WAIT_S)
    assert publish(process, "kept").status == 200


@pytest.mark.parametrize("has_caches", [True, False])
def test_a_node_without_a_reserve_starts_out_of_its_caches_or_says_what_to_do(
    node: Disked, has_caches: bool
) -> None:
    process, disk = node
    [log] = process.folder.glob("topics/kept*/0/messages/*.log")
    log.with_suffix(".keys").write_bytes(bytes(2 * limits.MIB))
    process.kill()
    if not has_caches:
        log.with_suffix(".keys").unlink()
    (process.folder / "reserve").unlink()
    disk.fill()
    if not has_caches:
        process.launch()
        assert process.process is not None
        assert process.process.wait(WAIT_S) == 5
        assert "a start needs 1 MiB" in process.log_text()
        disk.give_back()
        disk.fill(limits.MIB)
    process.start()
    read = process.request("GET", "/v1/topics/kept/messages?partition=0").json
    assert len(read["messages"]) == 1
    assert publish(process, "kept").json["code"] == FULL
    assert process.request("DELETE", "/v1/topics/big").status == 204
    eventually(lambda: health(process)[0] == 200, "the delete makes room", seconds=WAIT_S)
    assert publish(process, "kept").status == 200


def test_a_nearly_full_disk_is_told_and_takes_messages(node: Disked) -> None:
    process, disk = node
    disk.fill(3 * 1024 * 1024)
    eventually(lambda: health(process) == (200, "nearly full"), "it is told", seconds=WAIT_S)
    assert publish(process, "kept").status == 200
    assert "is nearly full" in process.log_text()


def test_a_disk_that_takes_no_more_files_is_told_and_emptied_by_a_delete(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with needed_disk(folder, DISK_MIB, FILES) as disk, NodeProcess(folder) as process:
        settings = {"segment.bytes": "64KiB"}
        process.call("POST", "/v1/topics", {"name": "t", "partitions": 1, "settings": settings})
        eventually(lambda: (folder / "reserve").exists(), "the reserve is made", seconds=WAIT_S)
        eventually(lambda: publish(process, "t").status == 507, "it is full", seconds=WAIT_S)
        assert disk.free_bytes() > DISK_MIB * limits.MIB // 2
        eventually(lambda: health(process) == (503, "full"), "it is told", seconds=WAIT_S)
        assert "is full" in process.log_text()
        assert publish(process, "t").json["code"] == FULL
        assert process.request("DELETE", "/v1/topics/t").status == 204
        eventually(lambda: health(process) == (200, ""), "the delete makes room", seconds=WAIT_S)


@pytest.mark.long
def test_a_node_of_a_cluster_with_a_full_disk_follows_and_relays(tmp_path: Path) -> None:
    with (
        needed_disk(tmp_path / "n3", DISK_MIB) as disk,
        process_nodes(tmp_path) as nodes,
    ):
        cluster, full = ProcessCluster(nodes), nodes["n3"]
        cluster.start_the_dead()
        cluster.create("t", 6)
        eventually(lambda: (full.folder / "reserve").exists(), "the reserve", seconds=WAIT_S)
        disk.fill()
        eventually(
            lambda: "n3" not in cluster.leaders("t").values(), "others lead all", seconds=WAIT_S
        )
        for number in range(30):
            nodes["n1"].call("POST", "/v1/topics", {"name": f"new{number}", "partitions": 2})
        disk.fill()  # as another process that takes what the node has given up
        nodes["n2"].kill()
        nodes["n2"].start()
        eventually(
            lambda: all(publish(full, "t", n).status == 200 for n in range(6)),
            "it relays to the leaders of now",
            seconds=WAIT_S,
        )
        own = full.request("GET", "/v1/topics", headers={"Goq-Local": "true"}).json
        assert len(own["topics"]) == 31
        full.kill()
        full.start()
        assert full.request("DELETE", "/v1/topics/new0").status == 204
        disk.give_back()
        eventually(
            lambda: set(cluster.leaders("t").values()) == set(NAMES), "it leads again", seconds=120
        )
