"""The leader's side of the pushes of one fetch session: what is sent, and what is stored by then.

A partition is pushed from a position that a fetch has established: the follower's logs are a prefix
of the leader's, and no response to a fetch is under way for it. From there on each push follows the
one before, and fetches leave the partition out. So at most one of both ways leads a follower on.

A push is made of what is in memory. What is not there, or would exceed
``limits.PUSH_IN_FLIGHT_BYTES_MAX`` bytes that the follower has not stored yet, ends the pushes of
the partition: once the follower has stored those under way, it fetches.

The leader remembers where each push leads. So a follower reports the numbers of pushes, and its
position is exact. It counts only in the session that the push belongs to, and only for the
leadership that pushed.

A follower stores the pushes of one partition in their order, and reports those of different ones as
they are stored. A batch that its disk takes beside the journal is a push of its own: nothing else
is reported with it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from goq import limits
from goq.clock import Clock
from goq.cluster.replication.fetch.follower_update import FramedUpdate
from goq.cluster.replication.fetch.session import FetchSession
from goq.cluster.replication.leader import LeaderReplica, ReplicaBounds
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import PartitionKey, Position
from goq.cluster.replication.push.protocol import PeerStream, PushHead, encode_push
from goq.errors import InvalidFrame


class _PushedPartition(NamedTuple):
    leader: LeaderReplica
    ends: LogOffsets
    is_all: bool
    """Whether the leader had no more when it pushed."""


class _PushInFlight(NamedTuple):
    size_bytes: int
    sent_ms: int
    partitions: dict[PartitionKey, _PushedPartition]


class _Outgoing(NamedTuple):
    update: FramedUpdate
    pushed: _PushedPartition
    size_bytes: int


class PushSender:
    """Pushes to the follower of ``session`` over ``stream`` what ``leaders`` append.

    ``may_push`` returns whether a partition may be pushed to a node. ``on_failure`` is called when
    the stream takes no more.
    """

    def __init__(
        self,
        stream: PeerStream,
        session: FetchSession,
        leaders: Mapping[PartitionKey, LeaderReplica],
        clock: Clock,
        *,
        may_push: Callable[[PartitionKey], bool],
        on_failure: Callable[[], None],
    ) -> None:
        self.stream = stream
        self._session = session
        self._leaders = leaders
        self._clock = clock
        self._may_push = may_push
        self._on_failure = on_failure
        self._leads: dict[PartitionKey, LogOffsets] = {}
        """Where the pushes lead each partition that is pushed."""
        self._leaving: set[PartitionKey] = set()
        """Partitions that are fetched once what was pushed is stored."""
        self._in_flight: dict[int, _PushInFlight] = {}
        self._in_flight_bytes = 0
        self._number = 0
        self._changed: dict[PartitionKey, None] = {}
        self._is_scheduled = False
        self._loop = asyncio.get_running_loop()

    def covers(self, key: PartitionKey) -> bool:
        """Whether a partition is pushed, and so is left out of fetches."""
        return key in self._leads

    def enqueue(self, key: PartitionKey) -> None:
        """Push what is new of a partition at the end of this turn, or let it be fetched."""
        self._changed[key] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.flush)

    def has_pushed_all(self, key: PartitionKey) -> bool:
        """Whether everything of a partition was pushed that followers may be given."""
        lead, leader = self._leads.get(key), self._leaders.get(key)
        return lead is not None and leader is not None and lead == leader.pushable_ends

    def forget(self, key: PartitionKey) -> None:
        """Push a partition no more: another leadership begins, or the follower is gone."""
        self._leads.pop(key, None)
        self._leaving.discard(key)

    def flush(self) -> None:
        """Push now what is to be pushed at the end of this turn."""
        self._is_scheduled = False
        changed, self._changed = self._changed, {}
        if self._session.pushes is not self:
            return
        small, large = list[_Outgoing](), list[_Outgoing]()
        new_bytes = 0
        for key in changed:
            has_room = self._in_flight_bytes + new_bytes < limits.PUSH_IN_FLIGHT_BYTES_MAX
            update = self._next(key, has_room=has_room)
            if update is None or update.end_offsets is None:
                continue
            leader = self._leaders[key]
            is_all = update.end_offsets == leader.pushable_ends
            self._leads[key] = update.end_offsets
            if not is_all:
                self.enqueue(key)  # the rest is in another segment
            frame_bytes = sum(map(len, update.buffers))
            size_bytes = limits.PUSH_UPDATE_BYTES + frame_bytes
            new_bytes += size_bytes
            is_large = frame_bytes > limits.JOURNAL_ENTRY_BYTES_MAX
            pushed = _PushedPartition(leader, update.end_offsets, is_all)
            (large if is_large else small).append(_Outgoing(update, pushed, size_bytes))
        for push in (*_in_pushes(small), *([each] for each in large)):
            self._send(push)

    def _next(self, key: PartitionKey, *, has_room: bool) -> FramedUpdate | None:
        """Return what is to be pushed of a partition; None for nothing, or if it is fetched."""
        session = self._session
        position, leader = session.positions.get(key), self._leaders.get(key)
        if position is None or key in self._leaving:
            return None
        lead = self._leads.get(key)
        if lead is None:
            if leader is None or not self._may_begin(key, leader, position):
                session.enqueue_fetch(key)
                return None
            lead = position.ends
        elif leader is None or leader.leader_epoch != position.leader_epoch:
            self._leave(key)
            return None
        ends = leader.pushable_ends
        if lead == ends and session.sent_bounds.get(key) == leader.bounds:
            return None
        update = leader.recent_update(replace(position, ends=lead), ends) if has_room else None
        if update is None:
            self._leave(key)
        return update

    def _may_begin(self, key: PartitionKey, leader: LeaderReplica, position: Position) -> bool:
        session = self._session
        return (
            leader.leader_epoch == position.leader_epoch
            and session.verified.get(key) is position
            and session.expected.get(key) == position.ends
            and key not in session.reading
            and self._may_push(key)
        )

    def _leave(self, key: PartitionKey) -> None:
        """Leave a partition to fetches, at once if nothing of it is under way."""
        position = self._session.positions[key]
        if self._leads.get(key, position.ends) == position.ends:
            self.forget(key)
            self._session.enqueue_fetch(key)
        else:
            self._leaving.add(key)

    def _send(self, outgoing: Sequence[_Outgoing]) -> None:
        session = self._session
        self._number += 1
        updates = [each.update for each in outgoing]
        heads = [update.head for update in updates]
        clock_ms = self._clock.wall_ms()
        head = PushHead(session.number, self._number, clock_ms, heads, takes_others=True)
        self._in_flight[self._number] = _PushInFlight(
            sum(each.size_bytes for each in outgoing),
            int(self._loop.time() * 1000),
            {each.update.head.key: each.pushed for each in outgoing},
        )
        self._in_flight_bytes += self._in_flight[self._number].size_bytes
        for update in updates:
            self._note_sent(update)
        frames = [buffer for update in updates for buffer in update.buffers]
        if not self.stream.send(*encode_push(head, frames)):
            self._on_failure()

    def _note_sent(self, update: FramedUpdate) -> None:
        head, session = update.head, self._session
        assert head.messages is not None
        assert head.events is not None
        session.expect(head.key, update.end_offsets)
        starts = head.messages.start_offset, head.events.start_offset
        session.sent_bounds[head.key] = ReplicaBounds(*starts, head.high_watermark)
        session.stale.discard(head.key)
        session.pending.pop(head.key, None)

    def on_stored(self, number: int, others: Sequence[int] = ()) -> None:
        """Count what the follower has on its disk: all pushes up to ``number``, and ``others``.

        Raises ``InvalidFrame`` for pushes that are not under way.
        """
        in_flight = self._in_flight
        numbers = list(itertools.takewhile(lambda sent: sent <= number, in_flight))
        numbers += others
        if not numbers or number > self._number or not in_flight.keys() >= set(numbers):
            raise InvalidFrame(f"push {max(numbers, default=number)} is not under way")
        stored: dict[PartitionKey, tuple[_PushedPartition, int]] = {}
        for each in sorted(set(numbers)):
            push = in_flight.pop(each)
            self._in_flight_bytes -= push.size_bytes
            for key, partition in push.partitions.items():
                stored[key] = partition, push.sent_ms
        for key, (partition, sent_ms) in stored.items():
            self._note_stored(key, partition, sent_ms)

    def _note_stored(self, key: PartitionKey, pushed: _PushedPartition, sent_ms: int) -> None:
        session, leader = self._session, pushed.leader
        before = session.positions.get(key)
        if before is None or key not in self._leads or self._leaders.get(key) is not leader:
            return
        if not pushed.ends.reaches(before.ends):
            return  # a later push of it was reported first: this one was also of another partition
        epoch = leader.leader_epoch
        epochs = (
            epoch if now > then else known
            for now, then, known in zip(pushed.ends, before.ends, before.epochs, strict=True)
        )
        position = Position(key, epoch, pushed.ends, LogOffsets(*epochs), before.rewrites)
        session.positions[key] = session.verified[key] = position
        caught_up_ms = sent_ms if pushed.is_all else None
        leader.on_stored(session.node, pushed.ends, int(self._loop.time() * 1000), caught_up_ms)
        if key in self._leaving and self._leads.get(key) == pushed.ends:
            self._leave(key)


def _in_pushes(updates: Sequence[_Outgoing]) -> Iterator[Sequence[_Outgoing]]:
    """Divide updates into as few pushes as their bound allows."""
    begin, size_bytes = 0, 0
    for number, each in enumerate(updates):
        if number > begin and size_bytes + each.size_bytes > limits.PUSH_BYTES_MAX:
            yield updates[begin:number]
            begin, size_bytes = number, 0
        size_bytes += each.size_bytes
    if updates:
        yield updates[begin:]
