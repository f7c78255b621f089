"""Rows of small requests while many connections publish at full speed."""

from __future__ import annotations

import http.client
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

from bench.harness import frames
from bench.harness.loader import http_answer_length, load
from bench.harness.rows import Place, Row, Work
from bench.harness.topics import fill, fresh_topic
from bench.messages.latency import beside, quantiles

PUBLISHERS = 64
_PAUSE_S = 0.01
_SECONDS = 15
_ENDLESS = 10**9
_RISE_S = 1.0


def _publish(port: int, topic: str) -> None:
    body = frames.anonymous_body(frames.values(1, 1000))
    request = (frames.request_head(topic, len(body)) + body,)
    callers: list[Iterator[Any]] = [itertools.repeat(request)] * PUBLISHERS
    load(port, callers, _ENDLESS, http_answer_length)


def _call(connection: http.client.HTTPConnection, method: str, path: str, body: Any) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {} if data is None else {"Content-Type": "application/json"}
    connection.request(method, path, data, headers)
    answer = connection.getresponse()
    found = answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path}: {answer.status} {found[:200]!r}")
    return json.loads(found) if data is not None else None


def _latencies(place: Place) -> tuple[float, ...]:
    """Ask one thing after the other, slowly, each over its own connection.

    The group exists before: its first receive, which creates it, is not that of a consumer at work.
    """
    read, written = fresh_topic(place.goq), fresh_topic(place.goq)
    fill(place.goq, read, 6_000)
    group = f"/v1/topics/{read}/groups/slow"
    live, taking, acking = (
        http.client.HTTPConnection("127.0.0.1", place.goq.port, timeout=60) for _ in range(3)
    )
    took_ms: tuple[list[float], ...] = ([], [], [])

    def timed(kind: int, connection: http.client.HTTPConnection, *asked: Any) -> Any:
        began_s = time.perf_counter()
        found = _call(connection, *asked)
        took_ms[kind].append((time.perf_counter() - began_s) * 1000)
        time.sleep(_PAUSE_S)
        return found

    [message] = _call(taking, "POST", f"{group}/receive", {"wait": "5s"})["messages"]
    _call(acking, "POST", f"{group}/ack", {"receipts": [message["receipt"]]})
    loaders = beside(_publish, place.goq.port, written)
    try:
        time.sleep(_RISE_S)
        until_s = time.monotonic() + place.scaled(_SECONDS, 3)
        while time.monotonic() < until_s:
            timed(0, live, "GET", "/livez", None)
            [message] = timed(1, taking, "POST", f"{group}/receive", {"wait": "5s"})["messages"]
            timed(2, acking, "POST", f"{group}/ack", {"receipts": [message["receipt"]]})
    finally:
        loaders.terminate()
        loaders.join()
    return tuple(figure for each in took_ms for figure in quantiles(each))


_BESIDE = f"while {PUBLISHERS} connections publish 1 KB at full speed"
WORKS = [
    Work(
        [
            row
            for name, text in (
                ("livez", "/livez"),
                ("receive", "a slow consumer's receive"),
                ("ack", "its ack"),
            )
            for row in (
                Row(f"fairness-{name}-p50", f"{text} {_BESIDE}: p50", "ms"),
                Row(f"fairness-{name}-p99", f"{text} {_BESIDE}: p99", "ms", 50, at_most=True),
            )
        ],
        _latencies,
    )
]
