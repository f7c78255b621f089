"""All nodes of a cluster are restarted, one after the other: for how long clients stand still.

Producers and consumers know all nodes, as they should. A *pause* is the longest time that one of
them went without a message while one node was stopped and started.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise

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
from bench.harness.rows import Place, Row, Work
from goq.client import Client

_CLIENTS = 2
_QUIET_S = 2.0
_RETRIES = "60s"


class _Clocked(threading.Thread):
    """A client that notes when it got on."""

    def __init__(self, urls: list[str], work: Callable[[Client, _Clocked], None]) -> None:
        super().__init__(daemon=True)
        self.times_s: list[float] = []
        self.ending = threading.Event()
        self.error: BaseException | None = None
        self._urls = urls
        self._work = work

    def run(self) -> None:
        try:
            with Client(self._urls, retries=_RETRIES, timeout="10s") as client:
                self._work(client, self)
        except BaseException as error:
            self.error = error

    def got_on(self) -> None:
        """Note that it got on now."""
        self.times_s.append(time.monotonic())

    def pause_s(self, since_s: float, until_s: float) -> float:
        """Return the longest time without getting on."""
        if self.error is not None:
            raise self.error
        times_s = [since_s, *(t for t in self.times_s if since_s < t < until_s), until_s]
        return max(later - sooner for sooner, later in pairwise(times_s))


def _produce(client: Client, clocked: _Clocked) -> None:
    number = 0
    while not clocked.ending.wait(0.005):
        client.publish(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        clocked.got_on()
        number += 1


def _consume(client: Client, clocked: _Clocked) -> None:
    while not clocked.ending.is_set():
        for message in client.consume(TOPIC, group="bench", timeout="1s"):
            message.ack()
            clocked.got_on()
            if clocked.ending.is_set():
                return


def _restart(cluster: Cluster, member: Member) -> None:
    member.stop()
    member.start()
    with Client([each.url for each in cluster.members], retries="0s") as client:
        until(lambda: is_whole(client, len(cluster.members)))


def _pauses(place: Place) -> tuple[float, float, float]:
    """Return the longest pauses of a producer and of a consumer, and how long a stop takes."""
    producing: list[float] = []
    consuming: list[float] = []
    rounds_s: list[float] = []
    with running_cluster(fresh_folder(place)) as cluster:
        urls = [member.url for member in cluster.members]
        producers = [_Clocked(urls, _produce) for _ in range(_CLIENTS)]
        consumers = [_Clocked(urls, _consume) for _ in range(_CLIENTS)]
        for client in [*producers, *consumers]:
            client.start()
        time.sleep(_QUIET_S)
        for _ in range(place.scaled(5)):
            for member in cluster.members:
                began_s = time.monotonic()
                _restart(cluster, member)
                time.sleep(_QUIET_S)
                ended_s = time.monotonic()
                rounds_s.append(ended_s - began_s - _QUIET_S)
                producing += [each.pause_s(began_s, ended_s) for each in producers]
                consuming += [each.pause_s(began_s, ended_s) for each in consumers]
        for client in [*producers, *consumers]:
            client.ending.set()
        for client in [*producers, *consumers]:
            client.join()
    return max(producing), max(consuming), max(rounds_s)


WORKS = [
    Work(
        [
            Row("rolling-produce", "each node restarted: longest pause of a producer", "s", 1),
            Row("rolling-consume", "the same: of a consumer", "s", 1),
            Row("rolling-round", "the same: until all is in sync again", "s"),
        ],
        _pauses,
    )
]
