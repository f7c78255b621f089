"""Whenever a node is killed while it archives, every confirmed message is live or archived."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import httpx
import pytest

from goq.client import Client
from goq.errors import GoqError
from goq.storage.disk import RealDisk
from goq.storage.verification import verify_data_dir
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess
from tests.support.storage.s3_server import BUCKET, PROGRAM, s3_server

SEED = int(os.environ.get("GOQ_KILL_SEED") or random.SystemRandom().getrandbits(32))
VALUE_BYTES = 30_000
KEEP_LITTLE = {"segment.bytes": "64KiB", "retention.bytes": "64KiB", "archive": True}


class Producer(threading.Thread):
    """Publishes numbered values until told to stop, and knows which of them were confirmed."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.confirmed: dict[int, str] = {}
        self.is_ended = threading.Event()
        self._url = url

    def run(self) -> None:
        number = 0
        while not self.is_ended.is_set():
            try:
                with Client(self._url, timeout="1s") as client:
                    while not self.is_ended.is_set():
                        number += 1
                        value = f"{number} {SEED}".ljust(VALUE_BYTES, "x")
                        found = client.publish("t", value, partition=0)
                        self.confirmed[found.id.offset] = value
            except (GoqError, OSError):
                self.is_ended.wait(0.01)


@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=pytest.mark.long)])
def test_a_node_killed_while_it_archives_loses_nothing(rounds: int, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with NodeProcess(tmp_path / "data") as node:
        with Client(node.url) as client:
            client.create_topic("t", 1, settings=KEEP_LITTLE)
        producer = Producer(node.url)
        producer.start()
        try:
            for _ in range(rounds):
                enough = len(producer.confirmed) + chance.randint(3, 25)
                eventually(lambda least=enough: len(producer.confirmed) > least, "it publishes")
                node.kill()
                node.start()
            eventually(lambda: archived_segments(node.url) > rounds, "it archives")
        finally:
            producer.is_ended.set()
            producer.join()
        found = read_everything(node.url)
        assert node.stop() == 0
    lost = [offset for offset, value in producer.confirmed.items() if found.get(offset) != value]
    assert not lost, f"seed {SEED}: {lost[:10]} of {len(found)}"
    report = verify_data_dir(RealDisk(), node.folder)
    assert report.is_sound, (SEED, report.problems, [log.report.damage for log in report.logs])


@pytest.mark.skipif(not PROGRAM.exists(), reason="there is no S3 server here")
@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=pytest.mark.long)])
def test_a_node_killed_while_it_moves_segments_to_a_store_loses_nothing(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(SEED)
    (tmp_path / "s3").mkdir()
    with s3_server(tmp_path / "s3") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        settings = [f"archive.to=s3://{BUCKET}/a"]
        with NodeProcess(
            tmp_path / "data", settings=settings, environment=server.environment
        ) as node:
            with Client(node.url) as client:
                client.create_topic("t", 1, settings=KEEP_LITTLE)
            producer = Producer(node.url)
            producer.start()
            try:
                for _ in range(rounds):
                    enough = len(producer.confirmed) + chance.randint(3, 25)
                    eventually(lambda least=enough: len(producer.confirmed) > least, "it publishes")
                    time.sleep(chance.random())  # at any moment of the moves
                    node.kill()
                    node.start()
                moved = (tmp_path / "data/archive").rglob
                eventually(lambda: len(list(moved("*.stored"))) > rounds, "it moves", seconds=60)
            finally:
                producer.is_ended.set()
                producer.join()
            eventually(lambda: not list((tmp_path / "data/archive").rglob("*.zst")), seconds=60)
            found = read_everything(node.url)
            assert node.stop() == 0
        lost = [
            offset for offset, value in producer.confirmed.items() if found.get(offset) != value
        ]
        assert not lost, f"seed {SEED}: {lost[:10]} of {len(found)}"
        report = verify_data_dir(RealDisk(), node.folder)
        assert report.is_sound, (SEED, report.problems)


def archived_segments(url: str) -> int:
    with Client(url) as client:
        archived = client.describe_topic("t").archived
    return 0 if archived is None else archived.segments


def read_everything(url: str) -> dict[int, str]:
    found: dict[int, str] = {}
    offset, answer = 0, {"end": 1}
    while offset < answer["end"]:
        query = {"partition": 0, "include_deleted": "true", "offset": offset, "limit": 200}
        answer = httpx.get(f"{url}/v1/topics/t/messages", params=query, timeout=30).json()
        assert not answer["damaged"]
        for message in answer["messages"]:
            assert message["offset"] not in found
            found[message["offset"]] = message["value"]
        assert answer["next"] > offset
        offset = answer["next"]
    assert sorted(found) == list(range(offset))
    return found
