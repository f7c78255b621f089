"""Requests that another node holds for long do not keep the others from it."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress

import pytest

from goq import limits
from goq.cluster.forwarding.http_proxy import HttpProxy
from goq.errors import TooManyRequests
from goq.http.message import Request, Response

_RECEIVE = "/v1/topics/t/groups/g/receive"
_STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class _Leader:
    """Answers a receive by a stream that does not end, and any other request at once."""

    def __init__(self) -> None:
        self.connections: set[asyncio.Task[None] | None] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(asyncio.current_task())
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                writer.write(_STREAM if b"/receive " in head else _WHOLE)


def test_streams_that_have_all_their_connections_leave_those_of_other_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "FORWARD_CONNECTIONS_MAX", 1)
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(limits, "FORWARD_CONNECTION_WAIT_S", 0.05)

    async def run() -> Response:
        leader, proxy = _Leader(), HttpProxy()
        server = await asyncio.start_server(leader.answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        streams = [await proxy.forward(url, Request("POST", _RECEIVE)) for _ in range(2)]
        assert None not in [each.stream for each in streams]
        with pytest.raises(TooManyRequests, match="2 requests under way"):
            await proxy.forward(url, Request("POST", _RECEIVE))
        answer = await proxy.forward(url, Request("GET", "/v1/topics/t"))
        await proxy.close()
        server.close()
        await asyncio.gather(*filter(None, leader.connections))
        return answer

    assert asyncio.run(run()).body == b"{}"


def test_a_request_may_be_held_as_long_as_any_before_the_other_node_counts_as_silent() -> None:
    assert limits.FORWARD_TIMEOUT_S * 1000 > limits.WAIT_MS_MAX + limits.RPC_TIMEOUT_MS
