"""The services that partitions share, as a test wants them."""

from __future__ import annotations

from typing import Any

from goq.broker.log.frame_cache import FrameCache
from goq.broker.partition_context import PartitionContext
from goq.broker.runtime.metrics import WriteTimes
from goq.broker.runtime.tasks import Tasks
from goq.clock import ManualClock
from goq.storage.disk import Disk
from tests.support.storage.disk import InlineExecutor


def context_on(disk: Disk, **others: Any) -> PartitionContext:
    """Return a context on a disk: its threads are this one, and nothing in it is left to chance.

    ``others`` are services to have instead, by name.
    """
    services: dict[str, Any] = {
        "executor": InlineExecutor(),
        "clock": ManualClock(),
        "epoch": 1,
        "on_seal": lambda *_: None,
        "write_seconds": WriteTimes(),
        "frames": FrameCache(),
        "tasks": Tasks(),
        "random": lambda: 0.5,
        "new_id": lambda: 1,
    }
    return PartitionContext(disk, **services | others)
