"""Rows of three nodes with a thousand partitions: at rest, at the start, and when a node is killed.

``python -m bench.cluster.partitions 3000`` measures another number of partitions, once.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.cluster.members import FRAMES, Cluster, Member, running_cluster, until
from bench.harness import frames
from bench.harness.rows import Place, Row, Work

COUNT = 1000
_TOPIC_PARTITIONS = 100
_SETTLED_S = 15.0  # from a start until leaderships have gone back to the preferred replicas
_POLL_S = 0.05
_START_POLL_S = 0.2
_JSON = {"Content-Type": "application/json"}
_LOCAL = {"Goq-Local": "true"}


class _Partitions:
    """The partitions of many topics on a cluster."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self._cluster = cluster
        self._count = count
        self._topics = [f"many-{number}" for number in range(count // _TOPIC_PARTITIONS)]

    def make(self) -> None:
        """Make the topics; return when each partition accepts messages, and has one."""
        for topic in self._topics:
            body = json.dumps({"name": topic, "partitions": _TOPIC_PARTITIONS}).encode()
            status, answer = self._cluster.members[0].ask("POST", "/v1/topics", body, _JSON)
            if status >= 300:
                raise RuntimeError(answer.decode())
        members = self._cluster.members
        self.wait_led(members)
        self.publish_to_each(members[0])

    def wait_led(self, members: list[Member], poll_s: float = _POLL_S) -> None:
        """Return when these members lead all partitions, and each is open to clients."""
        waiting = list(self._topics)
        until_s = time.monotonic() + 300
        while waiting:
            waiting = [
                t for t in waiting if sum(map(len, self._led(members, t))) < _TOPIC_PARTITIONS
            ]
            if waiting:
                if time.monotonic() > until_s:
                    raise TimeoutError(f"not all partitions of {waiting} are led")
                time.sleep(poll_s)

    def _led(self, members: list[Member], topic: str) -> list[set[int]]:
        found: list[set[int]] = []
        for member in members:
            try:
                status, answer = member.ask("GET", f"/v1/topics/{topic}", None, _LOCAL)
            except OSError:
                continue
            led = json.loads(answer)["partitions"] if status == 200 else []
            found.append({partition["partition"] for partition in led})
        return found

    def publish_to_each(self, member: Member) -> None:
        """Publish a message to each partition through one node; repeat it while leaders change."""
        for topic in self._topics:
            path = f"/v1/topics/{topic}/messages"
            for number in range(_TOPIC_PARTITIONS):
                body = frames.anonymous_body([b"one"], number)
                until(partial(_is_taken, member, path, body))

    def whole(self) -> bool:
        """Whether every node is up and no partition lacks a replica in sync."""
        status, answer = self._cluster.members[0].ask("GET", "/v1/cluster", None, {})
        if status >= 300:
            return False
        shown = json.loads(answer)
        return all(node["status"] == "up" for node in shown["nodes"]) and all(
            len(partition["in_sync"]) == 3
            for topic in shown["topics"]
            for partition in topic["partitions"]
        )


def _is_taken(member: Member, path: str, body: bytes) -> bool:
    return member.ask("POST", path, body, FRAMES)[0] < 300


def _open_files(member: Member) -> int:
    return len(list(Path(f"/proc/{member.process.pid}/fd").iterdir()))


@contextmanager
def _many(folder: Path, count: int) -> Iterator[tuple[Cluster, _Partitions]]:
    with running_cluster(folder) as cluster:
        partitions = _Partitions(cluster, count)
        partitions.make()
        yield cluster, partitions


def _restart(cluster: Cluster, partitions: _Partitions) -> tuple[float, float]:
    """Stop all nodes and start them; return seconds until all is led, and CPU seconds a node."""
    for member in cluster.members:
        member.process.terminate()
    for member in cluster.members:
        member.stop()
    began_s = time.monotonic()
    for member in cluster.members:
        member.launch()
    for member in cluster.members:
        member.wait_ready()
    partitions.wait_led(cluster.members, _START_POLL_S)
    took_s = time.monotonic() - began_s
    return took_s, sum(member.cpu_s() for member in cluster.members) / 3


def _rest(cluster: Cluster, rest_s: float) -> float:
    """Return the CPU of each node at rest, in percent of a core."""
    before_s = [member.cpu_s() for member in cluster.members]
    time.sleep(rest_s)
    used_s = [m.cpu_s() - b for m, b in zip(cluster.members, before_s, strict=True)]
    return 100 * sum(used_s) / 3 / rest_s


def _failover(cluster: Cluster, partitions: _Partitions, victim: Member) -> tuple[float, float]:
    """Kill a node; return seconds until its partitions are led, and CPU seconds of the others."""
    others = [member for member in cluster.members if member is not victim]
    before_s = sum(member.cpu_s() for member in others)
    began_s = time.monotonic()
    victim.kill()
    partitions.wait_led(others)
    took_s = time.monotonic() - began_s
    used_s = sum(member.cpu_s() for member in others) - before_s
    partitions.publish_to_each(others[0])
    victim.start()
    until(partitions.whole)
    time.sleep(_SETTLED_S)
    partitions.wait_led(cluster.members)
    return took_s, used_s


def measure(folder: Path, count: int, rest_s: float = 60.0) -> tuple[float, ...]:
    """Return the figures of the rows, in their order."""
    with _many(folder, count) as (cluster, partitions):
        start_s, start_cpu_s = _restart(cluster, partitions)
        time.sleep(_SETTLED_S)
        rest = _rest(cluster, rest_s)
        files = max(map(_open_files, cluster.members))
        controller = cluster.controller()
        follower = next(m for m in cluster.members if m is not controller)
        follower_s, follower_cpu_s = _failover(cluster, partitions, follower)
        controller_s, controller_cpu_s = _failover(cluster, partitions, cluster.controller())
    return (
        rest,
        start_s,
        start_cpu_s,
        float(files),
        follower_s,
        follower_cpu_s,
        controller_s,
        controller_cpu_s,
    )


def _measure(place: Place) -> tuple[float, ...]:
    return measure(place.folder / f"partitions-{time.monotonic_ns()}", COUNT, place.scaled(60, 3))


_WHERE = f"{COUNT} partitions on three nodes"
_LED = "the partitions it led are open elsewhere"
WORKS = [
    Work(
        [
            Row("partitions-rest", f"{_WHERE}, at rest: each node", "% of a core", 3, at_most=True),
            Row("partitions-start", "all started at once: all are led", "s", 10, at_most=True),
            Row("partitions-start-cpu", "the same: CPU of each node", "s", at_most=True),
            Row("partitions-files", "open files of a node", "", 2000, at_most=True),
            Row("partitions-failover", f"a node killed: {_LED}", "s", 1, at_most=True),
            Row("partitions-failover-cpu", "the same: CPU of the others", "s", at_most=True),
            Row("partitions-controller", f"the controller killed: {_LED}", "s", 2, at_most=True),
            Row("partitions-controller-cpu", "the same: CPU of the others", "s", at_most=True),
        ],
        _measure,
    )
]


def main() -> None:
    """Measure a number of partitions once, and print the figures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    with tempfile.TemporaryDirectory(prefix=".goq-bench-", dir=Path.cwd()) as name:
        figures = measure(Path(name) / "cluster", count)
    for row, figure in zip(WORKS[0].rows, figures, strict=True):
        print(f"{row.name:28} {figure:10.2f} {row.unit}")


if __name__ == "__main__":
    main()
