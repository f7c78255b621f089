"""A stream from goq to goq whose driver is killed, at any moment, copies every row once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from goq.client import Client
from tests.support.node.faulty_proxy import faulty_proxy
from tests.support.node.node_process import NodeProcess
from tests.support.pipeline.spark_driver import COPY_S_MAX, Driver, start_copy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE, SINK = "orders", "copies"
TURNS, TURN_ROWS = 24, 40


def logged(client: Client) -> Counter[str]:
    return Counter((m.value or b"").decode() for m in client.read_log(SINK))


def expected(count: int) -> Counter[str]:
    return Counter(f"v{number}" for number in range(count))


def make_topics(client: Client) -> None:
    client.create_topic(SOURCE, 3)
    client.create_topic(SINK, 2)


def fill(client: Client, start: int, count: int) -> None:
    with client.producer(SOURCE) as producer:
        for number in range(start, start + count):
            producer.send(f"v{number}", key=f"k{number % 11}")


class Fate:
    """Kills a driver, and before or after it the node, when that has answered so many requests.

    What is counted are all requests, or those for ``target``. 0 is never.
    """

    def __init__(self, driver_at: int, node_at: int = 0, *, target: str | None = None) -> None:
        self.driver_at, self.node_at = driver_at, node_at
        self.target = target
        self.driver: Driver | None = None
        self.node: NodeProcess | None = None
        self.workers_too = True
        self.has_killed = False
        self._answered = 0
        self._guard = threading.Lock()

    def __call__(self, method: str, path: str) -> None:
        with self._guard:
            if self.target not in (None, f"{method} {path}"):
                return
            self._answered += 1
            if self._answered == self.driver_at and self.driver is not None:
                self.driver.kill(workers_too=self.workers_too)
                self.has_killed = True
            if self._answered == self.node_at and self.node is not None:
                self.node.restart()


@pytest.mark.long
def test_a_driver_killed_while_it_publishes_leaves_nothing_out_and_nothing_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    fate = Fate(1, target=f"POST /v1/topics/{SINK}/messages")
    with NodeProcess(tmp_path / "data") as node, Client(node.url) as client:
        make_topics(client)
        fill(client, 0, 60)
        with (
            faulty_proxy(("127.0.0.1", node.port), heard=fate) as proxy,
            Driver(proxy.url, SOURCE, SINK, checkpoint, 40) as driver,
        ):
            fate.driver = driver
            assert driver.wait() != 0, driver.said()
        assert fate.has_killed, driver.said()
        assert 0 < logged(client).total() < 40
        query = start_copy(spark, node.url, SOURCE, SINK, checkpoint, 40)
        assert query.awaitTermination(COPY_S_MAX)
        assert logged(client) == expected(60)


@pytest.mark.long
def test_drivers_workers_and_nodes_killed_at_any_moment_leave_nothing_out_and_nothing_twice(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    chance, checkpoint, kills = random.Random(seed), tmp_path / "checkpoint", 0
    with ExitStack() as stack:
        node = stack.enter_context(NodeProcess(tmp_path / "data"))
        proxy = stack.enter_context(faulty_proxy(("127.0.0.1", node.port)))
        client = stack.enter_context(Client(node.url, retries="1m"))
        make_topics(client)
        for turn in range(TURNS):
            fill(client, turn * TURN_ROWS, TURN_ROWS)
            fate = Fate(chance.randrange(1, 120), chance.choice([0, chance.randrange(1, 120)]))
            fate.workers_too = chance.random() < 0.5
            driver = stack.enter_context(Driver(proxy.url, SOURCE, SINK, checkpoint, TURN_ROWS))
            fate.driver, fate.node, proxy.heard = driver, node, fate
            ended = driver.wait()
            kills += fate.has_killed
            assert ended == 0 or fate.has_killed, driver.said()
            assert not logged(client) - expected((turn + 1) * TURN_ROWS)
        assert kills >= TURNS // 3
        query = start_copy(spark, node.url, SOURCE, SINK, checkpoint, TURN_ROWS)
        assert query.awaitTermination(COPY_S_MAX)
        assert logged(client) == expected(TURNS * TURN_ROWS)
