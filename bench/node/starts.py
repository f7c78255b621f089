"""``python -m bench.node.starts [--topics N]``: how long a node with many topics takes to start.

Each topic has 6 partitions with a message each, and a group. Prints the time until the node is
ready, its CPU until then, and its CPU and memory when all partitions are open.

Exit 1 if it takes longer than ``--seconds`` until the node is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from bench.harness.servers import GoqNode
from goq.client import AsyncClient, Client

_PARTITIONS = 6
_MADE_AT_ONCE = 8
_OPEN_S_MAX = 300.0


async def _fill(url: str, topics: int) -> None:
    gate = asyncio.Semaphore(_MADE_AT_ONCE)

    async def make(client: AsyncClient, name: str) -> None:
        async with gate:
            await client.create_topic(name, _PARTITIONS)
            for partition in range(_PARTITIONS):
                await client.publish(name, b"x" * 100, partition=partition)
            batch = await client.receive_batch(name, "g", max_messages=3, wait="0s")
            await batch.ack()

    async with AsyncClient(url) as client:
        await asyncio.gather(*(make(client, f"topic-{number}") for number in range(topics)))


def measure(folder: Path, topics: int) -> float:
    """Fill a folder, start a node on it, and return the seconds until the node was ready."""
    with GoqNode(folder) as node:
        asyncio.run(_fill(node.url, topics))
    began_s = time.monotonic()
    with GoqNode(folder) as node, Client(node.url) as client:
        ready_s, ready_cpu_s = time.monotonic() - began_s, node.cpu_s()
        while client.get_health().opening and time.monotonic() - began_s < _OPEN_S_MAX:
            time.sleep(0.2)
        print(
            f"{topics * _PARTITIONS:,} partitions: ready after {ready_s:.2f} s and"
            f" {ready_cpu_s:.2f} s of CPU; all open after {time.monotonic() - began_s:.2f} s,"
            f" {node.cpu_s():.2f} s of CPU, {node.rss_mb():.0f} MB"
        )
    return ready_s


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.node.starts", description=__doc__)
    parser.add_argument("--topics", type=int, default=2_000, help="default 2000")
    parser.add_argument("--seconds", type=float, default=5.0, help="the goal, default 5")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="default: here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".goq-bench-", dir=arguments.folder) as name:
        ready_s = measure(Path(name) / "data", arguments.topics)
    return 0 if ready_s <= arguments.seconds else 1


if __name__ == "__main__":
    sys.exit(main())
