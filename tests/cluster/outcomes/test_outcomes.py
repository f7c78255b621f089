"""No answer calls a write refused that is in the log, whatever happens to the leaders."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.outcomes import Load
from tests.support.cluster.process_cluster import process_cluster
from tests.support.cluster.running_cluster import NAMES, RunningCluster, new_cluster
from tests.support.eventually import eventually
from tests.support.node.node_api import NodeApi

PARTITIONS = 6
TOPIC = "orders"

Fault = Callable[[RunningCluster, random.Random], None]


def elect(cluster: RunningCluster, draw: random.Random) -> None:
    """Move the leadership of every partition to another replica."""
    for partition in range(PARTITIONS):
        asked = {"topic": TOPIC, "partition": partition, "leader": draw.choice(NAMES)}
        draw.choice(cluster.nodes).request("POST", "/v1/cluster/elections", asked)


def restart_one(cluster: RunningCluster, draw: random.Random) -> None:
    """Stop a node as SIGTERM would, and start it again."""
    _restart(cluster, draw.choice(NAMES))


def restart_all(cluster: RunningCluster, _draw: random.Random) -> None:
    """Restart the nodes one after another."""
    for name in NAMES:
        _restart(cluster, name)


def _restart(cluster: RunningCluster, name: str) -> None:
    cluster.stop(name)
    cluster.restart(name)
    eventually(lambda: set(cluster.statuses(name).values()) == {"up"}, f"{name} is back")


def elect_often(cluster: RunningCluster, draw: random.Random) -> None:
    for _ in range(15):
        elect(cluster, draw)
        time.sleep(draw.random() * 0.1)  # the load goes on meanwhile; nothing is waited for


def test_what_was_refused_is_not_stored(tmp_path: Path) -> None:
    _check(tmp_path, [elect_often, restart_one])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_what_was_refused_is_not_stored_under_many_faults(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    _check(tmp_path, draw.choices([elect_often, restart_one, restart_all], k=12), seed)


def _check(folder: Path, faults: list[Fault], seed: int = 0) -> None:
    draw = random.Random(seed)
    with new_cluster(folder) as cluster:
        cluster.start_three()
        cluster.create(TOPIC, PARTITIONS, **{"delivery.max_attempts": 1000})
        load = Load(TOPIC, PARTITIONS, lambda: [node.address for node in cluster.nodes])
        with load.running(publishers=6, producers=2, consumers=2):
            for fault in faults:
                fault(cluster, draw)
        eventually(lambda: None not in cluster.leaders(TOPIC), "all partitions have a leader")
        _compare(load, cluster.nodes[0])


@pytest.mark.long
def test_what_was_refused_is_not_stored_where_nodes_are_killed(tmp_path: Path) -> None:
    draw = random.Random(0)
    with process_cluster(tmp_path) as cluster:
        cluster.create(TOPIC, PARTITIONS, **{"delivery.max_attempts": "1000"})
        nodes = list(cluster.nodes.values())
        load = Load(TOPIC, PARTITIONS, lambda: [node.address for node in nodes])
        with load.running(publishers=6, producers=2, consumers=2):
            for _ in range(8):
                cluster.kill(draw.choice(NAMES), TOPIC)
                cluster.start_the_dead()
        eventually(
            lambda: None not in cluster.leaders(TOPIC).values(), "all partitions have a leader"
        )
        _compare(load, nodes[0])


def _compare(load: Load, node: NodeApi) -> None:
    """Compare all answers with the logs and with what groups still get."""
    messages = [m for number in range(PARTITIONS) for m in _log(node, number)]
    load.check_log([message["value"] for message in messages])
    load.drain()
    load.check_settlements([message["id"] for message in messages])


def _log(node: NodeApi, number: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    offset = 0
    while True:
        path = f"/v1/topics/{TOPIC}/messages?partition={number}&offset={offset}&limit=1000"
        found = node.call("GET", path)
        if not found["messages"]:
            return messages
        messages += found["messages"]
        offset = found["next"]
