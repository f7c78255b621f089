"""The session of one follower: its positions, and how far it was sent what it asks for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from goq import limits
from goq.cluster.replication.leader import LeaderReplica, ReplicaBounds
from goq.cluster.replication.progress import FollowerProgress, LatestRequest, LogOffsets
from goq.cluster.replication.protocol import PartitionKey, Position

if TYPE_CHECKING:
    from goq.cluster.replication.push.sender import PushSender


class _Rest:
    """A follower that has everything and was told all bounds, and the logs as they were then.

    A node at rest has hundreds of them in each session. What ends a rest is reported, but for
    segments that retention removes: those are looked for once in ``limits.REST_CHECK_MS``.
    """

    __slots__ = ("_events", "_follower", "_leader", "_messages")

    def __init__(self, leader: LeaderReplica, follower: FollowerProgress) -> None:
        self._leader, self._follower = leader, follower
        self._messages, self._events = leader.logs.messages.segments, leader.logs.events.segments

    def has_other_segments(self) -> bool:
        """Whether the leader's logs have other segments by now: a change replaces the lists."""
        logs = self._leader.logs
        return (
            logs.messages.segments is not self._messages or logs.events.segments is not self._events
        )

    def end(self) -> None:
        """Count later requests no more."""
        self._follower.end_rest()


class FetchSession:
    """The last known positions of a follower, and where the last response leads it."""

    def __init__(self, node: str, number: int) -> None:
        self.node = node
        self.number = number
        self.positions: dict[PartitionKey, Position] = {}
        self.expected: dict[PartitionKey, LogOffsets] = {}
        self.sent_bounds: dict[PartitionKey, ReplicaBounds] = {}
        """The bounds of the leader's logs in the last response."""
        self.stale: set[PartitionKey] = set()
        """Partitions whose bounds have changed since, while the follower had everything."""
        self.verified: dict[PartitionKey, Position] = {}
        """Positions up to which the follower's logs are known to be prefixes of the leader's.

        Other positions do not count: what a follower has there may be of another leader.
        """
        self.rests: dict[PartitionKey, _Rest] = {}
        self.active: dict[PartitionKey, None] = {}
        """The partitions that are not at rest."""
        self.latest = LatestRequest(0)
        self.checked_ms = 0
        self.pending: dict[PartitionKey, None] = {}
        """Partitions to examine, in the order of their turn."""
        self.reading: set[PartitionKey] = set()
        """Partitions for which a response is being made."""
        self.updated = asyncio.Event()
        self.is_over = False
        self.must_answer = False
        """Whether a leader waits for the follower's next request."""
        self.pushes: PushSender | None = None

    def set_position(self, position: Position) -> None:
        """Take a position that the follower reports; it counts if the last response led there."""
        self.positions[position.key] = position
        self.verified.pop(position.key, None)
        if self.expected.get(position.key) == position.ends:
            self.verified[position.key] = position
        self.enqueue(position.key)

    def forget_leadership(self, key: PartitionKey) -> None:
        """Forget where the follower is, because another leadership begins."""
        self.end_rest(key)
        if self.pushes is not None:
            self.pushes.forget(key)
        for known in (self.expected, self.sent_bounds, self.verified):
            known.pop(key, None)
        self.stale.discard(key)

    def forget(self, key: PartitionKey) -> None:
        """Forget a partition that the follower does not ask for any more."""
        self.positions.pop(key, None)
        self.forget_leadership(key)
        self.active.pop(key, None)
        self.pending.pop(key, None)

    def expect(self, key: PartitionKey, ends: LogOffsets | None) -> None:
        """Note where what was sent leads the follower, None if that is not known."""
        if ends is None:
            self.expected.pop(key, None)
        elif key in self.positions:
            self.expected[key] = ends

    def begin_rest(self, key: PartitionKey, leader: LeaderReplica) -> None:
        """Count each request of the session for a partition, until something of it changes."""
        follower = leader.progress.follower(self.node)
        if follower is not None:
            self.rests[key] = _Rest(leader, follower)
            follower.begin_rest(self.latest)
            self.active.pop(key, None)

    def end_rest(self, key: PartitionKey) -> None:
        """Count later requests for a partition no more."""
        if key in self.positions:
            self.active.setdefault(key)
        rest = self.rests.pop(key, None)
        if rest is not None:
            rest.end()

    def end_rests_with_other_segments(self, now_ms: int) -> None:
        """End the rests whose leader has removed or rolled segments; only now and then."""
        if now_ms - self.checked_ms >= limits.REST_CHECK_MS:
            self.checked_ms = now_ms
            for key in [key for key, rest in self.rests.items() if rest.has_other_segments()]:
                self.end_rest(key)

    def enqueue(self, key: PartitionKey) -> None:
        """Look at a partition, which may have something new, and push it or let it be fetched."""
        self.end_rest(key)
        if self.pushes is None:
            self.enqueue_fetch(key)
        else:
            self.pushes.enqueue(key)

    def enqueue_fetch(self, key: PartitionKey) -> None:
        """Look at a partition in the response to a fetch."""
        self.pending.setdefault(key)
        self.updated.set()

    def end(self) -> None:
        """Answer no more: the follower must begin another session."""
        self.is_over, self.pushes = True, None
        self.updated.set()
