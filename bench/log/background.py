"""What reading a large log costs those who use the node meanwhile, and a range of times in it.

The same live traffic is measured alone, beside a reader that takes all it can get, and beside one
in the background.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from ctypes import c_long
from multiprocessing.sharedctypes import Synchronized
from statistics import median

from bench.harness.rows import Place, Row, Work
from bench.harness.topics import fill, fresh_topic
from bench.messages.latency import RATE, beside, publish_goq, publish_timed, quantiles, receive_goq
from goq.client import Client
from goq.units import format_time_us

TOPIC = "large"
MESSAGES = 2_000_000
SIZE_BYTES = 200
LARGE_BYTES = 1000
LIVE_MESSAGES = 10_000
FEW_RATE = 100
RANGE_MS = 10
RANGES = 20
_READ_S = 2.0


def _prepare(place: Place, size_bytes: int = SIZE_BYTES) -> None:
    with Client(place.goq.url) as client:
        client.create_topic(TOPIC)
    fill(place.goq, TOPIC, place.scaled(MESSAGES * SIZE_BYTES) // size_bytes, size_bytes)


def _prepare_large(place: Place) -> None:
    _prepare(place, LARGE_BYTES)


def _read_over_and_over(url: str, background: bool, counted: Synchronized[int]) -> None:
    with Client(url) as client:
        partition, offset = 0, 0
        while True:
            piece = client.read(TOPIC, partition=partition, offset=offset, background=background)
            counted.value += piece.next - offset
            offset = piece.next
            if offset >= piece.end:
                partition, offset = (partition + 1) % 6, 0


def _live(place: Place, background: bool | None) -> tuple[float, float, float]:
    """Return the quantiles of live traffic in ms, and how many messages a second were read."""
    counted = multiprocessing.get_context("spawn").Value(c_long, 0)
    reader = None
    if background is not None:
        reader = beside(_read_over_and_over, place.goq.url, background, counted)
        while not counted.value:
            time.sleep(0.01)
    topic, count = fresh_topic(place.goq), place.scaled(LIVE_MESSAGES, 1000)
    sender = beside(publish_goq, place.goq.url, topic, count)
    _await_first(place, topic)
    before, began_s = counted.value, time.perf_counter()
    late_ms = asyncio.run(receive_goq(place.goq.url, topic, count))
    rate = (counted.value - before) / (time.perf_counter() - began_s)
    sender.join()
    if reader is not None:
        reader.terminate()
        reader.join()
    return *quantiles(late_ms), rate


def _await_first(place: Place, topic: str) -> None:
    with Client(place.goq.url) as client:
        while not any(item.end_offset for item in client.describe_topic(topic).partitions):
            time.sleep(0.01)


def _all_three(place: Place) -> tuple[float, ...]:
    alone, beside_all, behind = (_live(place, b) for b in (None, False, True))
    return *alone[:2], *beside_all, *behind


def _beside_few(place: Place) -> tuple[float, ...]:
    """Return the p99 of a few publishes without and beside a reader, and the MB a second it reads.

    The reader's rate without them comes last.
    """
    counted = multiprocessing.get_context("spawn").Value(c_long, 0)

    def publish_ms() -> float:
        topic, written = fresh_topic(place.goq), place.folder / "late.json"
        count = place.scaled(10 * FEW_RATE, FEW_RATE)
        beside(publish_timed, place.goq.url, topic, count, str(written), FEW_RATE).join()
        return quantiles(json.loads(written.read_text()))[1]

    def read_so_far() -> tuple[float, float]:
        return counted.value * LARGE_BYTES / 1e6, time.perf_counter()

    alone_ms = publish_ms()
    reader = beside(_read_over_and_over, place.goq.url, True, counted)
    while not counted.value:
        time.sleep(0.01)
    began = read_so_far()
    beside_ms = publish_ms()
    then = read_so_far()
    time.sleep(_READ_S)
    ended = read_so_far()
    reader.terminate()
    reader.join()
    return alone_ms, beside_ms, _rate(began, then), _rate(then, ended)


def _rate(began: tuple[float, float], ended: tuple[float, float]) -> float:
    return (ended[0] - began[0]) / (ended[1] - began[1])


def _ranges(place: Place) -> float:
    """Read short ranges in the middle of the log, each from all partitions."""
    with Client(place.goq.url) as client:
        ends_us = []
        for offset in (0, client.read(TOPIC, partition=0, limit=1).end - 1):
            [message] = client.read(TOPIC, partition=0, offset=offset, limit=1).messages
            ends_us.append(message.timestamp)
        middle_us = sum(ends_us) // 2
        took_ms = []
        for number in range(RANGES):
            from_us = middle_us + number * 1_000_000 // RANGES
            first, last = format_time_us(from_us), format_time_us(from_us + RANGE_MS * 1000)
            began_s = time.perf_counter()
            for partition in range(6):
                client.read(TOPIC, partition=partition, from_time=first, to_time=last)
            took_ms.append((time.perf_counter() - began_s) * 1000)
    return median(took_ms)


_LIVE = f"publish to delivered, {RATE:,} msg/s"
_FEW = f"publish of 1 KB, {FEW_RATE} a second, due to stored"
WORKS = [
    Work(
        [
            Row("background-alone-p50", f"{_LIVE}, nobody reads the log: p50", "ms"),
            Row("background-alone-p99", f"{_LIVE}, nobody reads the log: p99", "ms"),
            Row("background-full-p50", f"{_LIVE}, a log read at full speed: p50", "ms"),
            Row("background-full-p99", f"{_LIVE}, a log read at full speed: p99", "ms"),
            Row("background-full-rate", "read at full speed meanwhile", "msg/s"),
            Row("background-p50", f"{_LIVE}, a log read in the background: p50", "ms"),
            Row(
                "background-p99",
                f"{_LIVE}, a log read in the background: p99",
                "ms",
                1.5,
                target_of="background-alone-p99",
                at_most=True,
            ),
            Row("background-rate", "read in the background meanwhile", "msg/s"),
        ],
        _all_three,
        prepare=_prepare,
    ),
    Work(
        [
            Row("background-few-alone-p99", f"{_FEW}, nobody reads the log: p99", "ms"),
            Row("background-few-p99", f"{_FEW}, a log read in the background: p99", "ms"),
            Row("background-few-rate", f"read of 1 KB beside {FEW_RATE} publishes/s", "MB/s", 150),
            Row("background-few-alone-rate", "the same without them", "MB/s"),
        ],
        _beside_few,
        prepare=_prepare_large,
    ),
    Work(
        [
            Row(
                "range-of-times",
                f"{RANGE_MS} ms in the middle of {MESSAGES // 1_000_000} million messages,"
                " all 6 partitions",
                "ms",
                50,
                at_most=True,
            )
        ],
        _ranges,
        prepare=_prepare,
    ),
]
