"""What a connection tells of its client."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from goq.http.message import Request, Response
from goq.http.server import HttpServer
from tests.support.api.http_harness import get, post, problem


class _Transport:
    """A connection between two addresses; what is written goes nowhere."""

    def __init__(self, peer: tuple[Any, ...], own: tuple[Any, ...]) -> None:
        self._names = {"peername": peer, "sockname": own, "ssl_object": self}

    def getpeercert(self) -> None:
        return None

    def get_extra_info(self, name: str) -> Any:
        return self._names.get(name)

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize(
    ("peer", "own", "is_local"),
    [
        (("127.0.0.1", 9), ("127.0.0.1", 8080), True),
        (("127.0.0.2", 9), ("127.0.0.1", 8080), True),
        (("::1", 9, 0, 0), ("::1", 8080, 0, 0), True),
        (("10.0.0.1", 9), ("10.0.0.1", 8080), True),
        (("fd00::1", 9, 0, 0), ("fd00::1", 8080, 0, 0), True),
        (("10.0.0.2", 9), ("10.0.0.1", 8080), False),
        (("fd00::2", 9, 0, 0), ("fd00::1", 8080, 0, 0), False),
    ],
)
def test_a_client_is_local_at_a_loopback_address_and_at_the_address_that_it_calls(
    peer: tuple[Any, ...], own: tuple[Any, ...], is_local: bool
) -> None:
    seen: list[bool] = []
    unread: list[bool] = []

    def handler(request: Request) -> Response:
        seen.append(request.is_local)
        return Response(200)

    def on_unread_body(request: Request, _is_large: bool) -> None:
        unread.append(request.is_local)

    async def scenario() -> None:
        server = HttpServer(handler, problem, on_unread_body=on_unread_body)
        await server.start("127.0.0.1", 0)
        transport = cast(asyncio.Transport, _Transport(peer, own))
        connection = server.on_secure(transport)
        connection.connection_made(transport)
        connection.data_received(get())
        connection.data_received(post(b"body").removesuffix(b"body"))
        connection.data_received(b"body")
        connection.connection_lost(None)
        await server.drain(0)

    asyncio.run(scenario())
    assert (seen, unread) == ([is_local] * 2, [is_local])
