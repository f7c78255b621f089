"""What ``goq export`` and Spark's reading cost, and what they cost those who publish meanwhile.

Values are JSON objects of random content, no two alike among a hundred thousand. How fast a core is
told by the CPU time of each process: the exporter's own start is in its figures. Reading the frames
and doing nothing with them is measured in the same repetition, as what an export costs at least.
"""

from __future__ import annotations

import itertools
import json
import random
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.harness import frames
from bench.harness.loader import http_answer_length, load
from bench.harness.rows import Measure, Place, Row, Work
from bench.harness.servers import GOQ
from bench.harness.topics import fresh_topic
from bench.messages.latency import RATE, beside, publish_timed, quantiles
from bench.node.commands import run
from goq.client import Client

TOPIC = "exported"
BATCH = 1000
PARTITIONS = 6
LIVE_MESSAGES = 5_000
LIVE_EXPORTED = 2_000_000
_BODIES = 20  # of each partition
_COMPUTE = """
import os, time
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
until = time.monotonic() + 3
while time.monotonic() < until:
    pass
"""
_STATES = ("new", "paid", "packed", "sent", "lost")


def documents(draw: random.Random, count: int, size_bytes: int) -> list[bytes]:
    """Return JSON objects of this size."""
    return [_document(draw, size_bytes) for _ in range(count)]


def _document(draw: random.Random, size_bytes: int) -> bytes:
    text = f'{{"id":"{draw.getrandbits(64):016x}","state":"{draw.choice(_STATES)}"'
    text += f',"total":{draw.randrange(10**6) / 100}'
    while len(text) < size_bytes:
        number, unit = draw.randrange(100), draw.getrandbits(32)
        text += f',"item-{number}":{{"sku":"{unit:08x}","count":{draw.randrange(10)}}}'
    return f"{text[: size_bytes - 1]}}}".encode()


def _fill(size_bytes: int, messages: int) -> Callable[[Place], None]:
    def prepare(place: Place) -> None:
        draw, callers = random.Random(20_261_121), []
        for partition in range(PARTITIONS):
            bodies = [
                frames.anonymous_body(documents(draw, BATCH, size_bytes), partition)
                for _ in range(_BODIES)
            ]
            requests = [(frames.request_head(TOPIC, len(body)), body) for body in bodies]
            callers.append(itertools.cycle(requests))
        with Client(place.goq.url) as client:
            client.create_topic(TOPIC, PARTITIONS)
        load(place.goq.port, callers, place.scaled(messages) // BATCH, http_answer_length)

    return prepare


class _Cost(NamedTuple):
    """What a work took: by the clock, of the CPU in both processes, and in memory."""

    wall_s: float
    cpu_s: float
    node_s: float
    rss_mb: float


def _read_all(place: Place) -> _Cost:
    """Read all frames, check them, and let them go."""
    node_s, began_s, used_s = place.goq.cpu_s(), time.perf_counter(), time.process_time()
    with Client(place.goq.url) as client:
        for partition in range(PARTITIONS):
            offset = end = 0
            while offset < end or not end:
                piece = client.read(TOPIC, partition=partition, offset=offset)
                offset, end = piece.next, piece.end
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - used_s
    return _Cost(wall_s, cpu_s, place.goq.cpu_s() - node_s, 0.0)


@contextmanager
def _lake(place: Place) -> Iterator[Path]:
    folder = place.folder / f"lake-{secrets.token_hex(4)}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _export(place: Place, lake: Path) -> _Cost:
    node_s = place.goq.cpu_s()
    ran = run([GOQ, "export", TOPIC, "--to", str(lake)], place.goq.environment())
    return _Cost(ran.wall_s, ran.cpu_s, place.goq.cpu_s() - node_s, ran.rss_mb)


def _costs(size_bytes: int, messages: int) -> Measure:
    def measure(place: Place) -> tuple[float, ...]:
        count = place.scaled(messages) // BATCH * BATCH
        amount = count * size_bytes / 1e6 if size_bytes >= 1000 else count
        read = _read_all(place)
        with _lake(place) as lake:
            ran = _export(place, lake)
            stored = sum(file.stat().st_size for file in lake.rglob("*.parquet"))
        return (
            amount / ran.wall_s,
            amount / ran.cpu_s,
            amount / ran.node_s,
            ran.rss_mb,
            ran.cpu_s / read.cpu_s,
            stored / count,
        )

    return measure


def _live(place: Place, work: Callable[[], object] | None = None) -> tuple[float, float]:
    """Return the quantiles of publishing while some work is done again and again."""
    topic, count = fresh_topic(place.goq), place.scaled(LIVE_MESSAGES, 1000)
    written = place.folder / f"late-{topic}.json"
    publisher = beside(publish_timed, place.goq.url, topic, count, str(written))
    while work is not None and publisher.is_alive():
        work()
    publisher.join()
    return quantiles(json.loads(written.read_text()))


def _compute() -> None:
    """Keep two processes busy for a while that touch neither node nor disk, and give way to all."""
    command = [sys.executable, "-c", _COMPUTE]
    for process in [subprocess.Popen(command) for _ in range(2)]:
        process.wait()


def _lives(place: Place) -> tuple[float, ...]:
    rates: list[float] = []

    def export() -> None:
        with _lake(place) as lake:
            rates.append(place.scaled(LIVE_EXPORTED) / _export(place, lake).wall_s)

    return *_live(place), *_live(place, export), rates[-1], *_live(place, _compute)


def _spark(place: Place) -> tuple[float, ...]:
    """Return the rows a second that Spark reads: from a node, from files, rows that are ready."""
    with _lake(place) as lake:
        _export(place, lake)
        command = [
            sys.executable,
            "-m",
            "bench.pipeline.spark_reads",
            place.goq.url,
            TOPIC,
            str(lake),
        ]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    rates = json.loads(found.stdout.splitlines()[-1])
    parquet = rates["parquet"]
    return *rates.values(), rates["goq"] / parquet, rates["ready"] / parquet


def _cost_work(name: str, size_bytes: int, messages: int, unit: str, target: float) -> Work:
    size = f"{messages / 1e6:g} million messages of {name}"
    text = f"goq export of {size}"
    name = f"export-{name.replace(' ', '').lower()}"
    return Work(
        [
            Row(name, f"{text}, whole process", f"{unit}/s"),
            Row(f"{name}-core", f"{text}: by CPU of the exporter", f"{unit}/s", target),
            Row(f"{name}-node", f"{text}: by CPU of the node", f"{unit}/s"),
            Row(f"{name}-rss", f"{text}: peak memory", "MB"),
            Row(f"{name}-to-read", f"{text}: its CPU to that of reading alone", "times"),
            Row(f"{name}-stored", f"{text}: Parquet", "B/message"),
        ],
        _costs(size_bytes, messages),
        prepare=_fill(size_bytes, messages),
    )


def _spark_work(name: str, size_bytes: int, messages: int, least: float) -> Work:
    text, name = f"Spark, {name}", f"export-spark-{name.replace(' ', '').lower()}"
    return Work(
        [
            Row(name, f"{text}: all columns from a node", "rows/s"),
            Row(f"{name}-parquet", f"{text}: all columns of the exported files", "rows/s"),
            Row(f"{name}-ready", f"{text}: the same from Python, where they are ready", "rows/s"),
            Row(f"{name}-ratio", f"{text}: from a node to from files", "of Parquet", least),
            Row(f"{name}-floor", f"{text}: ready in Python to from files", "of Parquet"),
        ],
        _spark,
        prepare=_fill(size_bytes, messages),
    )


_LIVE = f"publish of 1 KB, {RATE:,} a second, due to stored"
WORKS = [
    _cost_work("100 B", 100, 4_000_000, "msg", 1_000_000),
    _cost_work("1 KB", 1000, 1_000_000, "MB", 250),
    Work(
        [
            Row("export-live-alone-p50", f"{_LIVE}: p50", "ms"),
            Row("export-live-alone-p99", f"{_LIVE}: p99", "ms"),
            Row("export-live-p50", f"{_LIVE}, beside exports: p50", "ms"),
            Row(
                "export-live-p99",
                f"{_LIVE}, beside exports: p99",
                "ms",
                2.0,
                target_of="export-live-alone-p99",
                at_most=True,
            ),
            Row("export-live-rate", "exported meanwhile, 100 B", "msg/s"),
            Row("export-live-compute-p50", f"{_LIVE}, beside two idle-priority loops: p50", "ms"),
            Row("export-live-compute-p99", f"{_LIVE}, beside two idle-priority loops: p99", "ms"),
        ],
        _lives,
        prepare=_fill(100, LIVE_EXPORTED),
    ),
    _spark_work("100 B", 100, 4_000_000, 0.6),
    _spark_work("1 KB", 1000, 1_000_000, 0.5),
]
