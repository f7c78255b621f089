"""``python -m bench.messages.calls``: CPU of a call, one at a time, of the caller and the server.

On a memory disk a sync costs nothing, so what is left is code and the loopback. CPU time is steady
also on a machine with other work; the time of a call is not. Each figure is the least of five.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness import frames
from bench.harness.loader import http_answer_length, load
from bench.harness.servers import GoqNode, RedisServer, Server
from goq.client import Client

_VALUE = frames.values(1, 1000)
_TOPIC, _GROUP, _STREAM, _READERS = "calls", "workers", "calls", "readers"
_ROUNDS = 5


def _row(name: str, server: Server, call: Callable[[int], object], count: int) -> None:
    call(count // 10)
    best_us = [float("inf")] * 3
    for _ in range(_ROUNDS):
        before_s = server.cpu_s(), time.thread_time(), time.perf_counter()
        call(count)
        after_s = server.cpu_s(), time.thread_time(), time.perf_counter()
        spent = [1e6 * (b - a) / count for a, b in zip(before_s, after_s, strict=True)]
        best_us = list(map(min, best_us, spent))
    server_us, caller_us, whole_us = best_us
    print(
        f"{name:<36} caller {caller_us:6.1f} µs, server {server_us:6.1f} µs,"
        f" whole {whole_us:6.1f} µs",
        flush=True,
    )


def _goq(folder: Path, count: int) -> None:
    with GoqNode(folder) as node, Client(node.url) as client:
        client.create_topic(_TOPIC, partitions=1)
        client.receive(_TOPIC, _GROUP, max_messages=1, wait="0s")
        body = frames.anonymous_body(_VALUE)
        callers = [itertools.repeat((frames.request_head(_TOPIC, len(body)) + body,))]

        def publish(number: int) -> None:
            for _ in range(number):
                client.publish(_TOPIC, _VALUE[0])

        def receive_and_ack(number: int) -> None:
            for _ in range(number):
                client.receive(_TOPIC, _GROUP, max_messages=1)[0].ack()

        _row(
            "publish, a bare socket",
            node,
            lambda number: load(node.port, callers, number, http_answer_length),
            count,
        )
        _row("publish, goq.Client", node, publish, count)
        _row("receive and ack of one, goq.Client", node, receive_and_ack, count)


def _redis(folder: Path, count: int) -> None:
    import redis

    with RedisServer(folder) as server, redis.Redis(port=server.port) as client:
        client.xgroup_create(_STREAM, _READERS, mkstream=True)

        def add(number: int) -> None:
            for _ in range(number):
                client.xadd(_STREAM, {"v": _VALUE[0]})

        def read_and_ack(number: int) -> None:
            for _ in range(number):
                found = client.xreadgroup(_READERS, "me", {_STREAM: ">"}, count=1)
                client.xack(_STREAM, _READERS, found[0][1][0][0])

        _row("publish, redis-py", server, add, count)
        _row("receive and ack of one, redis-py", server, read_and_ack, count)


def main() -> None:
    """Measure, in a folder that is removed."""
    parser = argparse.ArgumentParser(prog="python -m bench.messages.calls", description=__doc__)
    parser.add_argument("--folder", default="/dev/shm", help="where to put data: a memory disk")
    parser.add_argument("--count", type=int, default=2000, help="calls a figure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        _goq(Path(folder) / "goq", arguments.count)
        if RedisServer.is_installed():
            _redis(Path(folder) / "redis", arguments.count)


if __name__ == "__main__":
    main()
