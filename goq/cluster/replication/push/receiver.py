"""The follower's side of the pushes of one leader's node.

Each partition is stored in rounds, one after the other: a round is all that has arrived of it, and
what arrives meanwhile is the next one. The rounds join the node's commit turn, so that small
batches of all partitions, also of those that this node leads, share one write and one sync.

A push is reported when the rounds of all its partitions have ended. So a report never waits for
another partition, such as one whose large batch is still written. The pushes of one partition are
stored and reported in their order: its position is the end of the last.

Whatever does not simply continue the logs ends the session: a push of another epoch, a gap, frames
that compaction has changed, a log that something else is changing. The fetches of the next session
settle it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Protocol

from goq.broker.log.commit_turn import CommitTurn
from goq.cluster.replication.follower import FollowerReplica
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.push.protocol import PeerStream, Push, frame_bytes
from goq.cluster.replication.push.reports import PushReports
from goq.cluster.replication.push.round import PushedUpdate, PushRound
from goq.errors import InvalidFrame


class PushHost(Protocol):
    """The fetcher that receives the pushes."""

    def on_pushed(self, follower: FollowerReplica) -> None:
        """A push is stored."""

    def on_mismatch(self, reason: str) -> None:
        """The pushes do not continue the logs: another session must begin."""

    def on_write_failure(self, key: PartitionKey, error: Exception) -> None:
        """A partition cannot be stored here."""

    async def record_sealed(self, follower: FollowerReplica) -> None:
        """Record the segments that a push has sealed."""


class PushReceiver:
    """Stores the pushes of a session to ``followers``; :meth:`attach` begins one."""

    def __init__(
        self,
        followers: Mapping[PartitionKey, FollowerReplica],
        turn: CommitTurn,
        executor: Executor,
        host: PushHost,
    ) -> None:
        self.session = 0
        """The session whose pushes are taken, 0 for none."""
        self._followers = followers
        self._turn = turn
        self._executor = executor
        self._host = host
        self._reports: PushReports | None = None
        self._queues: dict[PartitionKey, deque[PushedUpdate]] = {}
        """What waits for the next round of its partition."""
        self._rounds: set[PartitionKey] = set()
        """The partitions with a round under way."""
        self._idle: asyncio.Future[None] | None = None
        """The end of all rounds under way, None while there is none."""

    def attach(self, session: int, stream: PeerStream) -> None:
        """Take the pushes of a session from now on."""
        self.detach()
        self.session, self._reports = session, PushReports(session, stream)

    def detach(self) -> None:
        """Take no more pushes; what is being written is still written."""
        if self._reports is not None:
            self._reports.end()
        self.session, self._reports = 0, None
        self._queues.clear()

    async def idle(self) -> None:
        """Return when nothing is being written."""
        while self._idle is not None:
            await asyncio.wait([self._idle])

    def receive(self, push: Push) -> None:
        """Store a push; one of another session is dropped."""
        head, frames = push
        if head.session != self.session or self._reports is None:
            return
        try:
            self._reports.on_arrival(head)
        except InvalidFrame as error:
            self._host.on_mismatch(error.detail)
            return
        for update in head.updates:
            size_bytes = frame_bytes(update)
            pushed = PushedUpdate(head.number, update, frames[:size_bytes])
            frames = frames[size_bytes:]
            self._queues.setdefault(update.key, deque()).append(pushed)
        for update in head.updates:
            if update.key in self._queues and update.key not in self._rounds:
                self._begin_round(update.key)

    def _begin_round(self, key: PartitionKey) -> None:
        """Store what has arrived of a partition, up to the end of a segment."""
        try:
            next_round = self._next_round(key)
        except InvalidFrame as error:
            self._host.on_mismatch(error.detail)
            return
        if self._idle is None:
            self._idle = asyncio.get_running_loop().create_future()
        self._rounds.add(key)
        next_round.write(self._turn, self._executor)

    def _next_round(self, key: PartitionKey) -> PushRound:
        """Return a round, and hold the lock of its logs; raise ``InvalidFrame`` for a mismatch."""
        follower, queue = self._followers.get(key), self._queues[key]
        if follower is None:
            raise InvalidFrame(f"a push of {key}, which is not followed here")
        next_round = PushRound(follower, self.session, self._end_round)
        while queue and next_round.can_join(queue[0].update):
            next_round.add(queue.popleft())
        if not queue:
            del self._queues[key]
        if not follower.log_lock.try_acquire():
            raise InvalidFrame(f"something else changes {key}")
        return next_round

    def _end_round(self, ended: PushRound) -> None:
        follower, error = ended.follower, ended.error
        follower.log_lock.release()
        if isinstance(error, InvalidFrame):
            self._host.on_mismatch(error.detail)
        elif error is not None:
            self._host.on_write_failure(follower.key, error)
        else:
            for update in ended.updates:
                follower.note_bounds(update)
        if follower.sealed_segments:
            recording = asyncio.ensure_future(self._host.record_sealed(follower))
            recording.add_done_callback(lambda _done: self._finish_round(ended))
        else:
            self._finish_round(ended)

    def _finish_round(self, ended: PushRound) -> None:
        follower = ended.follower
        self._rounds.discard(follower.key)
        if self._reports is not None and ended.session == self.session and ended.error is None:
            self._reports.on_stored(ended.numbers)
        self._host.on_pushed(follower)
        if follower.key in self._queues and follower.key not in self._rounds:
            self._begin_round(follower.key)
        if not self._rounds:
            idle, self._idle = self._idle, None
            if idle is not None:
                idle.set_result(None)
