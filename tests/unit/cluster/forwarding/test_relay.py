"""Forwarded requests whose client leaves at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from goq.cluster.forwarding.relay import RoutedProxy
from goq.cluster.rpc.peer_links import PeerLinks
from goq.http.message import Item, OwnedStream, Request, Response

URL = "http://b"


class World:
    """A node that forwards to ``b``, whose answer is a stream that comes when it is let."""

    def __init__(self) -> None:
        state: Any = SimpleNamespace(nodes={"b": SimpleNamespace(http_url=URL, is_up=True)})
        self.answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.closed = 0
        links = PeerLinks("a", lambda: state, lambda *_: None)
        self.proxy = RoutedProxy(self, self, links, lambda: state, lambda *_: {})

    async def forward(self, url: str, _request: Request) -> Response:
        assert url == URL
        return await self.answer

    def come(self) -> None:
        self.answer.set_result(Response(200, OwnedStream(_items(), self._close)))

    async def _close(self) -> None:
        self.closed += 1

    def ask(self) -> asyncio.Task[Response]:
        return asyncio.ensure_future(self.proxy.forward(URL, Request("POST", "/")))


async def _items() -> AsyncGenerator[Item, None]:
    yield b"one"


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("waited", range(6))
def test_a_stream_that_comes_as_its_client_leaves_is_closed(waited: int) -> None:
    async def main() -> None:
        world = World()
        asking = world.ask()
        await turns(5)
        world.come()
        await turns(waited)
        asking.cancel()
        try:
            response = await asking
        except asyncio.CancelledError:
            pass
        else:
            assert isinstance(response.stream, OwnedStream)
            await response.stream.aclose()  # as the server does with what it cannot send
        assert world.closed == 1

    asyncio.run(main())


def test_a_stream_is_passed_on_and_closed_whether_it_was_begun_or_not() -> None:
    async def main(*, is_begun: bool) -> None:
        world = World()
        world.come()
        response = await world.ask()
        assert isinstance(response.stream, OwnedStream)
        if is_begun:
            assert [item async for item in response.stream] == [b"one"]
        await response.stream.aclose()
        assert world.closed == 1

    for is_begun in (True, False):
        asyncio.run(main(is_begun=is_begun))
