"""Rows that publish one message a request."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import time
from functools import partial
from pathlib import Path

from bench.harness import frames, resp
from bench.harness.disk import append_rate
from bench.harness.loader import http_answer_length, load
from bench.harness.rows import Place, Row, Work
from bench.harness.topics import fresh_topic
from goq.client import AsyncClient, Client

VALUE = frames.values(1, 1000)
CONNECTIONS = 64
FEW = 8
SPREAD = 1000
_ALONE = "publish one at a time, each awaiting its ack"
_CROWD = "64 connections, single messages"
_TOOL = "wrk" if shutil.which("wrk") else "raw sockets (wrk is not installed)"
_ONE = partial(Row, target=0.5, target_of="disk")
_LUA = """
local file = io.open("%s", "rb")
wrk.body = file:read("*a")
wrk.method = "POST"
wrk.headers["Content-Type"] = "%s"
"""


def _one_by_one(place: Place) -> tuple[float, float, float, float]:
    """Measure the disk between the two: both are compared with it."""
    topic, count = fresh_topic(place.goq), place.scaled(5000, 500)
    with Client(place.goq.url) as client:
        client.publish(topic, VALUE[0])
        began_s = time.perf_counter()
        for _ in range(count):
            client.publish(topic, VALUE[0])
        client_rate = count / (time.perf_counter() - began_s)
    disk_rate = append_rate(place.folder, 1100, count)
    raw_rate = _raw(place, 1, count)
    return client_rate, raw_rate, disk_rate, append_rate(place.folder, 1 << 20, count // 10)


def _one_by_one_redis(place: Place) -> tuple[float, float]:
    import redis

    assert place.redis is not None
    count = place.scaled(5000, 500)
    with redis.Redis(port=place.redis.port) as client:
        client.xadd(resp.STREAM, {"v": VALUE[0]})
        began_s = time.perf_counter()
        for _ in range(count):
            client.xadd(resp.STREAM, {"v": VALUE[0]})
        client_rate = count / (time.perf_counter() - began_s)
    return client_rate, _raw_redis(place, 1, count)


def _raw(place: Place, connections: int, count: int) -> float:
    topic = fresh_topic(place.goq)
    body = frames.anonymous_body(VALUE)
    request = (frames.request_head(topic, len(body)) + body,)
    callers = [itertools.repeat(request)] * connections
    return count / load(place.goq.port, callers, count, http_answer_length)


def _raw_redis(place: Place, connections: int, count: int) -> float:
    assert place.redis is not None
    callers = [itertools.repeat((resp.xadd(VALUE[0]),))] * connections
    return count / load(place.redis.port, callers, count, resp.answers_length(1))


def _wrk(place: Place, body: bytes, content_type: str) -> float:
    """Return the rate of wrk, or of the raw loader where wrk is missing."""
    topic = fresh_topic(place.goq)
    seconds = place.scaled(8, 2)
    if shutil.which("wrk") is None:
        head = frames.request_head(topic, len(body), content_type)
        count = place.scaled(80_000, 4000)
        callers = [itertools.repeat((head + body,))] * CONNECTIONS
        return count / load(place.goq.port, callers, count, http_answer_length)
    content, script = place.folder / "body", place.folder / "wrk.lua"
    content.write_bytes(body)
    script.write_text(_LUA % (content, content_type))
    url = f"{place.goq.url}/v1/topics/{topic}/messages"
    output = _run_wrk(script, url, seconds)
    if "Non-2xx" in output or "Requests/sec" not in output:
        raise RuntimeError(output)
    return float(output.partition("Requests/sec:")[2].split()[0])


def _run_wrk(script: Path, url: str, seconds: int) -> str:
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(script), url]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _wrk_json(place: Place) -> float:
    body = json.dumps({"messages": [{"value": "x" * 1000}]}).encode()
    return _wrk(place, body, "application/json")


def _wrk_frames(place: Place) -> float:
    return _wrk(place, frames.anonymous_body(VALUE), frames.FRAMES)


def _redis_benchmark(place: Place) -> float:
    assert place.redis is not None
    command = ["redis-benchmark", "-p", str(place.redis.port), "-c", str(CONNECTIONS), "--csv"]
    command += ["-n", str(place.scaled(150_000, 5000)), "XADD", resp.STREAM, "*", "v", "x" * 1000]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(output.splitlines()[-1].rsplit('","', 7)[1])


def _few_raw(place: Place) -> float:
    return _raw(place, FEW, place.scaled(40_000, 2000))


def _few_raw_redis(place: Place) -> float:
    return _raw_redis(place, FEW, place.scaled(40_000, 2000))


def _spread(place: Place) -> tuple[float, float, float]:
    """Publish to one partition, then to each of many in turn."""
    count = place.scaled(60_000, 4000)
    rates = []
    for partitions in (1, SPREAD):
        topic = fresh_topic(place.goq, partitions)
        bodies = [frames.anonymous_body(VALUE, number) for number in range(partitions)]
        requests = [(frames.request_head(topic, len(body)) + body,) for body in bodies]
        callers = [
            itertools.islice(itertools.cycle(requests), number * partitions // CONNECTIONS, None)
            for number in range(CONNECTIONS)
        ]
        load(place.goq.port, callers, partitions, http_answer_length)  # each is open afterwards
        rates.append(count / load(place.goq.port, callers, count, http_answer_length))
    one, many = rates
    return one, many, many / one


def _tasks(place: Place, tasks: int) -> float:
    topic, each = fresh_topic(place.goq), place.scaled(48_000, 1800) // tasks

    async def main() -> float:
        async with AsyncClient(place.goq.url) as client:
            await client.publish(topic, VALUE[0])

            async def publish() -> None:
                for _ in range(each):
                    await client.publish(topic, VALUE[0])

            began_s = time.perf_counter()
            await asyncio.gather(*(publish() for _ in range(tasks)))
            return tasks * each / (time.perf_counter() - began_s)

    return asyncio.run(main())


def _tasks_redis(place: Place, tasks: int) -> float:
    import redis.asyncio

    assert place.redis is not None
    port, each = place.redis.port, place.scaled(24_000, 1800) // tasks

    async def main() -> float:
        pool = redis.asyncio.BlockingConnectionPool(port=port, max_connections=tasks)
        async with redis.asyncio.Redis(connection_pool=pool) as client:

            async def publish(count: int) -> None:
                for _ in range(count):
                    await client.xadd(resp.STREAM, {"v": VALUE[0]})

            await asyncio.gather(*(publish(1) for _ in range(tasks)))
            began_s = time.perf_counter()
            await asyncio.gather(*(publish(each) for _ in range(tasks)))
            return tasks * each / (time.perf_counter() - began_s)

    return asyncio.run(main())


WORKS = [
    Work(
        [
            _ONE("one-client", f"{_ALONE}: goq.Client", "msg/s"),
            _ONE("one-raw", f"{_ALONE}: raw socket", "msg/s"),
            Row("disk", "the machine itself: append 1.1 KB, fdatasync", "appends/s"),
            Row("disk-1mib", "the machine itself: append 1 MiB, fdatasync", "appends/s"),
        ],
        _one_by_one,
        _one_by_one_redis,
    ),
    Work(
        [Row("singles-json", f"{_CROWD}, JSON: {_TOOL}", "msg/s", 25_000)],
        _wrk_json,
        _redis_benchmark,
    ),
    Work(
        [Row("singles-frames", f"{_CROWD}, frames: {_TOOL}", "msg/s", 25_000)],
        _wrk_frames,
        _redis_benchmark,
    ),
    Work(
        [Row("few-raw", f"{FEW} connections, single messages: raw sockets", "msg/s")],
        _few_raw,
        _few_raw_redis,
    ),
    Work(
        [
            Row("spread-one", f"{_CROWD}, frames, to one partition: raw sockets", "msg/s"),
            Row("spread-many", f"the same in turn to {SPREAD:,} partitions", "msg/s"),
            Row("spread-ratio", f"{SPREAD:,} partitions to one", "", 0.5),
        ],
        _spread,
    ),
    *[
        Work(
            [Row(name, f"{tasks} tasks, single messages: AsyncClient", "msg/s")],
            partial(_tasks, tasks=tasks),
            partial(_tasks_redis, tasks=tasks),
        )
        for name, tasks in (("few-client", FEW), ("singles-client", CONNECTIONS))
    ],
]
