"""The status of all replicas of a cluster, asked from their nodes.

Nodes that do not answer are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from goq.cluster.metadata.state import MetadataState
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica_manager import ReplicaManager
from goq.cluster.replication.status import (
    ReplicaQuery,
    ReplicaReport,
    decode_query,
    decode_reports,
    encode_reports,
    end_offset_of,
    leader_reports,
    stored_report,
)
from goq.cluster.rpc.server import CALL_PREFIX
from goq.errors import GoqError

REPORTS = CALL_PREFIX + "reports"
Call = Callable[[str, str, bytes], Awaitable[bytes]]
"""Calls a node by id, with a path and a body; raises ``GoqError``."""


class ReplicaStatus:
    """Reports of this node's replicas, and of those of all nodes."""

    def __init__(
        self, replicas: ReplicaManager, state: Callable[[], MetadataState], call: Call
    ) -> None:
        self._replicas = replicas
        self._state = state
        self._call = call

    def local_leaders(self, topic: str | None = None) -> list[ReplicaReport]:
        """Return reports of the partitions that this node leads."""
        return leader_reports(self._replicas, topic, self._replicas.now_ms())

    async def leader_reports(
        self, topic: str | None = None
    ) -> dict[tuple[str, int], ReplicaReport]:
        """Return the reports of all leaders, by topic and partition number."""
        up = [name for name, node in self._state().nodes.items() if node.is_up]
        answers = await self._query_all(up, ReplicaQuery(topic))
        return {
            (report.topic, report.number): report
            for reports in answers.values()
            for report in reports
        }

    async def end_offsets(self, topic: str, number: int, nodes: Iterable[str]) -> dict[str, int]:
        """Return the end offsets of a partition's replicas on these nodes, by node."""
        answers = await self._query_all(nodes, ReplicaQuery(topic, number))
        return {node: reports[0].end_offset for node, reports in answers.items() if reports}

    async def handle_reports(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Return this node's reports to another node."""
        return [encode_reports(await self._local(decode_query(body)))]

    async def _query_all(
        self, nodes: Iterable[str], query: ReplicaQuery
    ) -> dict[str, list[ReplicaReport]]:
        names = list(nodes)
        answers = await asyncio.gather(*(self._query(name, query) for name in names))
        return {
            name: found for name, found in zip(names, answers, strict=True) if found is not None
        }

    async def _query(self, node: str, query: ReplicaQuery) -> list[ReplicaReport] | None:
        if node == self._replicas.name:
            return await self._local(query)
        try:
            body = msgspec.msgpack.encode(query)
            return decode_reports(await self._call(node, REPORTS, body))
        except GoqError:
            return None

    async def _local(self, query: ReplicaQuery) -> list[ReplicaReport]:
        topic, number = query.topic, query.number
        if topic is None or number is None:
            return self.local_leaders(topic)
        for replica in self._replicas:
            if (replica.key.topic, replica.key.number) == (topic, number):
                report = await self._report(end_offset_of(replica), replica.key)
                return [] if report is None else [report]
        return []

    async def _report(self, end_offset: int | None, key: PartitionKey) -> ReplicaReport | None:
        if end_offset is not None:
            return ReplicaReport(key.topic, key.number, False, 0, end_offset)
        directory = self._replicas.directory(key)
        try:
            found = await self._replicas.in_thread(
                lambda: stored_report(self._replicas.disk, directory, key.topic, key.number)
            )
        except OSError:  # as if the node were down: what its disk holds cannot be told
            return None
        assert found is None or isinstance(found, ReplicaReport)
        return found
