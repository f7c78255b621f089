"""What the controller knows of the nodes beside the state: when they spoke, and what they said.

It is in the memory of the node that runs the controller, and begins empty when another takes over.
Times are monotonic milliseconds of that node.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from goq import limits


class Heartbeat(NamedTuple):
    """What a node says of itself, again and again.

    ``deleted`` are ids of topics that are being deleted and of which it has no file any more,
    ``damaged`` the partitions, by topic id and number, that have damaged frames here, ``repaired``
    those that had and are whole again. What is in neither says nothing: the node may not have
    looked yet. ``stopping`` says that it wants to be counted as away, from now on; ``disk`` is the
    one that it comes with.
    """

    incarnation: int
    unfit_reason: str = ""
    deleted: frozenset[int] = frozenset()
    damaged: frozenset[tuple[int, int]] = frozenset()
    repaired: frozenset[tuple[int, int]] = frozenset()
    stopping: bool = False
    disk: str = ""


class ReceivedHeartbeat(NamedTuple):
    """A node's latest heartbeat, when it came, and since when they have come without a gap."""

    heartbeat: Heartbeat
    at_ms: int
    since_ms: int


class RefusedConnection(NamedTuple):
    """When nobody listened where a node does in this incarnation."""

    incarnation: int
    at_ms: int

    def is_about(self, incarnation: int, heard: ReceivedHeartbeat | None) -> bool:
        """Whether it is about an incarnation, and it was not heard since."""
        return self.incarnation == incarnation and (heard is None or heard.at_ms < self.at_ms)


class NodeLiveness(NamedTuple):
    """All heartbeats, since when the controller watches, and when it last looked.

    ``gone`` are nodes whose process has ended, as their machines say.
    """

    since_ms: int
    ticked_ms: int
    received: Mapping[str, ReceivedHeartbeat]
    refused: Mapping[str, RefusedConnection] = MappingProxyType({})

    @classmethod
    def start(cls, now_ms: int) -> NodeLiveness:
        """Return the liveness of a controller that has just taken over: nobody is late yet."""
        return cls(now_ms, now_ms, {})

    def tick(self, now_ms: int, timeout_ms: int = limits.NODE_SESSION_TIMEOUT_MS) -> NodeLiveness:
        """Return the liveness at another look.

        When the last look is long past, this node stood still itself, and heartbeats may wait to
        be read: nobody is late for that.
        """
        stood_still = now_ms - self.ticked_ms > timeout_ms // 2
        return self._replace(since_ms=now_ms if stood_still else self.since_ms, ticked_ms=now_ms)

    def with_heartbeat(
        self,
        node: str,
        heartbeat: Heartbeat,
        now_ms: int,
        timeout_ms: int = limits.NODE_SESSION_TIMEOUT_MS,
    ) -> NodeLiveness:
        """Return the liveness after a heartbeat; one of an earlier incarnation is old news.

        Incarnations are counted by each disk for itself.
        """
        before = self.received.get(node)
        since_ms = now_ms
        if before is not None and before.heartbeat.disk == heartbeat.disk:
            if heartbeat.incarnation < before.heartbeat.incarnation:
                return self
            same = heartbeat.incarnation == before.heartbeat.incarnation
            if same and now_ms - before.at_ms <= timeout_ms:
                since_ms = before.since_ms
        received = {**self.received, node: ReceivedHeartbeat(heartbeat, now_ms, since_ms)}
        return self._replace(received=received)

    def with_refused_connection(self, node: str, incarnation: int, now_ms: int) -> NodeLiveness:
        """Return the liveness after a connection to a node was refused: nobody listens there."""
        return self._replace(refused={**self.refused, node: RefusedConnection(incarnation, now_ms)})

    def is_overdue(self, node: str, incarnation: int, now_ms: int) -> bool:
        """Whether a heartbeat of a node should have come by now."""
        heard = self.latest(node, incarnation)
        return heard is None or now_ms - heard.at_ms > 3 * limits.NODE_HEARTBEAT_MS // 2

    def latest(self, node: str, incarnation: int) -> ReceivedHeartbeat | None:
        """Return what was last heard of a node in an incarnation."""
        heard = self.received.get(node)
        return heard if heard is not None and heard.heartbeat.incarnation == incarnation else None

    def is_expired(self, node: str, incarnation: int, timeout_ms: int) -> bool:
        """Whether a node, in this incarnation, was silent for too long, has ended, or is to."""
        heard, gone = self.latest(node, incarnation), self.refused.get(node)
        if gone is not None and gone.is_about(incarnation, heard):
            return True
        if heard is not None and heard.heartbeat.stopping:
            return True
        last_ms = self.since_ms if heard is None else max(heard.at_ms, self.since_ms)
        return self.ticked_ms - last_ms > timeout_ms
