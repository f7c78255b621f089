"""The node's own entry in the cluster metadata: its URL, incarnation, disk and durable topics."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec.structs import asdict, replace

from goq.cluster.controller.port_probe import may_speak_its_scheme
from goq.cluster.membership.data_loss import DataLoss
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.commands import (
    AlterClusterSettings,
    RegisterNode,
    RegisterNodeWithLevel,
    ReportDataLoss,
)
from goq.cluster.metadata.features import OWN_LEVEL
from goq.cluster.metadata.state import MetadataState
from goq.config.node import ClusterConfig
from goq.errors import Conflict, UsageError

_log = logging.getLogger("goq.cluster")
_ANY_HOST = ("0.0.0.0", "::", "")


class NodeRegistration:
    """Registers one start of a node, its *incarnation*, with the cluster.

    ``durable_topics`` returns the ids of topics that lost nothing at a power failure.
    ``announce`` makes the controller hear of this incarnation, or raises ``GoqError``.
    ``may_speak_its_scheme`` looks at a URL: whether a server may answer there by its scheme.
    """

    def __init__(
        self,
        config: ClusterConfig,
        entry: RegisterNode,
        metadata: MetadataClient,
        data_loss: DataLoss,
        durable_topics: Callable[[MetadataState], tuple[int, ...]],
        announce: Callable[[], Awaitable[None]],
        may_speak_its_scheme: Callable[[str], Awaitable[bool]] = may_speak_its_scheme,
    ) -> None:
        self._config = config
        self._entry = entry
        self._metadata = metadata
        self._data_loss = data_loss
        self._durable_topics = durable_topics
        self._announce = announce
        self._may_speak_its_scheme = may_speak_its_scheme

    def set_url(self, http_url: str) -> None:
        """Set where this node listens; raise ``UsageError`` if other nodes cannot reach that."""
        address = self._entry.cluster_address
        url = self._config.advertise or reachable_url(http_url, address)
        self._entry = replace(self._entry, http_url=url)

    async def ensure(self) -> None:
        """Register this incarnation if the cluster does not know it; safe to repeat.

        A node is registered only once the controller has heard it: until then the cluster would
        count it as up, and then as silent. The first node to do so sets the initial ``min_insync``
        of the cluster. Raises ``GoqError``.
        """
        entry = self._entry
        known = self._metadata.state.nodes.get(entry.node)
        if known is None or known.incarnation != entry.incarnation:
            await self._check_schemes()
            await self._announce()
            if self._data_loss.has_lost_topics and known is not None:
                _log.critical("the messages on this node are gone; it copies them from the others")
                await self._metadata.propose(ReportDataLoss(entry.node, entry.disk))
            topics: tuple[int, ...] = ()
            if not self._data_loss.has_lost_topics:
                topics = self._durable_topics(self._metadata.state)
            level = self._metadata.state.features.level
            try:
                await self._metadata.propose(self._command(topics))
            except Conflict:
                if self._metadata.state.features.level == level:
                    raise
                # the metadata was incomplete here, as on a node that joins
                await self._metadata.propose(self._command(topics))
        settings, min_insync = self._metadata.state.settings, self._config.min_insync
        if settings.version == 1 and settings.min_insync != min_insync:
            with suppress(Conflict):  # another node was first
                await self._metadata.propose(AlterClusterSettings(1, min_insync=min_insync))

    async def _check_schemes(self) -> None:
        """Raise ``Conflict`` if some nodes speak HTTPS and others do not.

        A node's URL is that of its last start. Nodes that are stopped and start again with TLS all
        find each other at ``http`` URLs; each would wait for the others. So what is
        at a URL counts.
        """
        if self._config.tls_rollover != "off":
            return
        own = self._entry.http_url
        for node in list(self._metadata.state.nodes.values()):
            is_other = node.id != self._entry.node and node.is_up and not node.leaving
            if not is_other or _scheme(node.http_url) == _scheme(own):
                continue
            if await self._may_speak_its_scheme(node.http_url):
                raise Conflict(
                    f"node {node.id} is at {node.http_url}, and this one at {own}: set security.tls"
                    " on all nodes or on none; cluster.tls_rollover takes a cluster from one to"
                    " the other"
                )

    def _command(self, durable_topics: tuple[int, ...]) -> RegisterNode:
        """Return the registration, in the form that all nodes of the cluster know."""
        entry = replace(self._entry, durable_topics=durable_topics)
        if self._metadata.state.features.level == 0:
            return entry
        return RegisterNodeWithLevel(**asdict(entry), feature_level=OWN_LEVEL)


def _scheme(url: str) -> str:
    return url.partition(":")[0]


def reachable_url(http_url: str, cluster_address: str) -> str:
    """Return a URL that other nodes can use.

    A node that listens on all addresses is reached by the host of its cluster address.
    """
    scheme, _, rest = http_url.partition("://")
    host, _, port = rest.rpartition(":")
    if host.strip("[]") not in _ANY_HOST:
        return http_url
    other = cluster_address.rpartition(":")[0]
    if other.strip("[]") in _ANY_HOST:
        raise UsageError(
            "other nodes cannot reach this one at a wildcard address; set a reachable one:"
            " cluster.advertise: http://HOST:PORT",
            field="cluster.advertise",
        )
    return f"{scheme}://{other}:{port}"
