"""Replicas that are copied: by a node that was away, and by nodes that join."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path

from bench.cluster.members import (
    PARTITIONS,
    TOPIC,
    Cluster,
    Member,
    fresh_folder,
    is_whole,
    running_cluster,
    until,
)
from bench.harness.loader import http_answer_length, load
from bench.harness.rows import Place, Row, Work
from bench.harness.servers import free_port
from bench.harness.topics import numbered_callers
from bench.messages.latency import beside, quantiles
from goq.client import Client

_PROBE = "probe"
_PAUSE_S = 0.02
_DONE_S_MAX = 900.0


def _publish_until(urls: list[str], ended: Event, written: str) -> None:
    """Publish one message after the other; write down how long each took, in milliseconds."""
    times_ms: list[float] = []
    with Client(urls) as client:
        client.publish(_PROBE, b"first")
        while not ended.wait(_PAUSE_S):
            began_s = time.perf_counter()
            client.publish(_PROBE, bytes(1000))
            times_ms.append(1000 * (time.perf_counter() - began_s))
    Path(written).write_text(json.dumps(times_ms))


@contextmanager
def _publishing(members: Sequence[Member], written: Path) -> Iterator[None]:
    ended = multiprocessing.get_context("spawn").Event()
    process = beside(_publish_until, [member.url for member in members], ended, str(written))
    try:
        yield
    finally:
        ended.set()
        process.join()


def _fill(cluster: Cluster, size_bytes: int) -> None:
    leaders = cluster.leaders(TOPIC)
    ports = [leaders[number].port for number in range(PARTITIONS)]
    callers = numbered_callers(TOPIC, PARTITIONS, 1000, 1000)
    load(ports, callers, size_bytes // 1_000_000, http_answer_length)


def _size_bytes(member: Member) -> int:
    """Return how many bytes of messages of the topic a node has."""
    found = member.logs().items()
    return sum(size for path, size in found if path.startswith(TOPIC) and "/messages/" in path)


def _catch_up(place: Place) -> tuple[float, float, float]:
    """Return the rate of a node that was away, and the p99 of publishes before and meanwhile."""
    with running_cluster(fresh_folder(place)) as cluster:
        away, *others = cluster.members
        written = fresh_folder(place)
        with Client([member.url for member in others]) as client:
            client.create_topic(_PROBE, 1)
        away.stop()
        until(lambda: len(cluster.leaders(TOPIC)) == PARTITIONS)
        _fill(cluster, place.scaled(4000, 200) * 1_000_000)
        with _publishing(others, written):
            time.sleep(5.0)
        before_ms = quantiles(json.loads(written.read_text()))
        had_bytes, expected_bytes = _size_bytes(away), _size_bytes(others[0])
        with _publishing(others, written):
            time.sleep(1.0)
            away.start()
            began_s = time.monotonic()
            until(lambda: _size_bytes(away) == expected_bytes, _DONE_S_MAX)
            taken_s = time.monotonic() - began_s
        meanwhile_ms = quantiles(json.loads(written.read_text()))
    return (expected_bytes - had_bytes) / taken_s / 1e6, before_ms[1], meanwhile_ms[1]


def _joins(place: Place) -> list[float]:
    """Return how long a fourth and a fifth node take to get their share, and a p99 of publishes."""
    figures: list[float] = []
    with running_cluster(fresh_folder(place)) as cluster, ExitStack() as resources:
        first = cluster.members[0]
        with Client([member.url for member in cluster.members]) as client:
            client.create_topic(_PROBE, PARTITIONS)
            _fill(cluster, place.scaled(5000, 200) * 1_000_000)
            for nodes, name in ((4, "n4"), (5, "n5")):
                peers = {name: f"127.0.0.1:{free_port()}"}
                member = Member(name, first.folder.parent, peers, cluster.secret, first.url)
                written = fresh_folder(place)
                with _publishing(cluster.members, written):
                    began_s = time.monotonic()
                    member.start()
                    resources.enter_context(member)
                    until(partial(is_whole, client, nodes))
                    client.rebalance()
                    time.sleep(1.0)
                    until(partial(is_whole, client, nodes), _DONE_S_MAX)
                    taken_s = time.monotonic() - began_s
                figures += [taken_s, quantiles(json.loads(written.read_text()))[1]]
                if not _size_bytes(member):
                    raise RuntimeError(f"{name} has no replica")
    return figures


WORKS = [
    Work(
        [
            Row("catch-up", "a node that was away for 4 GB copies them", "MB/s", 200),
            Row("catch-up-before", "publishes one by one before: p99", "ms"),
            Row("catch-up-p99", "the same meanwhile", "ms", 2, "catch-up-before", at_most=True),
        ],
        _catch_up,
    ),
    Work(
        [
            Row("join-4", "a fourth node joins 5 GB and has its share", "s"),
            Row("join-4-p99", "publishes meanwhile: p99", "ms", 100, at_most=True),
            Row("join-5", "a fifth node the same", "s"),
            Row("join-5-p99", "publishes meanwhile: p99", "ms", 100, at_most=True),
        ],
        _joins,
    ),
]
