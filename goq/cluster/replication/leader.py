"""A replica that leads: what it serves to followers, and when its writes are safe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from goq.broker.log.recent_batches import RecentBatches, RecentBatchPool
from goq.broker.partition.loader import PartitionLogs
from goq.broker.partition_context import Quorums
from goq.cluster.replication.fetch.follower_update import (
    FramedLogUpdate,
    FramedUpdate,
    read_log_update,
    refusal_of,
)
from goq.cluster.replication.progress import (
    LogOffsets,
    ReplicaProgress,
    not_enough_replicas,
)
from goq.cluster.replication.protocol import LogUpdate, PartitionKey, PartitionUpdate, Position
from goq.cluster.replication.repair.lost_gaps import LostGaps
from goq.errors import NotLeader
from goq.storage.log.leader_epochs import last_epoch
from goq.storage.log.segment import WriteBatch


class _LogQuorum:
    """The quorum that the writer of one of the two logs waits for."""

    def __init__(self, leader: LeaderReplica, which: int) -> None:
        self._leader = leader
        self._which = which
        self._advance: Callable[[int], None] = lambda _offset: None

    def follow(self, advance: Callable[[int], None]) -> None:
        """Set the callback for each new high watermark."""
        self._advance = advance

    def check(self) -> None:
        """Raise ``NotEnoughReplicas`` or ``NotLeader`` while nothing could be acknowledged."""
        self._leader.check_writable()

    def check_leads(self) -> None:
        """Raise ``NotLeader`` while another node may lead."""
        self._leader.check_leads()

    def offer(self, batch: WriteBatch) -> bool:
        """Push a batch before it is written here; return whether any follower may get it."""
        return self._leader.offer(self._which, batch)

    def keep(self, batch: WriteBatch) -> None:
        """Keep a written batch that was not offered in memory for followers, if there is room."""
        self._leader.recent_batches[self._which].add(batch)

    def appended(self, end_offset: int) -> None:
        """Note that the leader has everything before ``end_offset`` on its disk."""
        self._leader.on_append(self._which, end_offset)

    def holders(self, offset: int) -> Sequence[str]:
        """Return the nodes that have an offset on their disks."""
        return self._leader.progress.holders(self._which, offset)

    def confirm(self, then: Callable[[], None]) -> None:
        """Call ``then`` once it is certain that no other node had begun to lead."""
        self._leader.confirm(then)

    def copied_to(self) -> int:
        """Return the offset before which every node that copies the log now has everything."""
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        return self._leader.progress.copied_to(now_ms)[self._which]

    def announce(self, high_watermark: int) -> None:
        """Pass a new high watermark to the writer."""
        self._advance(high_watermark)


class _Confirmation(NamedTuple):
    """The nodes to hear before it is certain that no other node had begun to lead.

    By node: the session in which it has been heard once since. Its next request in that session was
    sent after this leader's response.
    """

    waiting: dict[str, int | None]
    then: Callable[[], None]


class ReplicaBounds(NamedTuple):
    """The start offsets of both logs, and their high watermarks."""

    messages_start: int
    events_start: int
    high_watermark: LogOffsets


class LeaderReplica:
    """A partition that this node leads in ``leader_epoch``.

    Runs on the event loop, except :meth:`read_update`, which blocks on the disk. ``on_new_data`` is
    called when followers may fetch something new, ``on_offer`` when they may be pushed what is not
    written here yet, ``on_high_watermark_change`` when more is safe,
    ``on_bounds_change`` when a follower at rest must be looked at with its next request: more is
    safe, the in-sync set was decided, or requests are waited for.
    ``has_session`` returns whether no other node can lead by now.
    """

    def __init__(
        self,
        key: PartitionKey,
        leader_epoch: int,
        logs: PartitionLogs,
        progress: ReplicaProgress,
        lost_gaps: LostGaps | None = None,
    ) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self.logs = logs
        self.progress = progress
        self.on_new_data: Callable[[PartitionKey], None] = lambda _key: None
        self.on_offer: Callable[[PartitionKey], None] = lambda _key: None
        self.is_pushed: Callable[[PartitionKey], bool] = lambda _key: False
        """Returns whether any follower is pushed what this node appends."""
        self.on_bounds_change: Callable[[PartitionKey], None] = lambda _key: None
        self.on_high_watermark_change: Callable[[], None] = lambda: None
        self.has_session: Callable[[], bool] = lambda: True
        self.recent_batches = _of_both_logs(RecentBatchPool())
        self._lost_gaps = lost_gaps or LostGaps()
        self._is_handing_over = False
        self._start_epochs: dict[int, int] = {}
        self._offered_ends = progress.ends
        self._announced = progress.high_watermark
        self._confirmations: list[_Confirmation] = []
        self._quorums = (_LogQuorum(self, 0), _LogQuorum(self, 1))
        progress.on_local_append(progress.ends)

    @property
    def quorums(self) -> Quorums:
        """The quorums that the writers of the two logs wait for."""
        return Quorums(*self._quorums)

    @property
    def is_caught_up(self) -> bool:
        """Whether all that the logs held when the leadership began is safe."""
        return self.progress.high_watermark.reaches(self.progress.start)

    def keep_recent_in(self, pool: RecentBatchPool) -> None:
        """Keep what is written from now on in memory, together with other partitions."""
        self.recent_batches = _of_both_logs(pool)

    def stop_accepting(self) -> None:
        """Accept no more writes: another node will lead. Pending writes may still become safe."""
        self._is_handing_over = True

    def check_writable(self) -> None:
        """Raise the reason why nothing could be acknowledged now.

        ``NotEnoughReplicas`` while too few replicas are in sync. ``NotLeader`` while another node
        may lead: what that leader has stored is not known here, so a batch that continues it would
        be refused for good.
        """
        progress = self.progress
        if self._is_handing_over:
            raise NotLeader("this node hands the partition over; ask again in a moment")
        self.check_leads()
        if not progress.has_min_insync:
            raise not_enough_replicas(
                self.key.topic, self.key.number, len(progress.in_sync), progress.min_insync
            )

    def check_leads(self) -> None:
        """Raise ``NotLeader`` while another node may lead."""
        if not self.has_session():
            raise NotLeader(
                "this node has lost its session with the controller; another node may lead by now"
            )

    @property
    def pushable_ends(self) -> LogOffsets:
        """The ends up to which followers may have been given frames of this leadership.

        They are beyond those on this node's disk while it writes what was offered.
        """
        return LogOffsets(*map(max, self.progress.ends, self._offered_ends))

    def offer(self, which: int, batch: WriteBatch) -> bool:
        """Push a batch that this node is about to write; return whether any follower may get it.

        If the write fails, this leadership must give no other frames to these offsets.
        """
        if not self.is_pushed(self.key) or not self.recent_batches[which].add(batch):
            return False
        ends = list(self._offered_ends)
        ends[which] = batch.end_offset
        self._offered_ends = LogOffsets(*ends)
        self.on_offer(self.key)
        return True

    def on_append(self, which: int, end_offset: int) -> None:
        """Update the end of one of the logs on this node's disk."""
        ends = list(self.progress.ends)
        ends[which] = end_offset
        self.progress.on_local_append(LogOffsets(*ends))
        self.on_new_data(self.key)
        self._announce_high_watermark()

    def on_fetch(self, node: str, ends: LogOffsets, now_ms: int) -> None:
        """Update the ends that a follower reports."""
        if self.progress.on_fetch(node, ends, now_ms):
            self._announce_high_watermark()

    def on_stored(self, node: str, ends: LogOffsets, now_ms: int, caught_up_ms: int | None) -> None:
        """Update the ends up to which a follower has stored what was pushed to it.

        These were all that there was at ``caught_up_ms``, None if there was more. Under load there
        is always more by now.
        """
        self.on_fetch(node, ends, now_ms)
        if caught_up_ms is not None:
            self.progress.note_caught_up(node, caught_up_ms)

    @property
    def is_confirming(self) -> bool:
        """Whether requests of followers are waited for."""
        return bool(self._confirmations)

    def confirm(self, then: Callable[[], None]) -> None:
        """Call ``then`` once every node that could be elected has gone on following.

        A node that begins to lead stops following. If one did so before, ``then`` is never called.
        """
        self._confirmations.append(
            _Confirmation(dict.fromkeys(self.progress.electable, None), then)
        )
        self.on_bounds_change(self.key)
        self._settle_confirmations()

    def is_waiting_for(self, node: str) -> bool:
        """Whether the next request of a node is waited for."""
        return any(node in confirmation.waiting for confirmation in self._confirmations)

    def on_follower_request(self, node: str, session: int) -> None:
        """Note that a node follows. Each request of a session was sent after the last response."""
        if not self._confirmations:
            return
        for confirmation in self._confirmations:
            if node in confirmation.waiting:
                if confirmation.waiting[node] == session:
                    del confirmation.waiting[node]
                else:
                    confirmation.waiting[node] = session
        self._settle_confirmations()

    def _settle_confirmations(self) -> None:
        """Call those that wait for no electable node any more."""
        electable = self.progress.electable
        settled = [
            confirmation
            for confirmation in self._confirmations
            if electable.isdisjoint(confirmation.waiting)
        ]
        if settled:
            self._confirmations = [
                confirmation for confirmation in self._confirmations if confirmation not in settled
            ]
        for confirmation in settled:
            confirmation.then()

    def set_in_sync(self, in_sync: Iterable[str], min_insync: int, *, is_decided: bool) -> None:
        """Set the in-sync set that holds, and whether a change that was proposed is decided."""
        self.progress.set_in_sync(in_sync, min_insync, is_decided=is_decided)
        self.on_bounds_change(self.key)
        self._announce_high_watermark()
        self._settle_confirmations()

    def _announce_high_watermark(self) -> None:
        high_watermark = self.progress.high_watermark
        if high_watermark != self._announced:
            self._announced = high_watermark
            for quorum, offset in zip(self._quorums, high_watermark, strict=True):
                quorum.announce(offset)
            self.on_bounds_change(self.key)
            self.on_high_watermark_change()

    @property
    def bounds(self) -> ReplicaBounds:
        """Where the logs begin, and up to where they are safe."""
        logs = self.logs
        return ReplicaBounds(
            logs.messages.start_offset, logs.events.start_offset, self.progress.high_watermark
        )

    def has_update(self, position: Position) -> bool:
        """Whether there is more to send to a follower at a position than the logs' bounds."""
        is_behind = not position.ends.reaches(self.progress.ends)
        return position.leader_epoch != self.leader_epoch or is_behind

    def read_update(self, position: Position, *, is_checked: bool, bytes_max: int) -> FramedUpdate:
        """Return what follows a position: of each log at least one frame, if there is one.

        With ``is_checked`` the position is where an earlier response led. Then the follower's log
        is known to be a prefix of the leader's, and is not compared again.
        """
        if position.leader_epoch != self.leader_epoch:
            refusal = f"the leader epoch is {self.leader_epoch}, not {position.leader_epoch}"
            return FramedUpdate(refusal_of(position.key, refusal), [])
        if self._must_reset(position):
            start, rewrites = self.logs.messages.start_offset, self.logs.messages.rewrites.count
            begin = LogUpdate(start, start, 0, rewrites=rewrites, must_reset=True)
            head = PartitionUpdate(position.key, self.leader_epoch, LogOffsets(0, 0), begin, None)
            return FramedUpdate(head, [])
        ends = self.progress.ends
        messages, events = (
            read_log_update(
                log,
                end,
                epoch,
                own_end,
                is_lost=partial(self._lost_gaps.cover, which),
                is_checked=is_checked or self._is_known(which, end, epoch, own_end),
                bytes_max=bytes_max,
            )
            for which, (log, end, epoch, own_end) in enumerate(
                zip(self.logs, position.ends, position.epochs, ends, strict=True)
            )
        )
        return self._framed(messages, events, ends)

    def recent_update(self, position: Position, ends: LogOffsets) -> FramedUpdate | None:
        """Return what follows the position where an earlier response led; None if it is not here.

        It goes up to ``ends``: those of :attr:`progress`, or :attr:`pushable_ends`. Memory only.
        Raises nothing: what it cannot tell, :meth:`read_update` does.
        """
        if position.leader_epoch != self.leader_epoch or self._must_reset(position):
            return None
        found: list[FramedLogUpdate] = []
        for log, recent, end, own_end in zip(
            self.logs, self.recent_batches, position.ends, ends, strict=True
        ):
            start = log.start_offset
            batches = [each for each in recent.after(end) if each.end_offset <= own_end]
            if end >= own_end:
                found.append(FramedLogUpdate(LogUpdate(start, start, 0), [], end))
            elif start <= end and batches:
                size_bytes = sum(len(batch.data) for batch in batches)
                head = LogUpdate(batches[0].segment_base, start, size_bytes)
                buffers = [batch.data for batch in batches]
                found.append(FramedLogUpdate(head, buffers, batches[-1].end_offset))
            else:
                return None
        return self._framed(found[0], found[1], ends)

    def _must_reset(self, position: Position) -> bool:
        """Whether compaction has removed what a follower at a position may still have."""
        log = self.logs.messages
        end_offset = log.rewrites.end_offset_since(position.rewrites)
        return log.start_offset < position.ends.messages < end_offset

    def _framed(
        self, messages: FramedLogUpdate, events: FramedLogUpdate, ends: LogOffsets
    ) -> FramedUpdate:
        rewrites = self.logs.messages.rewrites.count
        head = PartitionUpdate(
            self.key,
            self.leader_epoch,
            self.progress.high_watermark,
            msgspec.structs.replace(messages.head, rewrites=rewrites),
            events.head,
            ends=ends,
        )
        end_offsets: LogOffsets | None = None
        if messages.end_offset is not None and events.end_offset is not None:
            end_offsets = LogOffsets(messages.end_offset, events.end_offset)
        return FramedUpdate(head, messages.buffers + events.buffers, end_offsets)

    def _is_known(self, which: int, end: int, epoch: int, own_end: int) -> bool:
        """Whether a follower's log is known to be a prefix of what this leadership has given.

        Either it has frames that were offered, and are not on this node's disk yet. Or it ends
        where the leader's log did when the leadership began, and has the same last epoch. Many
        followers ask with this position at once, after an election, and the epoch is read from the
        disk once for all.
        """
        if epoch == self.leader_epoch and own_end < end:
            return end <= self._offered_ends[which]
        if end != self.progress.start[which]:
            return False
        known = self._start_epochs.get(which)
        if known is None:
            known = last_epoch(self.logs[which].reader, end)
            self._start_epochs[which] = known
        return known == epoch


def _of_both_logs(pool: RecentBatchPool) -> tuple[RecentBatches, RecentBatches]:
    return pool.of_log(), pool.of_log()
