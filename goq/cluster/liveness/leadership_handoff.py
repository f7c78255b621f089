"""The handoff of a node's leaderships before it stops, so that clients never wait for a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from goq import limits
from goq.broker.broker import Broker
from goq.cluster.liveness.heartbeat import HeartbeatSender
from goq.cluster.replication.replica_manager import ReplicaManager

_POLL_S = 0.01


class LeadershipHandoff:
    """Gives the leaderships of a node away; ``is_up`` returns whether the cluster counts it up."""

    def __init__(
        self,
        broker: Broker,
        replicas: ReplicaManager,
        heartbeats: HeartbeatSender,
        is_up: Callable[[], bool],
    ) -> None:
        self.is_stopping = False
        """Whether the node asks, in its heartbeats, to count as down."""
        self._broker = broker
        self._replicas = replicas
        self._heartbeats = heartbeats
        self._is_up = is_up

    async def run(self) -> None:
        """Give all leaderships away; return when other nodes lead, or after a timeout.

        First everything that was accepted becomes safe, so that every publisher is answered. Then
        the node counts as down: leaders stop waiting for its replicas, and a partition with no
        other replica in sync has no leader. Each phase has its own timeout.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.HANDOFF_FLUSH_TIMEOUT_MS / 1000):
                for replica in self._replicas:
                    if replica.as_leader is not None:
                        replica.as_leader.stop_accepting()
                while not self._is_quiet():
                    await asyncio.sleep(_POLL_S)
        self.is_stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.HANDOFF_TIMEOUT_MS / 1000):
                while self._is_up() or any(r.as_leader is not None for r in self._replicas):
                    await self._heartbeats.send()
                    await asyncio.sleep(_POLL_S)

    def _is_quiet(self) -> bool:
        led = (p for topic in self._broker.topics.values() for p in topic.partitions)
        return all(partition.is_quiet for partition in led)
