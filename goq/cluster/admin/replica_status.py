"""Asking the nodes of a cluster how far their replicas are. Who does not answer is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from goq.cluster.metadata.state import MetadataState
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
from goq.errors import GoqError

REPORTS = "/cluster/reports"
Call = Callable[[str, str, bytes], Awaitable[bytes]]
"""Calls a node by its id: the path and the body; raises ``GoqError``."""


class ReplicaStatus:
    """Reports of this node's replicas, and of all nodes'."""

    def __init__(
        self, replicas: ReplicaManager, state: Callable[[], MetadataState], call: Call
    ) -> None:
        self._replicas = replicas
        self._state = state
        self._call = call

    def led_here(self, topic: str | None = None) -> list[ReplicaReport]:
        """Return what is known of the partitions that this node leads."""
        return leader_reports(self._replicas, topic, self._replicas.now_ms())

    async def led(self, topic: str | None = None) -> dict[tuple[str, int], ReplicaReport]:
        """Return what the leaders say of their partitions, by topic and number."""
        up = [name for name, node in self._state().nodes.items() if node.is_up]
        answers = await self._asked(up, ReplicaQuery(topic))
        return {
            (report.topic, report.number): report
            for reports in answers.values()
            for report in reports
        }

    async def replicas_of(self, topic: str, number: int, nodes: Iterable[str]) -> dict[str, int]:
        """Return where the replicas of a partition end, by node; of those that can be asked."""
        answers = await self._asked(nodes, ReplicaQuery(topic, number))
        return {node: reports[0].end_offset for node, reports in answers.items() if reports}

    async def answer(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Answer another node."""
        return [encode_reports(await self._here(decode_query(body)))]

    async def _asked(
        self, nodes: Iterable[str], question: ReplicaQuery
    ) -> dict[str, list[ReplicaReport]]:
        names = list(nodes)
        answers = await asyncio.gather(*(self._ask(name, question) for name in names))
        return {
            name: found for name, found in zip(names, answers, strict=True) if found is not None
        }

    async def _ask(self, node: str, question: ReplicaQuery) -> list[ReplicaReport] | None:
        if node == self._replicas.name:
            return await self._here(question)
        try:
            body = msgspec.msgpack.encode(question)
            return decode_reports(await self._call(node, REPORTS, body))
        except GoqError:
            return None

    async def _here(self, question: ReplicaQuery) -> list[ReplicaReport]:
        topic, number = question.topic, question.number
        if topic is None or number is None:
            return self.led_here(topic)
        for replica in self._replicas:
            if (replica.key.topic, replica.key.number) == (topic, number):
                report = await self._of(end_offset_of(replica), topic, number)
                return [] if report is None else [report]
        return []

    async def _of(self, end_offset: int | None, topic: str, number: int) -> ReplicaReport | None:
        if end_offset is not None:
            return ReplicaReport(topic, number, False, 0, end_offset)
        directory = self._replicas.directory(topic) / str(number)
        try:
            found = await self._replicas.in_thread(
                lambda: stored_report(self._replicas.disk, directory, topic, number)
            )
        except OSError:  # as if the node were away: what its disk holds cannot be said
            return None
        assert found is None or isinstance(found, ReplicaReport)
        return found
