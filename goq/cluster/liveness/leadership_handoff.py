"""Stopping a node in order: nobody has to find out that it is gone, or what became of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from goq import limits
from goq.broker.broker import Broker
from goq.cluster.liveness.heartbeat import HeartbeatSender
from goq.cluster.replication.replica_manager import ReplicaManager

_LOOK_S = 0.01


class LeadershipHandoff:
    """What a node does before it stops; ``is_up`` says whether it counts as there."""

    def __init__(
        self,
        broker: Broker,
        replicas: ReplicaManager,
        speaking: HeartbeatSender,
        is_up: Callable[[], bool],
    ) -> None:
        self.is_stopping = False
        """Whether the node wants to count as away; what it says in its heartbeats."""
        self._broker = broker
        self._replicas = replicas
        self._speaking = speaking
        self._is_up = is_up

    async def run(self) -> None:
        """Have other nodes lead what this one leads; return when they do.

        First all that was taken becomes safe, so that everybody is answered. Then the node counts
        as away: nobody waits for its replicas any more, and what has no other one in sync is led
        by nobody. None of that takes long, or it is not waited for.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.QUIET_TIMEOUT_MS / 1000):
                for replica in self._replicas:
                    if replica.leading is not None:
                        replica.leading.give_up()
                while not self._is_quiet():
                    await asyncio.sleep(_LOOK_S)
        self.is_stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.HAND_OVER_TIMEOUT_MS / 1000):
                while self._is_up() or any(r.leading is not None for r in self._replicas):
                    await self._speaking.speak()
                    await asyncio.sleep(_LOOK_S)

    def _is_quiet(self) -> bool:
        led = (p for topic in self._broker.topics.values() for p in topic.partitions)
        return all(partition.is_quiet for partition in led)
