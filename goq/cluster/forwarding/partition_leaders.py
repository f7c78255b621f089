"""The leaders of all partitions as this node knows them, by which requests are forwarded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from goq import limits
from goq.cluster.metadata.state import MetadataState, TopicMetadata, required_in_sync
from goq.cluster.replication.progress import not_enough_replicas
from goq.errors import NotLeader, PartitionNotFound, TopicNotFound

Call = Callable[[str, str, bytes, int], Awaitable[bytes]]
"""Calls a node by id, with a path, a body, and how long it may wait; raises ``GoqError``."""


class PartitionLeaders:
    """The leaders as the node ``name`` knows them."""

    def __init__(self, name: str, state: Callable[[], MetadataState], call: Call) -> None:
        self._name = name
        self._state = state
        self._call = call
        self._next_change: asyncio.Future[None] | None = None
        self.has_session: Callable[[], bool] = lambda: False
        """Returns whether this node cannot have been fenced by now."""
        self.is_cut_off: Callable[[], bool] = lambda: False
        """Returns whether this node no longer hears its Raft group."""

    def leader_url(self, topic: str, number: int) -> str | None:
        """Return the URL of a partition's leader, None if this node leads it.

        Raises ``NotLeader`` while it has no leader, ``TopicNotFound`` and ``PartitionNotFound``.
        """
        known = self._topic(topic)
        if number >= len(known.partitions):
            raise PartitionNotFound(f"topic {topic} has no partition {number}", field="partition")
        return self._url_of(known.partitions[number].leader, f"partition {number} of {topic}")

    def leader_urls(self, topic: str | None) -> list[str | None]:
        """Return the URLs of all leaders of a topic's partitions, each once, None for this node.

        Without a topic, of all nodes that are up. Partitions without a leader are left out. This
        node is always included.
        """
        if topic is None:
            names = {name for name, node in self._state().nodes.items() if node.is_up}
        else:
            leaders = {partition.leader for partition in self._topic(topic).partitions}
            names = {name for name in leaders if name is not None}
        return [self._url_of(name, "this") for name in sorted(names | {self._name})]

    def leaders(self, topic: str) -> list[str | None]:
        """Return the leader of each partition by its node id, None where there is none.

        Raises ``TopicNotFound``.
        """
        return [partition.leader for partition in self._topic(topic).partitions]

    async def call_leader(self, topic: str, number: int, path: str, body: bytes) -> bytes:
        """Call the leader of a partition.

        Raises ``NotLeader`` while none is known, and ``NotEnoughReplicas`` while a new leader
        cannot open the partition because too few replicas are in sync.
        """
        known = self._state().topics.get(topic)
        leader = None
        if known is not None and number < len(known.partitions):
            leader = known.partitions[number].leader
        if leader is None:
            raise NotLeader(f"partition {number} of {topic} has no leader now")
        try:
            return await self._call(leader, path, body, limits.REMOTE_STORE_WAIT_MS)
        except NotLeader:
            self._check_min_insync(topic, number)
            raise

    def patience_s(self) -> float:
        """Return how long to wait for a leader, or for the next one.

        Not at all on a node that is cut off, which would not hear of it.
        """
        return 0.0 if self.is_cut_off() else limits.FORWARD_LEADER_WAIT_S

    def next_change(self) -> asyncio.Future[None]:
        """A future that completes when leadership or membership may have changed."""
        if self._next_change is None:
            self._next_change = asyncio.get_running_loop().create_future()
        return self._next_change

    def on_metadata_change(self) -> None:
        """Complete the future that :meth:`next_change` returned."""
        if self._next_change is not None:
            self._next_change.set_result(None)
            self._next_change = None

    def _check_min_insync(self, topic: str, number: int) -> None:
        state = self._state()
        known = state.topics.get(topic)
        if known is None or number >= len(known.partitions):
            return
        partition = known.partitions[number]
        required = required_in_sync(state, known, partition)
        if len(partition.in_sync) < required:
            raise not_enough_replicas(topic, number, len(partition.in_sync), required)

    def _url_of(self, node: str | None, what: str) -> str | None:
        if node == self._name:
            return None
        known = self._state().nodes.get(node) if node is not None else None
        if known is None:
            raise NotLeader(f"{what} has no leader now")
        return known.http_url

    def _topic(self, name: str) -> TopicMetadata:
        topic = self._state().topics.get(name)
        if topic is None or topic.deleting:
            raise TopicNotFound(f"there is no topic {name[:200]!r}", field="topic")
        return topic
