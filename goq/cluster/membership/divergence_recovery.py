"""Recovery of a node whose metadata contradicted the cluster's: it replaces what it did by it.

While the node waits for the leader's state, its replicas are closed. Then it starts as after a
restart, from the true metadata. Replicas of partitions that had another leader or epoch meanwhile
may hold frames that no other node has. They leave the in-sync set, their files are moved aside, and
they are copied anew. A replica that is alone in sync keeps its files.

Each step may be repeated after a crash: the partitions stay recorded until the last step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from goq import limits
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.commands import ResetReplicas
from goq.cluster.metadata.divergence import DivergedPartitions
from goq.cluster.metadata.state import MetadataState, active_partitions
from goq.cluster.metadata.state_machine import MetadataStateMachine
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica_manager import ReplicaManager

_log = logging.getLogger("goq.cluster")


class DivergenceRecovery:
    """The recovery of this node, in ``incarnation``; ``has_diverged`` is Raft's verdict.

    Files are moved to ``aside_dir``, where an operator may look for messages.
    """

    def __init__(
        self,
        machine: MetadataStateMachine,
        metadata: MetadataClient,
        replicas: ReplicaManager,
        incarnation: int,
        aside_dir: Path,
        has_diverged: Callable[[], bool],
    ) -> None:
        self._machine = machine
        self._metadata = metadata
        self._replicas = replicas
        self._incarnation = incarnation
        self._aside_dir = aside_dir
        self._has_diverged = has_diverged

    @property
    def is_waiting(self) -> bool:
        """Whether the metadata here contradicts the leader's, whose state has not arrived yet."""
        return self._has_diverged()

    @property
    def is_pending(self) -> bool:
        """Whether this node must not serve any partition now."""
        return self._has_diverged() or self._machine.diverged is not None

    async def recover(self) -> bool:
        """Close the replicas, and replace those that may differ; return whether there were any.

        False also while the leader's state has not arrived yet. Raises ``GoqError``.
        """
        if self._has_diverged():
            await self._replicas.close_replicas()
            return False
        diverged = self._machine.diverged
        if diverged is None:
            return False
        await self._replicas.close_replicas()
        name = self._replicas.name
        for start in range(0, len(diverged), limits.RESET_REPLICAS_MAX):
            chunk = diverged[start : start + limits.RESET_REPLICAS_MAX]
            await self._metadata.propose(ResetReplicas(name, self._incarnation, chunk))
        for key in _outdated(self._metadata.state, name, diverged):
            await self._replicas.remove(key)
            await self._replicas.in_thread(partial(self._move_aside, key))
        self._machine.forget_diverged()
        _log.warning("this node has the cluster's metadata again, and takes part in partitions")
        return True

    def _move_aside(self, key: PartitionKey) -> None:
        source = self._replicas.directory(key)
        target = self._aside_dir / f"{key.topic}-{key.topic_id}-{key.number}"
        disk = self._replicas.disk
        if not disk.names(source):
            return
        disk.make_dir(self._aside_dir)
        disk.remove_dir(target)
        disk.move_dir(source, target)
        _log.warning(
            "%s:%d is copied anew, because its metadata differed here; the old files are in %s",
            key.topic,
            key.number,
            target,
        )


def _outdated(
    state: MetadataState, node: str, diverged: DivergedPartitions
) -> Iterator[PartitionKey]:
    """Yield the diverged partitions whose replica on a node is not in sync."""
    listed = set(diverged)
    for place, topic, partition in active_partitions(state):
        is_listed = (topic.topic_id, place.partition) in listed
        if is_listed and node in partition.holders and node not in partition.in_sync:
            yield PartitionKey(place.topic, topic.topic_id, place.partition)
