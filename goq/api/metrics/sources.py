"""The parts of a node whose counts are metrics, read on each scrape.

``prometheus_client`` is imported by the first scrape: it would take a twentieth of a node's start.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from goq.access.quota_table import QuotaTable
from goq.api.router import RequestStats
from goq.api.views.group_backlog import ReadyAges
from goq.backup.node_backups import NodeBackups
from goq.broker.broker import Broker
from goq.histogram import Histogram
from goq.http.loop_watch import Holder
from goq.http.tls.server_certificate import ServerCertificate
from goq.storage.disk_space import DiskSpace

if TYPE_CHECKING:
    from goq.api.metrics.cluster import ClusterCounts
    from goq.api.metrics.node import Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerCounts(Protocol):
    """Counters of the HTTP server."""

    @property
    def connection_count(self) -> int:
        """Open connections."""
        ...

    @property
    def bodies_in_flight_bytes(self) -> int:
        """Bytes of request bodies held."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers whose clients take them slowly."""
        ...

    def longest_holds(self) -> dict[Holder, float]:
        """Return the longest holds of the event loop."""
        ...

    def holds(self) -> dict[str, Histogram]:
        """Return the holds of the event loop by cause."""
        ...


class MetricSources:
    """The parts of a node whose counts are metrics; ``render`` returns them as text."""

    def __init__(
        self,
        broker: Broker,
        http: RequestStats,
        cluster: ClusterCounts,
        space: DiskSpace | None,
        ready_ages: ReadyAges,
        *,
        partitions: bool = True,
    ) -> None:
        """``partitions`` is whether there are series of single partitions."""
        self.broker = broker
        self.http = http
        self.cluster = cluster
        self.space = space
        self.ready_ages = ready_ages
        self.has_partitions = partitions
        self.server: ServerCounts | None = None
        """The HTTP server, set when it is created."""
        self.quotas = QuotaTable()
        """The use of quotas by principal."""
        self.certificate: ServerCertificate | None = None
        """The certificate of a node that speaks HTTPS."""
        self.cluster_certificate_end_s: float | None = None
        """The Unix time at which the certificate of ``cluster.tls`` ends."""
        self.backups: NodeBackups | None = None
        """The backups of the node."""
        self._metrics: Metrics | None = None

    async def render(self) -> bytes:
        """Return the metrics as text."""
        if self._metrics is None:
            self._metrics = await asyncio.to_thread(self._load)  # an import of 20 ms
        return await self._metrics.render()

    def _load(self) -> Metrics:
        from goq.api.metrics.node import Metrics

        return Metrics(self)
