"""What a node finds that starts on a copy of a broker's folder, asked in a process of its own."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from goq.clock import ManualClock
from tests.support.broker.harness import MemoryMetadata, broker_on, leased, options, receipts
from tests.support.broker.harness import settle_acked as acked
from tests.support.broker.partition_internals import state_of
from tests.support.delivery.model import canonical

_TIMEOUT_S = 60.0


class Copy(NamedTuple):
    """A folder as a crash would leave it, with what the node's database said then."""

    folder: Path
    now_us: int
    rows: dict[str, Any]
    group_settings: dict[tuple[str, str], dict[str, str]]
    epoch: int


class Rebuilt(NamedTuple):
    """The state of each partition, and what the group is given, in order, by partition."""

    states: list[Any]
    drained: dict[int, list[int]]


def rebuild(copies: list[Copy], topic: str, group: str) -> list[Rebuilt]:
    """Open every copy in a second process, note its state, and drain its group."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.broker.rebuild", topic, group],
        input=pickle.dumps([tuple(copy) for copy in copies]),
        capture_output=True,
        timeout=_TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [Rebuilt(*found) for found in pickle.loads(done.stdout)]


async def _rebuilt(copy: Copy, topic: str, group: str) -> Rebuilt:
    metadata = MemoryMetadata()
    metadata.rows, metadata.group_settings = copy.rows, copy.group_settings
    metadata.epoch = copy.epoch
    clock = ManualClock(copy.now_us)
    async with broker_on(copy.folder, metadata=metadata, clock=clock) as broker:
        opened = broker.topic(topic)
        states = [canonical(state_of(partition)) for partition in opened.partitions]
        drained: dict[int, list[int]] = {}
        while found := await opened.receiver.receive(group, options(7)):
            for delivery in found:
                offsets = [offset for offset, _, _ in leased([delivery])]
                drained.setdefault(delivery.partition, []).extend(offsets)
            await acked(opened, group, receipts(found))
    return Rebuilt(states, drained)


def main() -> None:
    """Answer what :func:`rebuild` asks."""
    copies = [Copy(*copy) for copy in pickle.load(sys.stdin.buffer)]
    topic, group = sys.argv[1:]
    found = [tuple(asyncio.run(_rebuilt(copy, topic, group))) for copy in copies]
    sys.stdout.buffer.write(pickle.dumps(found))


if __name__ == "__main__":
    main()
