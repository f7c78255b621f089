"""Connections to other nodes' HTTP ports, kept from one request to the next."""

from __future__ import annotations

import httpx

from goq.http.client.transport import open_transport


class Transports:
    """One transport for each URL of a node, with so many connections at the most."""

    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max
        self._by_url: dict[str, httpx.AsyncBaseTransport] = {}

    def to(self, url: str) -> httpx.AsyncBaseTransport:
        """Return the transport to a node."""
        transport = self._by_url.get(url)
        if transport is None:
            transport = open_transport(httpx.URL(url).scheme, self._connections_max)
            self._by_url[url] = transport
        return transport

    async def close(self) -> None:
        """Close all connections; what waits for an answer fails."""
        for transport in self._by_url.values():
            await transport.aclose()
