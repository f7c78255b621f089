"""Nodes that do not reach one another, while others reach both: any node still answers."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from goq.client import Client
from tests.support.api.scrape import metric
from tests.support.cluster.links import Cut, Port
from tests.support.cluster.outcomes import Load
from tests.support.cluster.process_cluster import NAMES, LinkedCluster, linked_cluster
from tests.support.effort import first_of
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer
from tests.support.node.node_process import GOQ, clean_environment

TOPIC, PARTITIONS = "orders", 6
REQUESTS = 9
SENT = "sent to a node that stands still"
SETTLED_S_MAX = 2.0
"""The median of requests once the nodes know of the cut; without that it is over 3 s."""
KNOWN_S_MAX = 60.0
EARLY = 20
"""Requests of a kind that wait at a node before it goes on."""
STREAM_S_MAX = 30.0
TOLD_S = 1.5
"""For this long a node that missed an election is asked: several heartbeats."""
MOVED_S_MAX = 8.0
"""For a request to a leader that stands still; without the metadata it is over 10 s."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LinkedCluster]:
    """Run three nodes, each of which leads two partitions of a topic."""
    with linked_cluster(tmp_path) as cluster:
        cluster.create(TOPIC, PARTITIONS)
        yield cluster


def described(cluster: LinkedCluster, by: str) -> Any:
    return cluster.nodes[by].request("GET", "/v1/cluster").json


def controller_and_others(cluster: LinkedCluster) -> tuple[str, str, str]:
    found: list[str | None] = [None]

    def is_known() -> bool:
        found[0] = described(cluster, "n1")["controller"]
        return found[0] in NAMES

    eventually(is_known, "there is a controller", seconds=30)
    one, other = (name for name in NAMES if name != found[0])
    return str(found[0]), one, other


def led_by(cluster: LinkedCluster, leader: str) -> int:
    """Return a partition of a leader; after a slow start it gets its own back first."""
    led: list[int] = []

    def leads() -> bool:
        led[:] = [number for number, found in cluster.leaders(TOPIC).items() if found == leader]
        return bool(led)

    eventually(leads, f"{leader} leads a partition", seconds=30)
    return led[0]


def cut_from_each_other(cluster: LinkedCluster, how: Cut) -> tuple[str, str, str]:
    """Cut two nodes from each other and wait until all know; return the controller and the two.

    A controller that moves to one of the two fences the other: then another pair is cut.
    """
    until_s = time.monotonic() + KNOWN_S_MAX
    while True:
        third, one, other = controller_and_others(cluster)
        led_by(cluster, other)
        cluster.links.cut_both(one, other, Port.HTTP, how)
        while described(cluster, third)["controller"] == third:
            if all(knows_cut(cluster, name, one, other) for name in NAMES):
                return third, one, other
            assert time.monotonic() < until_s, [unreachable(cluster, name) for name in NAMES]
            time.sleep(0.05)
        cluster.links.mend()


def knows_cut(cluster: LinkedCluster, by: str, one: str, other: str) -> bool:
    cut = {one: [other], other: [one]}
    told = metric(cluster.nodes[by], "goq_cluster_unreachable_nodes")
    return unreachable(cluster, by) == cut and told == len(cut.get(by, []))


def unreachable(cluster: LinkedCluster, by: str) -> dict[str, list[str]]:
    """Return which nodes do not reach which, as one of them says."""
    nodes = described(cluster, by)["nodes"]
    return {n["id"]: n["unreachable"] for n in nodes if n.get("unreachable")}


def publish(cluster: LinkedCluster, through: str, partition: int, value: str = "v") -> Answer:
    body = {"messages": [{"value": value, "partition": partition}]}
    return cluster.nodes[through].request("POST", f"/v1/topics/{TOPIC}/messages", body)


def median_s(times_s: list[float]) -> float:
    return sorted(times_s)[len(times_s) // 2]


@pytest.mark.parametrize("how", first_of(list(Cut), quick=1))
def test_requests_go_over_a_third_node_when_two_do_not_reach_each_other(
    cluster: LinkedCluster, how: Cut
) -> None:
    third, one, other = cut_from_each_other(cluster, how)
    partition = led_by(cluster, other)
    times_s = []
    for number in range(REQUESTS):
        began_s = time.monotonic()
        assert publish(cluster, one, partition, f"{number}").status == 200
        times_s.append(time.monotonic() - began_s)
    assert median_s(times_s) < SETTLED_S_MAX, times_s
    node = cluster.nodes[one]
    read = node.request("GET", f"/v1/topics/{TOPIC}/messages?partition={partition}").json
    assert [m["value"] for m in read["messages"]] == [f"{n}" for n in range(REQUESTS)]
    group = f"/v1/topics/{TOPIC}/groups/g"
    received = node.request("POST", f"{group}/receive", {"max_messages": 100, "wait": "20s"}).json
    receipts = [m["receipt"] for m in received["messages"]]
    assert len(receipts) == REQUESTS
    settled = node.request("POST", f"{group}/ack", {"receipts": receipts}).json
    assert settled == {"settled": REQUESTS, "failed": []}
    shown = node.request("GET", f"/v1/topics/{TOPIC}").json
    assert all(found["leader"] for found in shown["partitions"])
    status = subprocess.run(
        [*GOQ, "cluster", "status", "--server", cluster.nodes[third].url],
        env=clean_environment(node.folder.parent), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert status.returncode == 1
    assert f"{one} does not reach {other}" in status.stdout
    assert f"{other} does not reach {one}" in status.stdout
    cluster.links.mend()
    for name in NAMES:
        eventually(lambda name=name: not unreachable(cluster, name), "all is mended", seconds=30)
    # A stream of before the cut may still end: what it took has an unknown outcome.
    eventually(
        lambda: publish(cluster, one, partition).status == 200, "streams are new", seconds=30
    )


def test_a_stream_goes_over_a_third_node(cluster: LinkedCluster) -> None:
    third, one, other = controller_and_others(cluster)
    partition = led_by(cluster, other)
    cluster.links.cut_both(one, other, Port.HTTP)
    eventually(lambda: unreachable(cluster, one), "the cut is known", seconds=30)
    assert publish(cluster, third, partition, "streamed").status == 200
    connection = http.client.HTTPConnection(*cluster.nodes[one].address, timeout=30)
    try:
        body = json.dumps({"stream": True, "max_in_flight": 10})
        connection.request(
            "POST",
            f"/v1/topics/{TOPIC}/groups/s/receive",
            body,
            {"Content-Type": "application/json"},
        )
        response = connection.getresponse()
        line, until_s = b"\n", time.monotonic() + STREAM_S_MAX
        while not line.strip():
            assert time.monotonic() < until_s, "there are heartbeats only"
            line = response.readline()
        assert json.loads(line)["value"] == "streamed"
    finally:
        connection.close()


def test_a_node_that_reaches_no_other_refuses_at_once(cluster: LinkedCluster) -> None:
    _, one, other = controller_and_others(cluster)
    partition = led_by(cluster, other)
    load = Load(TOPIC, PARTITIONS, lambda: [node.address for node in cluster.nodes.values()])
    with load.running(publishers=3, producers=1, consumers=1):
        for name in NAMES:
            if name != one:
                cluster.links.cut_both(one, name)
        eventually(lambda: publish(cluster, one, partition).status == 503, "it refuses", seconds=60)
        times_s = []
        for _ in range(REQUESTS):
            began_s = time.monotonic()
            assert publish(cluster, one, partition, "refused").status in (421, 503)
            times_s.append(time.monotonic() - began_s)
        assert median_s(times_s) < SETTLED_S_MAX, times_s
        cluster.links.mend()
        eventually(
            lambda: publish(cluster, one, partition).status == 200, "all is mended", seconds=60
        )
    values = []
    for number in range(PARTITIONS):
        offset: int | None = 0
        while offset is not None:
            path = f"/v1/topics/{TOPIC}/messages?partition={number}&offset={offset}&limit=1000"
            page = cluster.nodes["n1"].request("GET", path).json
            values += [message["value"] for message in page["messages"]]
            offset = page["next"] if page["messages"] else None
    assert "refused" not in values
    load.check_log([value for value in values if value != "v"])


def test_a_request_to_a_leader_that_stands_still_is_answered_when_another_leads(
    cluster: LinkedCluster,
) -> None:
    _, one, other = controller_and_others(cluster)
    partition = led_by(cluster, other)
    answers: list[tuple[int, float]] = []

    def send() -> None:
        began_s = time.monotonic()
        answer = publish(cluster, one, partition, SENT)
        answers.append((answer.status, time.monotonic() - began_s))

    with cluster.nodes[other].paused():
        sending = threading.Thread(target=send)
        sending.start()
        sending.join()
        ((status, took_s),) = answers
        assert status in (503, 504)
        assert took_s < MOVED_S_MAX
        eventually(lambda: publish(cluster, one, partition).status == 200, seconds=30)
    if status == 503:  # the pause was known before the request could be sent
        path = f"/v1/topics/{TOPIC}/messages?partition={partition}"
        read = cluster.nodes[one].request("GET", path).json
        assert SENT not in [message["value"] for message in read["messages"]]


def test_a_node_that_stood_still_shows_topics_and_schedules_as_they_are(
    cluster: LinkedCluster,
) -> None:
    _, one, other = controller_and_others(cluster)
    stopped, changing = cluster.nodes[one], cluster.nodes[other]
    topic, schedule = f"/v1/topics/{TOPIC}", "/v1/schedules/tick"
    body = {"topic": TOPIC, "every": "1h", "messages": [{"value": "v"}]}
    assert changing.request("PUT", schedule, body).status == 201
    settings = {"settings": {"retention.age": "3d"}}
    with ThreadPoolExecutor(2 * EARLY) as pool:
        with stopped.paused():
            eventually(lambda: changing.request("PATCH", topic, settings).status == 200)
            eventually(lambda: changing.request("DELETE", schedule).status in (204, 404))
            topics = [pool.submit(stopped.request, "GET", topic) for _ in range(EARLY)]
            schedules = [pool.submit(stopped.request, "GET", schedule) for _ in range(EARLY)]
        told = [answer.result().json for answer in topics]
        assert {each["settings"]["retention.age"] for each in told} == {"3d"}
        assert {answer.result().status for answer in schedules} == {404}


def test_a_leader_that_stood_still_tells_no_state_of_before_until_it_knows_who_leads(
    cluster: LinkedCluster,
) -> None:
    third, one, other = controller_and_others(cluster)
    partition = led_by(cluster, one)
    stopped, path = cluster.nodes[one], f"/v1/messages/{TOPIC}:{partition}:0"
    with Client([cluster.nodes[name].url for name in (third, other)], retries="60s") as client:
        client.receive(TOPIC, "g")
        client.publish(TOPIC, b"v", partition=partition)

        def is_acked() -> bool:
            found = client.receive(TOPIC, "g", wait="1s")
            client.ack_many(found)
            return bool(found)

        with stopped.paused():
            eventually(is_acked, "another node leads, and the ack is stored")
            for name in (third, other):  # the metadata comes late, the answers to heartbeats do not
                cluster.links.cut_both(one, name, Port.RAFT)
    until_s = time.monotonic() + TOLD_S
    answers = [stopped.request("GET", path)]
    while time.monotonic() < until_s or answers[-1].status != 200:
        if time.monotonic() > until_s:
            cluster.links.mend()
        answers.append(stopped.request("GET", path))
    told = [answer.json for answer in answers if answer.status == 200]
    assert {message["groups"][0]["state"] for message in told} == {"done"}


@pytest.mark.long
def test_a_node_cut_from_the_raft_group_alone_tells_nothing_of_before(
    cluster: LinkedCluster,
) -> None:
    third, cut, other = controller_and_others(cluster)
    partition = led_by(cluster, cut)
    path = f"/v1/topics/{TOPIC}/groups/g"
    assert publish(cluster, cut, partition).status == 200
    for name in (third, other):
        cluster.links.cut_both(cut, name, Port.RAFT, Cut.LOST)
    eventually(
        lambda: led_elsewhere(cluster, third, partition, cut), "another leads", seconds=KNOWN_S_MAX
    )
    eventually(lambda: publish(cluster, third, partition).status == 200, "it takes writes")
    found = cluster.nodes[third].call("POST", f"{path}/receive", {"wait": "20s"})
    receipts = [message["receipt"] for message in found["messages"]]
    assert cluster.nodes[third].call("POST", f"{path}/ack", {"receipts": receipts})["settled"]
    now = cluster.nodes[third].call("GET", path)
    shown = cluster.nodes[cut].request("GET", path)
    assert shown.status == 503 or shown.json["partitions"] == now["partitions"]
    read = cluster.nodes[cut].request("GET", f"/v1/topics/{TOPIC}/messages?partition={partition}")
    assert read.status == 503 or len(read.json["messages"]) == 2
    assert publish(cluster, cut, partition).status in (200, 421, 503)


def led_elsewhere(cluster: LinkedCluster, by: str, partition: int, former: str) -> bool:
    (topic,) = (t for t in described(cluster, by)["topics"] if t["name"] == TOPIC)
    return topic["partitions"][partition]["leader"] not in (None, former)
