"""``python -m bench.node.endurance [--minutes N]``: memory and open files under a mixed load.

One node has small segments, retention by size, an archive and compaction. Meanwhile clients
publish with lanes, keys, tenants, dedup ids and delays, ack, nack and reject, read the log and the
archive, search by key, trace, and create and delete topics. Each sample is the node's resident
memory and its open files. Then the load stops and memory is measured again.

With ``--caches`` the bounds of the node's caches are cut to so many MiB together, so that they are
full after a minute: what memory gains then is not theirs.

Exit 1 if memory in the last third is over that of the second third by more than ``--growth`` MB,
or if open files are, once the LRU of data files is full.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.harness.servers import GOQ, GoqNode
from goq import limits
from goq.client import AsyncClient
from goq.errors import GoqError
from goq.model import Message

SAMPLE_S = 5.0
IDLE_S = 60.0
FILES_GROWTH_MAX = 50
_SMALL_LOG = {"segment.bytes": "1MiB", "retention.bytes": "8MiB", "dedup.window": "1m"}
_TOPICS = {
    "work": _SMALL_LOG | {"archive": "true"},
    "jobs": _SMALL_LOG | {"retention.age": "1m", "delivery.backoff.initial": "1s"},
    "state": {"segment.bytes": "64KiB", "cleanup": "compact"},
}
_KEYS = 5_000
_COMPACTED_KEYS = 200
_TENANTS = 500
_RATE_BATCHES = 20
_VALUE_BYTES = 1_000
_CACHES = (
    "FRAME_CACHE_BYTES",
    "ARCHIVE_CACHE_BYTES",
    "ARCHIVE_CACHE_FOOTERS",
    "ARCHIVE_INDEXES_BYTES",
    "INDEX_CACHE_BYTES",
)


class Sample(NamedTuple):
    seconds: float
    memory_mb: float
    open_files: int


class _Load:
    """The clients of a node: loops that never end."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._draw = random.Random(20_261_123)
        self._ids: list[str] = []

    def loops(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self._publish_work,
            self._publish_jobs,
            self._publish_state,
            *(lambda group=group: self._consume("work", group) for group in ("a", "b")),
            lambda: self._consume("jobs", "workers"),
            self._read,
            self._read_archive,
            self._search,
            self._trace,
            self._make_topics,
        ]

    def _message(self, *, is_job: bool = False, keys: int = _KEYS) -> Message:
        draw = self._draw
        return Message(
            draw.randbytes(draw.randrange(2 * _VALUE_BYTES)),
            key=b"key-%d" % draw.randrange(keys),
            lane=draw.randrange(3),
            tenant=f"tenant-{draw.randrange(_TENANTS)}",
            dedup_id=draw.randbytes(16) if is_job else None,
            deliver_at_ms=-draw.randrange(1, 30_000) if is_job and draw.random() < 0.3 else 0,
        )

    async def _publish_work(self) -> None:
        sizes = itertools.cycle((1, 10, 100, 1_000, 5_000))
        for size in sizes:
            stored = await self._client.publish_many("work", [self._message() for _ in range(size)])
            self._ids = [str(stored[0].id), *self._ids[:99]]
            await asyncio.sleep(1 / _RATE_BATCHES)

    async def _publish_jobs(self) -> None:
        while True:
            messages = [self._message(is_job=True) for _ in range(20)]
            await self._client.publish_many("jobs", messages)
            await asyncio.sleep(1 / _RATE_BATCHES)

    async def _publish_state(self) -> None:
        while True:
            await self._client.publish_many(
                "state", [self._message(keys=_COMPACTED_KEYS) for _ in range(50)]
            )
            await asyncio.sleep(2 / _RATE_BATCHES)

    async def _consume(self, topic: str, group: str) -> None:
        while True:
            batch = await self._client.receive_batch(topic, group, max_messages=1_000, wait="5s")
            chance = self._draw.random()
            if not len(batch):
                continue
            if chance < 0.05:
                await batch.nack("1s")
            elif chance < 0.06:
                receipts = batch.receipts()[:5]
                await self._client.reject(topic, group, receipts, reason="unfit")
                await batch.ack()
            else:
                await batch.ack()

    async def _read(self) -> None:
        while True:
            for partition in range(6):
                await self._client.read("work", partition=partition)
            await asyncio.sleep(0.2)

    async def _read_archive(self) -> None:
        while True:
            for partition in range(6):
                read = self._client.read
                found = await read("work", partition=partition, offset=0, include_deleted=True)
                offset = self._draw.randrange(max(1, found.end))
                await read("work", partition=partition, offset=offset, include_deleted=True)
            await asyncio.sleep(1)

    async def _search(self) -> None:
        while True:
            key = f"key-{self._draw.randrange(_KEYS)}"
            await self._client.search_traces("work", key=key)
            await asyncio.sleep(0.3)

    async def _trace(self) -> None:
        while True:
            for message_id in self._ids[:3]:
                await self._client.get_trace(message_id)
            await asyncio.sleep(0.3)

    async def _make_topics(self) -> None:
        for number in itertools.count():
            name = f"short-lived-{number}"
            await self._client.publish(name, b"x")
            await self._client.receive_batch(name, "g")
            await asyncio.sleep(2)
            await self._client.delete_topic(name)


async def _forever(loop: Callable[[], Awaitable[None]]) -> None:
    """Run a loop of the load; what the node refuses is tried again after a while."""
    while True:
        with contextlib.suppress(GoqError):
            await loop()
        await asyncio.sleep(0.5)


def _run_load(url: str, archive: bool) -> None:
    async def main() -> None:
        async with AsyncClient(url) as client:
            for name, settings in _TOPICS.items():
                of_name = settings if archive else {**settings, "archive": "false"}
                await client.create_topic(name, 6, of_name)
            await asyncio.gather(*map(_forever, _Load(client).loops()))

    asyncio.run(main())


def _sample(node: GoqNode, began_s: float) -> Sample:
    files = len(os.listdir(f"/proc/{node.process.pid}/fd"))
    return Sample(time.monotonic() - began_s, node.rss_mb(), files)


def _watch(node: GoqNode, seconds: float, minute_s: float) -> list[Sample]:
    """Return samples taken for so long; print one a minute."""
    began_s = time.monotonic()
    samples = [_sample(node, began_s)]
    while samples[-1].seconds < seconds:
        time.sleep(SAMPLE_S)
        sample = _sample(node, began_s)
        if sample.seconds // minute_s > samples[-1].seconds // minute_s:
            print(
                f"{sample.seconds:6.0f} s  {sample.memory_mb:5.0f} MB {sample.open_files:5} files",
                flush=True,
            )
        samples.append(sample)
    return samples


def _program(caches_mb: float | None) -> Sequence[str]:
    """Return how to run ``goq``, with a part of the bounds of its caches if that is given."""
    if caches_mb is None:
        return (GOQ,)
    share = caches_mb * limits.MIB / limits.CACHES_BYTES_MAX
    cut = "; ".join(f"limits.{name} = int(limits.{name} * {share})" for name in _CACHES)
    run = f"import sys; from goq import limits; {cut}; from goq_cli.main import main; main()"
    return (sys.executable, "-c", run)


def measure(
    folder: Path,
    minutes: float,
    growth_mb_max: float,
    *,
    archive: bool = True,
    caches_mb: float | None = None,
) -> bool:
    """Run the load on a new node in ``folder``; return whether memory and files stayed flat."""
    with GoqNode(folder, program=_program(caches_mb)) as node:
        load = multiprocessing.get_context("spawn").Process(
            target=_run_load, args=(node.url, archive), daemon=True
        )
        load.start()
        try:
            samples = _watch(node, 60 * minutes, 60.0)
            is_alive = load.is_alive()
        finally:
            load.terminate()
            load.join()
        cpu = node.cpu_s() / (60 * minutes)
        print("without load:")
        idle = _watch(node, IDLE_S, 15.0)[-1]
        peak_mb = node.rss_mb("VmHWM")
    before, last = (_thirds(samples)[number] for number in (1, 2))
    memory_growth = _median(last, 1) - _median(before, 1)
    files_growth = _median(last, 2) - _median(before, 2)
    print(
        f"{minutes:g} minutes, {cpu:.2f} of a core;"
        f" MB in the middle third {_median(before, 1):.0f}, in the last {_median(last, 1):.0f},"
        f" at most {peak_mb:.0f}, after {IDLE_S:g} s of rest {idle.memory_mb:.0f};"
        f" open files {_median(before, 2):.0f}, then {_median(last, 2):.0f}"
    )
    are_files_flat = files_growth <= FILES_GROWTH_MAX or _median(last, 2) <= limits.OPEN_FILES_MAX
    is_flat = memory_growth <= growth_mb_max and are_files_flat
    return is_alive and is_flat


def _thirds(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    third = max(1, len(samples) // 3)
    return [samples[:third], samples[third : 2 * third], samples[2 * third :]]


def _median(samples: Sequence[Sample], field: int) -> float:
    return statistics.median(sample[field] for sample in samples)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.node.endurance", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="default 30")
    parser.add_argument("--growth", type=float, default=20, help="MB that are allowed, default 20")
    parser.add_argument("--no-archive", action="store_true", help="delete what is archived else")
    parser.add_argument("--caches", type=float, metavar="MIB", help="bound of all caches together")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the node is stopped
    with tempfile.TemporaryDirectory(prefix=".goq-bench-", dir=Path.cwd()) as name:
        is_flat = measure(
            Path(name) / "data",
            arguments.minutes,
            arguments.growth,
            archive=not arguments.no_archive,
            caches_mb=arguments.caches,
        )
    return 0 if is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
