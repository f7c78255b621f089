"""A topic's own replication on real nodes: made, altered, shown, and kept while it changes."""

from __future__ import annotations

import asyncio
import glob
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goq.client import AsyncClient, Client
from goq.errors import InvalidInput
from tests.support.cli.command import Run
from tests.support.cluster.running_cluster import RunningCluster, new_cluster
from tests.support.eventually import eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with new_cluster(Path(tmp_path_factory.mktemp("cluster"))) as some:
        some.start_three()
        eventually(lambda: some.state("n1").features.level >= 2)
        yield some


@pytest.fixture
def run(goq: Run, cluster: RunningCluster) -> Run:
    """Run ``goq`` on the cluster's second node."""

    def on_second(*arguments: str, **more: Any) -> Any:
        return goq(*arguments, GOQ_SERVER=cluster.by_name["n2"].url, **more)

    return on_second


def shown(cluster: RunningCluster, topic: str, by: str = "n3") -> dict[str, Any]:
    """Return a topic as the cluster's state shows it on a node."""
    found: dict[str, Any] = cluster.by_name[by].call("GET", f"/v1/cluster?topic={topic}")
    return found["topics"][0]


def replicas(cluster: RunningCluster, topic: str) -> list[tuple[int, int]]:
    """Return how many replicas each partition has, and how many are in sync."""
    partitions = shown(cluster, topic)["partitions"]
    return [(len(p["replicas"]), len(p["in_sync"])) for p in partitions]


def folders(cluster: RunningCluster, topic: str) -> set[str]:
    """Return the nodes that have any file of a topic's partitions."""
    return {
        name
        for name in cluster.by_name
        # unlike a Path's, this glob passes over folders that a node removes meanwhile
        if glob.glob(f"{cluster.folder}/{name}/topics/{topic}*/[0-9]*/*/*.log")
    }


def publish(cluster: RunningCluster, topic: str, *values: str) -> None:
    body = {"messages": [{"value": value} for value in values]}
    node = cluster.by_name["n1"]
    eventually(lambda: node.request("POST", f"/v1/topics/{topic}/messages", body).status == 200)


def test_the_command_makes_alters_and_shows_the_replication(
    run: Run, cluster: RunningCluster, topic: str
) -> None:
    run("topic", "create", topic, "--partitions", "2", "--replication-factor", "1")
    publish(cluster, topic, *(str(number) for number in range(20)))
    assert replicas(cluster, topic) == [(1, 1)] * 2
    described = json.loads(run("topic", "show", topic, "--json").stdout)
    assert (described["replication_factor"], described["min_insync"]) == (1, 1)

    run("topic", "alter", topic, "--replication-factor", "3", "--min-insync", "3")
    cluster.until(lambda: replicas(cluster, topic) == [(3, 3)] * 2)
    assert "replication factor\tmin in-sync\n3\t3" in run("topic", "show", topic).stdout.decode()
    assert f"{topic}\t2\t3\t3\t" in run("cluster", "status").stdout.decode()
    publish(cluster, topic, "x")

    run("topic", "alter", topic, "--replication-factor", "1", "--min-insync", "1")
    cluster.until(lambda: replicas(cluster, topic) == [(1, 1)] * 2)
    partitions = shown(cluster, topic)["partitions"]
    kept = {p["replicas"][0] for p in partitions}
    eventually(lambda: folders(cluster, topic) == kept)
    ends = cluster.by_name["n2"].call("GET", f"/v1/topics/{topic}")["partitions"]
    assert sum(partition["end_offset"] for partition in ends) == 21


def test_each_bound_is_refused_with_its_reason(run: Run, topic: str) -> None:
    create = ("topic", "create", topic)
    factor, least = "--replication-factor", "--min-insync"
    assert b"1 to 7, not 0" in run(*create, factor, "0", code=7).stderr
    assert b"1 to 7, not 8" in run(*create, factor, "8", code=7).stderr
    assert b"needs 4 nodes; there are 3" in run(*create, factor, "4", code=7).stderr
    assert b"factor, 3, not 0" in run(*create, least, "0", code=7).stderr
    assert b"factor, 2, not 3" in run(*create, factor, "2", least, "3", code=7).stderr
    run("topic", "show", topic, code=3)
    run(*create, factor, "3", least, "3")
    alter = ("topic", "alter", topic)
    assert b"is 3: lower it too" in run(*alter, factor, "2", code=7).stderr
    assert b"needs 4 nodes" in run(*alter, factor, "4", code=7).stderr
    assert b"factor, 3, not 4" in run(*alter, least, "4", code=7).stderr
    run(*alter, factor, "2", least, "2")


def test_both_python_clients_make_and_alter_it(cluster: RunningCluster, topic: str) -> None:
    url = cluster.by_name["n3"].url
    with Client(url) as client:
        made = client.create_topic(topic, 1, replication_factor=2, min_insync=2)
        assert (made.replication_factor, made.min_insync) == (2, 2)

    async def alter() -> tuple[int, int]:
        async with AsyncClient(url) as client:
            altered = await client.alter_topic(topic, replication_factor=3, min_insync=1)
            with pytest.raises(InvalidInput, match="needs 4 nodes"):
                await client.create_topic(f"{topic}-more", 1, replication_factor=4)
            (found,) = (await client.describe_cluster(topic)).topics
            assert (found.replication_factor, found.min_insync) == (3, 1)
            return altered.replication_factor, altered.min_insync

    assert asyncio.run(alter()) == (3, 1)
    cluster.until(lambda: replicas(cluster, topic) == [(3, 3)])


def test_dead_letters_are_as_safe_as_their_topic(cluster: RunningCluster, topic: str) -> None:
    node = cluster.by_name["n1"]
    new = {"name": topic, "partitions": 1, "replication_factor": 2, "min_insync": 1}
    node.call("POST", "/v1/topics", new)
    publish(cluster, topic, "bad")
    receive = f"/v1/topics/{topic}/groups/g/receive"
    received = node.call("POST", receive, {"wait": "10s"})["messages"][0]
    reject = {"receipts": [received["receipt"]], "reason": "bad"}
    node.call("POST", f"/v1/topics/{topic}/groups/g/reject", reject)
    dead = f"{topic}.dlq"
    eventually(lambda: node.request("GET", f"/v1/topics/{dead}").status == 200)
    found = shown(cluster, dead, "n1")
    assert (found["replication_factor"], found["min_insync"]) == (2, 1)


def test_writes_wait_for_as_many_replicas_as_the_topic_needs_now(
    run: Run, cluster: RunningCluster, topic: str
) -> None:
    node = cluster.by_name["n1"]

    def answer(partition: int) -> Any:
        """Return the error code of a publish to a partition, None if it was stored."""
        body = {"messages": [{"value": "x", "partition": partition}]}
        return node.request("POST", f"/v1/topics/{topic}/messages", body).json.get("code")

    run("topic", "create", topic, "--partitions", "3", "--min-insync", "3")
    eventually(lambda: not any(map(answer, range(3))))
    leaders = {found["leader"] for found in shown(cluster, topic)["partitions"]}
    assert leaders == {"n1", "n2", "n3"}, "the node that stops leads a partition, and others do"
    cluster.stop("n3")
    eventually(lambda: set(map(answer, range(3))) == {"not_enough_replicas"})
    status = run("cluster", "status", code=1).stdout.decode()
    assert "takes no writes (3 in sync needed)" in status
    run("topic", "alter", topic, "--min-insync", "2")
    eventually(lambda: not any(map(answer, range(3))))
    run("topic", "alter", topic, "--min-insync", "3")
    assert set(map(answer, range(3))) == {"not_enough_replicas"}
    cluster.restart("n3")
    eventually(lambda: not any(map(answer, range(3))))
    cluster.until(lambda: replicas(cluster, topic) == [(3, 3)] * 3)
