"""Rules of the product, each of which can be taken out: then some seed has to find a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from goq.broker.dlq import redrive
from goq.broker.outbox.worker import OutboxWorker
from goq.broker.partition import partition
from goq.cluster.controller import controller, runner
from goq.cluster.controller.controller import _ControllerPass
from goq.cluster.liveness.heartbeat import HeartbeatSender
from goq.cluster.metadata.handlers import partitions
from goq.cluster.metadata.state import MetadataState, TopicMetadata
from goq.cluster.raft.log.journal import FILE_NAME
from goq.cluster.raft.node import RaftNode
from goq.cluster.replication.fetch.server import FetchServer
from goq.cluster.replication.follower import FollowerReplica
from goq.cluster.replication.leader import LeaderReplica
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import PartitionUpdate, Position
from goq.cluster.replication.push.protocol import PushHead
from goq.cluster.replication.push.reports import PushReports
from goq.cluster.replication.push.sender import PushSender
from goq.delivery.outbox import OutboxEntry
from goq.storage.log.segment import WriteBatch
from tests.sim.environment import patches
from tests.support.cluster.replication.loop import SimExecutor
from tests.support.storage.disk import _SimulatedFile

Mutation = Callable[[], AbstractContextManager[Any]]
_ALL_IN_THREADS = 120
"""Of a record: what has any message is larger."""
_BESIDE_THE_JOURNAL = 400
"""Of a batch: what has some messages is larger."""


def _raft_answers_before_it_syncs() -> AbstractContextManager[Any]:
    """Its journal is written, and not synced."""
    original = _SimulatedFile.sync

    def sync(self: _SimulatedFile) -> None:
        if self._path.name == FILE_NAME:
            self._begin("sync")
        else:
            original(self)

    return patch.object(_SimulatedFile, "sync", sync)


def _nobody_syncs() -> AbstractContextManager[Any]:
    return patch.object(_SimulatedFile, "sync", lambda self: self._begin("sync") and None)


@contextmanager
def _a_leader_refuses_though_it_may_be_deposed() -> Iterator[None]:
    """It asks neither itself whether it was heard lately, nor the others whether they follow."""
    with (
        patch.object(HeartbeatSender, "has_session", lambda _self: True),
        patch.object(LeaderReplica, "confirm", lambda _self, then: then()),
    ):
        yield


def _a_leader_shows_what_it_alone_has() -> AbstractContextManager[Any]:
    def advance(self: ReplicaProgress) -> None:
        self.high_watermark = self.ends

    return patch.object(ReplicaProgress, "_advance", advance)


def _some_of_the_in_sync_set_are_enough() -> AbstractContextManager[Any]:
    """What ``min_insync`` of the set have is safe; any of the set may still be elected."""

    def advance(self: ReplicaProgress) -> None:
        if self.has_min_insync and self.node in self.in_sync:
            ends = [self._ends_of(name) for name in self.in_sync]
            reached = (sorted(each)[-self.min_insync] for each in zip(*ends, strict=True))
            self.high_watermark = LogOffsets(*map(max, self.high_watermark, reached))

    return patch.object(ReplicaProgress, "_advance", advance)


@contextmanager
def _epochs_are_not_looked_at() -> Iterator[None]:
    """Whatever epoch a follower is in, it takes what comes, and counts as having it."""
    original = FollowerReplica.apply

    def take(self: FollowerReplica, news: PartitionUpdate, frames: memoryview) -> None:
        self.leader_epoch = max(self.leader_epoch, news.leader_epoch)
        original(self, news, frames)

    def fetched(self: LeaderReplica, node: str, ends: LogOffsets, now_ms: int) -> None:
        self.progress.on_fetch(node, LogOffsets(*map(max, ends, self.progress.ends)), now_ms)
        self._announce_high_watermark()

    with (
        patch.object(FollowerReplica, "apply", take),
        patch.object(LeaderReplica, "on_fetch", fetched),
    ):
        yield


def _logs_are_not_cut_where_they_part() -> AbstractContextManager[Any]:
    original = LeaderReplica.read_update

    def news(self: LeaderReplica, position: object, *, is_checked: bool, bytes_max: int) -> object:
        return original(self, position, is_checked=True, bytes_max=bytes_max)

    return patch.object(LeaderReplica, "read_update", news)


def _followers_count_before_they_are_looked_at() -> AbstractContextManager[Any]:
    def note(
        self: FetchServer, leading: LeaderReplica, session: Any, position: Position, now_ms: int
    ) -> None:
        if leading.leader_epoch == position.leader_epoch:
            leading.on_fetch(session.node, position.ends, now_ms)

    return patch.object(FetchServer, "_record_position", note)


def _topics_are_visited_as_they_were_made() -> AbstractContextManager[Any]:
    def active_topics(state: MetadataState) -> Iterator[TopicMetadata]:
        return (topic for topic in state.topics.values() if not topic.deleting)

    return patch.object(partitions, "active_topics", active_topics)


@contextmanager
def _a_deaf_controller_stays() -> Iterator[None]:
    """It fences who it does not hear, and never hands over."""
    with (
        patch.object(runner, "is_deaf", lambda *_: False),
        patch.object(_ControllerPass, "_may_fence", lambda *_: True),
    ):
        yield


def _sessions_outlast_the_lease_of_their_controller() -> AbstractContextManager[Any]:
    """A controller that was cut off renews them, its own too, until it knows."""
    return patch.object(RaftNode, "lease_age_s", lambda _self: 0.0)


def _a_node_that_hears_no_raft_may_lead() -> AbstractContextManager[Any]:
    return patch.object(_ControllerPass, "_is_raft_silent", lambda *_: False)


def _clocks_are_not_compared() -> AbstractContextManager[Any]:
    return patch.object(controller, "is_clock_off", lambda *_, **__: False)


def _leases_keep_the_old_clock() -> AbstractContextManager[Any]:
    """A new leader takes the deadlines of the old one for its own."""
    return patch.object(partition, "clock_change", lambda *_: None)


@contextmanager
def slow_threads() -> Iterator[None]:
    """Have threads write, and take many times as long as a message of the network."""
    with (
        patch.dict(patches.SMALL, JOURNAL_INLINE_BYTES_MAX=_ALL_IN_THREADS),
        patch.object(SimExecutor, "MEAN_S", 0.02),
    ):
        yield


@contextmanager
def _a_leader_counts_what_it_has_not_synced() -> Iterator[None]:
    """It counts a batch once it is pushed. Threads write for longer than an answer takes."""
    original = LeaderReplica.offer

    def offer(self: LeaderReplica, which: int, batch: WriteBatch) -> bool:
        is_offered = original(self, which, batch)
        if is_offered:
            self.on_append(which, batch.end_offset)
        return is_offered

    with (
        patch.object(LeaderReplica, "offer", offer),
        slow_threads(),
    ):
        yield


@contextmanager
def large_batches() -> Iterator[None]:
    """Have threads write the larger batches beside the journal, so that they end in any order."""
    with patch.dict(patches.SMALL, JOURNAL_ENTRY_BYTES_MAX=_BESIDE_THE_JOURNAL), slow_threads():
        yield


@contextmanager
def _a_follower_reports_what_it_has_not_synced() -> Iterator[None]:
    """It reports a push when it arrives, and not when it is stored."""
    arrive, store = PushReports.on_arrival, PushReports.on_stored

    def on_arrival(self: PushReports, head: PushHead) -> None:
        arrive(self, head)
        store(self, [head.number] * len(head.updates))

    def on_stored(_self: PushReports, _numbers: object) -> None:
        pass

    with patch.multiple(PushReports, on_arrival=on_arrival, on_stored=on_stored):
        yield


@contextmanager
def _a_report_counts_for_all_pushes_before_it() -> Iterator[None]:
    """A leader does not know that a follower reports a push before an earlier one is stored."""
    original = PushSender.on_stored

    def on_stored(self: PushSender, number: int, others: Sequence[int] = ()) -> None:
        last = max((number, *others))
        if any(sent <= last for sent in self._in_flight):
            original(self, last)

    with patch.object(PushSender, "on_stored", on_stored), large_batches():
        yield


def _a_dead_letter_leaves_before_it_is_safe() -> AbstractContextManager[Any]:
    """A leader waits for its own disk alone."""

    async def recorded(self: partition.Partition) -> None:
        self.availability.check()
        await self._writer.commit.run_exclusive(lambda: None)
        self.availability.check()

    return patch.object(partition.Partition, "recorded", recorded)


def _a_redrive_is_acknowledged_before_it_is_safe() -> AbstractContextManager[Any]:
    async def wait_for_none(_pending: object) -> None:
        pass

    return patch.object(redrive, "wait_for_all", wait_for_none)


def _an_outbox_does_not_look_at_its_target() -> AbstractContextManager[Any]:
    """When it begins anew, it publishes its first entry whatever the target has of it."""
    look, publish = OutboxWorker._next_sequence, OutboxWorker._publish_copies
    begun = set[OutboxWorker]()

    async def begin(self: OutboxWorker, *arguments: Any) -> None:
        begun.add(self)
        await publish(self, *arguments)

    def first(
        self: OutboxWorker, entry: OutboxEntry, reached: tuple[int, int] | None
    ) -> tuple[int, int]:
        epoch, sequence = look(self, entry, reached)
        if self in begun:
            begun.remove(self)
            return epoch + 1, entry.first_sequence
        return epoch, sequence

    return patch.multiple(OutboxWorker, _publish_copies=begin, _next_sequence=first)


MUTATIONS: dict[str, Mutation] = {
    "topics are visited as they were made": _topics_are_visited_as_they_were_made,
    "raft answers before it syncs": _raft_answers_before_it_syncs,
    "nobody syncs": _nobody_syncs,
    "a leader refuses though it may be deposed": _a_leader_refuses_though_it_may_be_deposed,
    "a leader shows what it alone has": _a_leader_shows_what_it_alone_has,
    "some of the in-sync set are enough": _some_of_the_in_sync_set_are_enough,
    "epochs are not looked at": _epochs_are_not_looked_at,
    "followers count before they are looked at": _followers_count_before_they_are_looked_at,
    "a deaf controller stays": _a_deaf_controller_stays,
    "sessions outlast the lease of their controller": (
        _sessions_outlast_the_lease_of_their_controller
    ),
    "a node that hears no Raft may lead": _a_node_that_hears_no_raft_may_lead,
    "clocks are not compared": _clocks_are_not_compared,
    "leases keep the old clock": _leases_keep_the_old_clock,
    "logs are not cut where they part": _logs_are_not_cut_where_they_part,
    "a leader counts what it has not synced": _a_leader_counts_what_it_has_not_synced,
    "a follower reports what it has not synced": _a_follower_reports_what_it_has_not_synced,
    "a report counts for all pushes before it": _a_report_counts_for_all_pushes_before_it,
    "a dead letter leaves before it is safe": _a_dead_letter_leaves_before_it_is_safe,
    "a redrive is acknowledged before it is safe": _a_redrive_is_acknowledged_before_it_is_safe,
    "an outbox does not look at its target": _an_outbox_does_not_look_at_its_target,
}
