"""The cost of an audit of many messages: they are published, consumed, exported and audited once.

One topic of 100-byte values, one group that acknowledges each message. The audit must find
every message acknowledged, and nothing wrong. Run it as

    python -m bench.pipeline.audit --messages 10000000 --folder DIR

``--made-up`` leaves out the node: the files of the export are made up.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import frames
from bench.harness.loader import http_answer_length, load
from bench.harness.servers import GOQ, GoqNode
from bench.pipeline.export import documents
from bench.pipeline.lake import make_lake
from goq.client import AsyncClient, Client

TOPIC, GROUP = "audited", "billing"
BATCH, SIZE_BYTES, PARTITIONS = 1000, 100, 6
AUDIT_S_MAX = 900.0
_BODIES = 20  # of each partition
_CONSUMERS = 4
_NO_RETENTION = {"retention.age": "none", "retention.bytes": "none"}


def main() -> int:
    """Measure once, print a line of JSON for each step; return 1 if the audit is wrong or slow."""
    given = argparse.ArgumentParser(prog="python -m bench.pipeline.audit", description=__doc__)
    given.add_argument("--messages", type=int, default=10_000_000)
    given.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given.add_argument("--made-up", action="store_true")
    options = given.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="audit-") as made:
        folder = Path(made)
        if options.made_up:
            with _timed("make up"):
                count = make_lake(folder / "lake", TOPIC, GROUP, options.messages)
        else:
            count = _export(folder, options.messages // BATCH)
        with _timed("audit") as took:
            code, report = _audit(folder / "lake")
        counts = report["sections"][0]["rows"]
        print(json.dumps({"counts": counts, "failed": report["failed"]}), flush=True)
        told = {(row["fate"], row["messages"]) for row in counts}
        is_whole = not code and told == {("acknowledged", count)}
        return 0 if is_whole and took[0] <= AUDIT_S_MAX else 1


def _export(folder: Path, requests: int) -> int:
    """Export a topic that was published and consumed; return the number of messages."""
    with GoqNode(folder / "node") as node:
        with _timed("publish"):
            _publish(node, requests)
        with _timed("consume"):
            asyncio.run(_consume(node))
        with _timed("export"):
            command = [GOQ, "export", TOPIC, "--to", str(folder / "lake")]
            subprocess.run(command, env=node.environment(), check=True)
    shutil.rmtree(folder / "node")
    return requests * BATCH


@contextmanager
def _timed(step: str) -> Iterator[list[float]]:
    took: list[float] = []
    began_s = time.perf_counter()
    yield took
    took.append(time.perf_counter() - began_s)
    print(json.dumps({"step": step, "seconds": round(took[0], 1)}), flush=True)


def _publish(node: GoqNode, requests: int) -> None:
    draw, callers = random.Random(20_261_123), []
    for partition in range(PARTITIONS):
        bodies = [
            frames.anonymous_body(documents(draw, BATCH, SIZE_BYTES), partition)
            for _ in range(_BODIES)
        ]
        callers.append(
            itertools.cycle([(frames.request_head(TOPIC, len(body)), body) for body in bodies])
        )
    with Client(node.url) as client:
        client.create_topic(TOPIC, PARTITIONS, settings=_NO_RETENTION)
    load(node.port, callers, requests, http_answer_length)


async def _consume(node: GoqNode) -> None:
    async with AsyncClient(node.url) as client:

        async def consume() -> None:
            while len(batch := await client.receive_batch(TOPIC, GROUP, max_messages=BATCH)):
                await batch.ack()

        await asyncio.gather(*(consume() for _ in range(_CONSUMERS)))


def _audit(lake: Path) -> tuple[int, dict[str, Any]]:
    command = [GOQ, "--json", "report", "audit", "--from", str(lake)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    return done.returncode, json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
