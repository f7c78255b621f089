"""A backup of a running node: its speed beside a plain copy, and what it costs live traffic."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import secrets
import shutil
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from bench.harness.rows import Place, Row, Work
from bench.harness.servers import GoqNode
from bench.harness.topics import fill, fresh_topic
from bench.messages.latency import RATE, beside, publish_goq, quantiles, receive_goq
from goq.client import Client

TOPIC = "large"
MESSAGES = 1_000_000
LIVE_MESSAGES = 10_000
_PIECE_BYTES = 4 << 20


def _live(node: GoqNode, count: int) -> tuple[float, float]:
    """Return the quantiles of live traffic in ms."""
    topic = fresh_topic(node)
    sender = beside(publish_goq, node.url, topic, count)
    with Client(node.url) as client:
        while not any(item.end_offset for item in client.describe_topic(topic).partitions):
            time.sleep(0.01)
    late_ms = asyncio.run(receive_goq(node.url, topic, count))
    sender.join()
    return quantiles(late_ms)


def _back_up(url: str, folder: Path, is_over: Synchronized[int]) -> None:
    """Back up over and over, all anew each time."""
    with Client(url) as client:
        while not is_over.value:
            client.create_backup()
            folder.rename(folder.with_name(f"backups-{time.monotonic_ns()}"))


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def _copy(source: Path, target: Path) -> None:
    """Copy the files of a folder as ``cp`` does, durably."""
    target.mkdir()
    for number, path in enumerate(sorted(source.rglob("*.log"))):
        with path.open("rb") as read, (target / str(number)).open("wb") as written:
            shutil.copyfileobj(read, written, _PIECE_BYTES)
            written.flush()
            os.fsync(written.fileno())


def _measure(place: Place) -> tuple[float, ...]:
    folder = place.folder / secrets.token_hex(4)
    folder.mkdir()
    backups, count = folder / "backups", place.scaled(LIVE_MESSAGES, 1000)
    try:
        with (
            GoqNode(folder / "node", "--set", f"backup.to={backups}") as node,
            Client(node.url) as client,
        ):
            client.create_topic(TOPIC)
            fill(node, TOPIC, place.scaled(MESSAGES))
            alone = _live(node, count)
            is_over = multiprocessing.get_context("spawn").Value("i", 0)
            backing_up = beside(_back_up, node.url, backups, is_over)
            meanwhile = _live(node, count)
            is_over.value = 1
            backing_up.join()
            client.create_backup()
            unchanged_s = _seconds(client.create_backup)
            shutil.rmtree(backups)
            megabytes = client.create_backup().copied_bytes / 1e6
            shutil.rmtree(backups)
            backup_s = _seconds(client.create_backup)
            copy_s = _seconds(lambda: _copy(folder / "node", folder / "copy"))
    finally:
        shutil.rmtree(folder)
    return *alone, *meanwhile, megabytes / copy_s, megabytes / backup_s, unchanged_s


_TRAFFIC = f"publish to delivered, {RATE:,} msg/s"
WORKS = [
    Work(
        [
            Row("backup-alone-p50", f"{_TRAFFIC}: p50", "ms"),
            Row("backup-alone-p99", f"{_TRAFFIC}: p99", "ms"),
            Row("backup-beside-p50", f"{_TRAFFIC}, beside backups of 1 GB: p50", "ms"),
            Row(
                "backup-beside-p99",
                f"{_TRAFFIC}, beside backups of 1 GB: p99",
                "ms",
                2.0,
                target_of="backup-alone-p99",
                at_most=True,
            ),
            Row("backup-copy", "copy of the segments, each synced, without goq", "MB/s"),
            Row(
                "backup-rate",
                "backup of 1 GB by a node without traffic",
                "MB/s",
                0.9,
                target_of="backup-copy",
            ),
            Row("backup-unchanged", "backup with nothing changed", "s", 2, at_most=True),
        ],
        _measure,
    )
]
