"""Liveness of the nodes, as the controller sees it: heartbeats, and when they were received.

It is kept in the memory of the controller's node, and starts empty when another node takes over.
Times are monotonic milliseconds of that node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from goq import limits
from goq.cluster.controller.clock_skew import ClockSkew, clock_offset_ms, node_clocks
from goq.cluster.metadata.state import NodeMetadata


class Heartbeat(NamedTuple):
    """The report of a node about itself, at intervals.

    ``deleted`` are ids of topics that are being deleted and of which the node has no files any
    more. ``damaged`` are the partitions, by topic id and number, with damaged frames here;
    ``repaired`` are those that had some and are intact again. A partition in neither set says
    nothing: the node may not have checked it yet. ``stopping`` asks to be fenced from now on.
    ``disk`` is the id of the node's disk, ``feature_level`` the highest feature level that its
    version of goq knows. ``clock_ms`` is the node's wall time when it sends this, 0 from a version
    that does not say. ``round_trip_ms`` is the shortest of its latest calls to the controller.
    ``unanswered_ms`` is for how long it has got no answer from this controller. ``unreachable`` are
    the nodes that it cannot call.
    """

    incarnation: int
    unfit_reason: str = ""
    deleted: frozenset[int] = frozenset()
    damaged: frozenset[tuple[int, int]] = frozenset()
    repaired: frozenset[tuple[int, int]] = frozenset()
    stopping: bool = False
    disk: str = ""
    feature_level: int = 0
    clock_ms: int = 0
    round_trip_ms: int = 0
    unanswered_ms: int = 0
    unreachable: frozenset[str] = frozenset()

    @property
    def is_unanswered(self) -> bool:
        """Whether the node has got no answer for so long that its heartbeats do not count."""
        return self.unanswered_ms > limits.NODE_SESSION_TIMEOUT_MS

    def says_the_same_as(self, other: Heartbeat) -> bool:
        """Whether another heartbeat differs in nothing but its time."""
        return self == other._replace(
            clock_ms=self.clock_ms,
            round_trip_ms=self.round_trip_ms,
            unanswered_ms=self.unanswered_ms,
        )


class HeartbeatAnswer(NamedTuple):
    """The answer of the controller: it has recorded a heartbeat.

    ``clock_skews_ms`` are how far the clock of each node is ahead. Another node may have been
    elected to run the controller in the last ``lease_age_ms``, but not before. So the answer keeps
    a session valid that much shorter.
    """

    clock_skews_ms: Mapping[str, int] = MappingProxyType({})
    lease_age_ms: int = 0


class ReceivedHeartbeat(NamedTuple):
    """A node's latest heartbeat, its time, and since when heartbeats came without a gap.

    ``clock_samples_ms`` are the differences to the controller's wall time of the latest ones.
    ``cut_off_ms`` is when another node last said that it cannot call this one, or when it last was
    silent in the Raft group for too long.
    """

    heartbeat: Heartbeat
    at_ms: int
    since_ms: int
    clock_samples_ms: tuple[int, ...] = ()
    cut_off_ms: int = 0

    @property
    def steady_since_ms(self) -> int:
        """Since when heartbeats came without a gap, and the node was not cut off."""
        return max(self.since_ms, self.cut_off_ms)


class RefusedConnection(NamedTuple):
    """When a node's machine refused a connection to the node, in this incarnation."""

    incarnation: int
    at_ms: int

    def is_about(self, incarnation: int, latest: ReceivedHeartbeat | None) -> bool:
        """Whether it concerns an incarnation that has sent no heartbeat since."""
        return self.incarnation == incarnation and (latest is None or latest.at_ms < self.at_ms)


class NodeLiveness(NamedTuple):
    """All heartbeats, since when the controller receives them, and its latest tick.

    ``refused`` are nodes whose process has ended, as their machines refuse connections.
    ``raft_silent_since_ms`` has the nodes that do not answer in the Raft group, though others do.
    ``silent_before_ms`` is for how long, before the controller began, no other can have renewed a
    session.
    """

    started_ms: int
    ticked_ms: int
    received: Mapping[str, ReceivedHeartbeat]
    refused: Mapping[str, RefusedConnection] = MappingProxyType({})
    raft_silent_since_ms: Mapping[str, int] = MappingProxyType({})
    silent_before_ms: int = 0

    @classmethod
    def start(cls, now_ms: int, silent_before_ms: int = 0) -> NodeLiveness:
        """Return the liveness of a new controller: no node is overdue yet."""
        return cls(now_ms, now_ms, {}, silent_before_ms=silent_before_ms)

    def tick(self, now_ms: int, timeout_ms: int = limits.NODE_SESSION_TIMEOUT_MS) -> NodeLiveness:
        """Return the liveness at another tick.

        If the last tick is long past, this node itself stood still, and heartbeats may wait to be
        read: no node is expired for that.
        """
        if now_ms - self.ticked_ms > timeout_ms // 2:
            return self._replace(started_ms=now_ms, ticked_ms=now_ms, raft_silent_since_ms={})
        return self._replace(ticked_ms=now_ms)

    def with_raft_silence(self, silent: Collection[str]) -> NodeLiveness:
        """Return the liveness in which just these nodes do not answer in the Raft group."""
        since_ms = {node: self.raft_silent_since_ms.get(node, self.ticked_ms) for node in silent}
        liveness = self._replace(raft_silent_since_ms=since_ms)
        cut_off = {
            node: latest._replace(cut_off_ms=self.ticked_ms)
            for node, latest in self.received.items()
            if liveness.is_raft_silent(node, was=False)
        }
        return liveness._replace(received={**self.received, **cut_off}) if cut_off else liveness

    def is_raft_silent(self, node: str, *, was: bool) -> bool:
        """Whether a node has been silent in the Raft group for too long.

        ``was`` says that it was so before: then it still is until it answers.
        """
        since_ms = self.raft_silent_since_ms.get(node)
        if since_ms is None:
            return False
        return was or self.ticked_ms - since_ms > limits.RAFT_SILENT_UNFIT_MS

    def with_heartbeat(
        self,
        node: str,
        heartbeat: Heartbeat,
        now_ms: int,
        timeout_ms: int = limits.NODE_SESSION_TIMEOUT_MS,
        wall_ms: int = 0,
    ) -> NodeLiveness:
        """Return the liveness after a heartbeat; one of an earlier incarnation is ignored.

        So is one of a node that gets no answers: it has no session, and cannot lead.
        Each disk counts its incarnations by itself. ``wall_ms`` is the controller's wall time.
        """
        if heartbeat.is_unanswered:
            return self
        before = self.received.get(node)
        since_ms = now_ms
        samples_ms: tuple[int, ...] = ()
        if before is not None and before.heartbeat.disk == heartbeat.disk:
            if heartbeat.incarnation < before.heartbeat.incarnation:
                return self
            if heartbeat.incarnation == before.heartbeat.incarnation:
                samples_ms = before.clock_samples_ms
                if now_ms - before.at_ms <= timeout_ms:
                    since_ms = before.since_ms
        if heartbeat.clock_ms:
            samples_ms = (*samples_ms, heartbeat.clock_ms - wall_ms)[-limits.CLOCK_SAMPLES_MAX :]
        cut_off_ms = 0 if before is None else before.cut_off_ms
        latest = ReceivedHeartbeat(heartbeat, now_ms, since_ms, samples_ms, cut_off_ms)
        received = {**self.received, node: latest}
        for other in heartbeat.unreachable & received.keys():
            received[other] = received[other]._replace(cut_off_ms=now_ms)
        return self._replace(received=received)

    def is_uncallable(
        self, node: str, nodes: Mapping[str, NodeMetadata], timeout_ms: int, *, was: bool
    ) -> bool:
        """Whether most of the other nodes that are heard cannot call a node, which is heard.

        ``was`` says that it was so before: then one of them is enough. A node that came back lately
        counts as callable until all others have had the time to find out.
        """
        own = self.latest(node, nodes[node].incarnation)
        find_out_ms = limits.LINK_PROBE_MS + limits.LINK_TIMEOUT_MS
        if own is None or self.ticked_ms - own.since_ms < find_out_ms:
            return False
        heard = [
            latest.heartbeat
            for name, other in nodes.items()
            if name != node
            and (latest := self.latest(name, other.incarnation)) is not None
            and not self.is_expired(name, other.incarnation, timeout_ms)
        ]
        reports = sum(node in heartbeat.unreachable for heartbeat in heard)
        return reports > 0 and (was or 2 * reports > len(heard))

    def clocks(self, nodes: Mapping[str, NodeMetadata]) -> dict[str, ClockSkew]:
        """Return the clocks of those of the nodes whose heartbeats come."""
        offsets_ms: dict[str, int] = {}
        for node, known in nodes.items():
            latest = self.latest(node, known.incarnation)
            if latest is not None and not self.is_overdue(node, known.incarnation, self.ticked_ms):
                offset_ms = clock_offset_ms(latest.clock_samples_ms, latest.heartbeat.round_trip_ms)
                if offset_ms is not None:
                    offsets_ms[node] = offset_ms
        return node_clocks(offsets_ms)

    def with_refused_connection(self, node: str, incarnation: int, now_ms: int) -> NodeLiveness:
        """Return the liveness after a node's machine refused a connection."""
        return self._replace(refused={**self.refused, node: RefusedConnection(incarnation, now_ms)})

    def is_overdue(self, node: str, incarnation: int, now_ms: int) -> bool:
        """Whether a heartbeat of a node should have been received by now."""
        latest = self.latest(node, incarnation)
        return latest is None or now_ms - latest.at_ms > 3 * limits.NODE_HEARTBEAT_MS // 2

    def quiet_until_ms(self, nodes: Mapping[str, NodeMetadata]) -> int | None:
        """Return until when no node is overdue; None if one is, or is not up."""
        heard_ms: list[int] = []
        for name, node in nodes.items():
            latest = self.latest(name, node.incarnation)
            if latest is None or not node.is_up:
                return None
            heard_ms.append(latest.at_ms)
        until_ms = min(heard_ms, default=0) + 3 * limits.NODE_HEARTBEAT_MS // 2
        return until_ms if until_ms >= self.ticked_ms else None

    def latest(self, node: str, incarnation: int) -> ReceivedHeartbeat | None:
        """Return the latest heartbeat of a node in an incarnation, or None."""
        latest = self.received.get(node)
        return latest if latest and latest.heartbeat.incarnation == incarnation else None

    def has_ended(self, node: str, incarnation: int) -> bool:
        """Whether a node has certainly ended, or asks to be fenced: more than mere silence."""
        latest, refused = self.latest(node, incarnation), self.refused.get(node)
        if refused is not None and refused.is_about(incarnation, latest):
            return True
        return latest is not None and latest.heartbeat.stopping

    def is_expired(self, node: str, incarnation: int, timeout_ms: int) -> bool:
        """Whether a node's session is over: silent for too long, ended, or stopping."""
        if self.has_ended(node, incarnation):
            return True
        latest = self.latest(node, incarnation)
        last_ms = self.started_ms if latest is None else max(latest.at_ms, self.started_ms)
        return self.ticked_ms - last_ms > timeout_ms
