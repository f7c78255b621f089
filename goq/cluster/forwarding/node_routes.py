"""The ways from this node to others: links, direct sends, and relays over third nodes.

Probes have connections of their own, so that requests which hang do not delay them.
"""

from __future__ import annotations

from collections.abc import Callable

from goq.cluster.forwarding.http_proxy import HttpProxy
from goq.cluster.forwarding.relay import Call, RelayServer, RoutedCalls, RoutedProxy
from goq.cluster.forwarding.streamed_requests import (
    StreamCall,
    StreamedRequests,
    StreamedRequestServer,
)
from goq.cluster.metadata.state import MetadataState
from goq.cluster.rpc.client import PeerTls, RpcClient
from goq.cluster.rpc.peer_links import PeerLinks
from goq.cluster.rpc.server import RpcHandler


class NodeRoutes:
    """The ways of the node ``name``.

    ``call`` calls a node directly, ``call_over_stream`` only over its stream, and ``probes`` calls
    for the links. ``is_alive`` returns whether the stream with a node gives signs of life, and
    ``takes_answer`` whether it takes an answer of a size. ``relayed`` are the paths of the calls
    that may be relayed. ``tls`` is for forwarded requests.
    """

    def __init__(
        self,
        name: str,
        state: Callable[[], MetadataState],
        call: Call,
        call_over_stream: StreamCall,
        probes: RpcClient,
        is_alive: Callable[[str], bool],
        relayed: frozenset[str],
        tls: PeerTls,
    ) -> None:
        proxy = HttpProxy(tls)
        self.links = PeerLinks(name, state, probes.call, is_alive)
        self.calls = RoutedCalls(self.links, call)
        streamed = StreamedRequests(call_over_stream)
        self.proxy = RoutedProxy(proxy, streamed, self.links, state, probes.signed_headers)
        self.relay_server = RelayServer(
            proxy, self.links, state, call, relayed, probes.signed_headers
        )
        self.request_server = StreamedRequestServer()
        self._probes = probes

    def handlers(self) -> dict[str, RpcHandler]:
        """Return the handlers of the calls of other nodes, by path."""
        return {
            **self.links.handlers(),
            **self.relay_server.handlers(),
            **self.request_server.handlers(),
        }

    async def close(self) -> None:
        """Close all connections; requests that wait for a response fail."""
        await self.proxy.close()
        await self._probes.close()
