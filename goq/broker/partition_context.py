"""Opening a partition: its two logs after recovery, and the state that they lead to."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

from goq.broker.log.frame_cache import FrameCache
from goq.broker.log.quorum import Quorum
from goq.broker.runtime.metrics import Histogram
from goq.broker.runtime.tasks import Tasks
from goq.clock import Clock
from goq.storage.disk import Disk
from goq.storage.log.segment import Segment


class PartitionId(NamedTuple):
    """Which partition of which topic."""

    topic: str
    number: int


class Quorums(NamedTuple):
    """What the writers of a partition's two logs wait for besides their own disk."""

    messages: Quorum
    events: Quorum


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What every partition of a node shares, but for ``epoch`` where others have replicas of it:
    then each has one of its own, the leader epoch."""

    disk: Disk
    executor: Executor
    clock: Clock
    epoch: int
    on_seal: Callable[[PartitionId, str, Segment], None]
    write_seconds: Histogram
    frames: FrameCache
    tasks: Tasks
    random: Callable[[], float]
    """Draws a number from 0 to below 1."""
    new_id: Callable[[], int]
    """Draws a producer id that nobody else has."""
