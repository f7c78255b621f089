"""Requests that another node of the cluster relays over this one."""

from __future__ import annotations

from collections.abc import Awaitable

from goq.api.codec.problem import problem_response
from goq.cluster.forwarding.relay import RELAY, RelayServer
from goq.cluster.rpc.server import RpcServer
from goq.errors import GoqError
from goq.http.message import Handler, Request, Response


def with_relay(handler: Handler, relay_server: RelayServer, rpc_server: RpcServer) -> Handler:
    """Return a handler that relays requests of other nodes, and leaves the rest to ``handler``.

    ``rpc_server`` authenticates the nodes.
    """

    async def relay(request: Request) -> Response:
        try:
            return await relay_server.handle_request(request, rpc_server.authenticate)
        except GoqError as error:
            return problem_response(error)

    def handle(request: Request) -> Response | Awaitable[Response]:
        return relay(request) if RELAY in request.headers else handler(request)

    return handle
