"""The context of a partition: shared services of the node, callbacks of the topic, availability.

:class:`PartitionContext` holds the services that all partitions of a node share.
:class:`PartitionCallbacks` notify the topic. :class:`Availability` is the partition's status.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

import msgspec

from goq.broker.log.commit_turn import CommitTurn
from goq.broker.log.frame_cache import FrameCache
from goq.broker.log.quorum import Quorum
from goq.broker.runtime.metrics import WriteTimes
from goq.broker.runtime.tasks import Tasks
from goq.clock import Clock
from goq.config.topic import TopicSettings
from goq.delivery.snapshot import DEFAULT_SNAPSHOT_LIMITS, SnapshotLimits
from goq.errors import GoqError, PartitionOffline
from goq.index_cache import IndexCache
from goq.model import NO_TOPIC_ID, topic_folder
from goq.storage.disk import Disk
from goq.storage.journal.journal import NodeJournal
from goq.storage.log.segment import Segment
from goq.storage.scanner import Damage


class PartitionId(NamedTuple):
    """A partition's topic and number; as text ``orders:3``.

    ``topic_id`` tells the topic from others that have, or had, its name.
    """

    topic: str
    number: int
    topic_id: int = NO_TOPIC_ID

    @property
    def folder(self) -> str:
        """The name of the topic's folder."""
        return topic_folder(self.topic, self.topic_id)

    def __str__(self) -> str:
        return f"{self.topic}:{self.number}"


class Quorums(NamedTuple):
    """The quorums that the writers of the two logs wait for, in addition to the local disk."""

    messages: Quorum
    events: Quorum


class PartitionContext(msgspec.Struct, frozen=True):
    """The services that all partitions of a node share.

    ``epoch`` counts the starts of the node. A replicated partition has its own context, in which
    ``epoch`` is the leader epoch.
    """

    disk: Disk
    executor: Executor
    clock: Clock
    epoch: int
    on_seal: Callable[[PartitionId, str, Segment], None]
    write_seconds: WriteTimes
    frames: FrameCache
    tasks: Tasks
    random: Callable[[], float]
    """Returns a random number from 0 to below 1."""
    new_id: Callable[[], int]
    """Returns a new unique producer id."""
    snapshot_limits: SnapshotLimits = DEFAULT_SNAPSHOT_LIMITS
    indexes: IndexCache = msgspec.field(default_factory=IndexCache)
    turn: CommitTurn = msgspec.field(default_factory=CommitTurn)
    journal: NodeJournal | None = None
    is_disk_full: Callable[[], bool] = lambda: False
    """Returns whether the disk takes only what is vital."""


class PartitionCallbacks(msgspec.Struct, frozen=True):
    """The notifications of a partition to its topic."""

    on_ready: Callable[[str | None], None]
    """Messages may be ready: for one group, or with None for all groups."""
    on_staged: Callable[[], None]
    """Messages are ready, and the event loop is about to write them."""
    on_group_change: Callable[[str | None], None]
    """An event may have changed what a group can receive, with None what any group can."""
    is_awaited: Callable[[], bool]
    """Returns whether any consumer waits for messages."""
    on_failure: Callable[[], None]
    """The partition went offline: a disk fault lost its latest events."""
    on_outbox_entry: Callable[[], None]
    """The outbox has a new entry."""
    on_settled: Callable[[str | None, int | None, int, bool], None]
    """So many messages of a lease, by group and token, are no longer with their consumer; with true
    because the lease expired. Without a token any lease of the group may have lost messages,
    without a group any lease at all."""
    settings_of: Callable[[str], TopicSettings]
    """Returns the settings of a group."""
    on_disk_failure: Callable[[GoqError], None]
    """The disk is full, or has failed."""
    may_be_repaired: Callable[[Damage], bool]
    """Whether another replica may have the damaged data; if so, that replica will lead."""


class Availability:
    """The status of a partition; ``error`` is None while it is usable."""

    __slots__ = ("error", "identity")

    def __init__(self, identity: PartitionId) -> None:
        self.identity = identity
        self.error: GoqError | None = None

    def check(self) -> None:
        """Raise the error unless the partition is usable."""
        if self.error is not None:
            raise self.error

    def take_offline(self, reason: str, *, retry_after_ms: int | None = None) -> GoqError:
        """Refuse all requests from now on; return the error. An earlier error stays."""
        self.error = self.error or PartitionOffline(
            f"partition {self.identity.number} of {self.identity.topic} {reason}",
            retry_after_ms=retry_after_ms,
        )
        return self.error
