"""What a partition is given by its node and its topic, and what its parts share.

:class:`PartitionContext` holds what all partitions of a node share. :class:`PartitionCallbacks`
tell the topic what happens. :class:`Availability` says whether the partition can be used.
"""

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
from goq.config.topic import TopicSettings
from goq.delivery.snapshot import DEFAULT_SNAPSHOT_LIMITS, SnapshotLimits
from goq.errors import GoqError, PartitionOffline
from goq.storage.disk import Disk
from goq.storage.log.segment import Segment
from goq.storage.scanner import Damage


class PartitionId(NamedTuple):
    """A partition's topic and number; as text ``orders:3``."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.number}"


class Quorums(NamedTuple):
    """The quorums that the writers of the two logs wait for, in addition to the local disk."""

    messages: Quorum
    events: Quorum


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What every partition of a node shares.

    ``epoch`` counts the starts of the node. A replicated partition has a context of its own, whose
    ``epoch`` is the leader epoch.
    """

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
    """Draws a producer id that no other producer has."""
    snapshot_limits: SnapshotLimits = DEFAULT_SNAPSHOT_LIMITS


@dataclass(frozen=True, slots=True)
class PartitionCallbacks:
    """What a partition tells its topic."""

    on_ready: Callable[[str | None], None]
    """There may be something to receive: for one group, or with None for all."""
    on_failure: Callable[[], None]
    """The partition went offline: its last decisions were lost to the disk."""
    on_departing: Callable[[], None]
    """A message is to leave for another topic."""
    on_settled: Callable[[str | None, int | None, int], None]
    """So many messages of a lease, by group and token, are no longer with their consumer. Without
    a token: any of any lease. Without a group: of any group."""
    settings_of: Callable[[str], TopicSettings]
    """The settings that hold for a group."""
    on_disk_failure: Callable[[GoqError], None]
    """The disk is full, or has failed."""
    may_be_repaired: Callable[[Damage], bool]
    """Whether another replica may have what is damaged; if so, that replica is going to lead."""


class Availability:
    """Whether a partition can be used; ``error`` says why it cannot, None while it can."""

    __slots__ = ("error", "identity")

    def __init__(self, identity: PartitionId) -> None:
        self.identity = identity
        self.error: GoqError | None = None

    def check(self) -> None:
        """Raise why the partition cannot be used, if so."""
        if self.error is not None:
            raise self.error

    def take_offline(self, reason: str, *, retry_after_ms: int | None = None) -> GoqError:
        """Refuse everything from now on; return the error, the first one where there are two."""
        self.error = self.error or PartitionOffline(
            f"partition {self.identity.number} of {self.identity.topic} {reason}",
            retry_after_ms=retry_after_ms,
        )
        return self.error
