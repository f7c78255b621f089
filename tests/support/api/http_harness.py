"""A served handler, and a client that speaks bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from goq.errors import GoqError
from goq.http.context import HttpLimits
from goq.http.message import Handler, Request, Response
from goq.http.server import HttpServer

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Peer:
    """The client's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, head_only: bool = False) -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            status, headers = await self.head()
            if head_only or status in (204, 304):
                body = b""
            elif headers.get("transfer-encoding") == "chunked":
                body = b"".join([chunk async for chunk in self.chunks()])
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = await self.reader.read()
            return Answer(status, headers, body)

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(PATIENCE_S):
            start, *lines = (
                (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            )
        headers = {}
        for line in lines[:-2]:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        return int(start.split(" ")[1]), headers

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readline(), 16):
            yield await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n"

    async def rest(self) -> bytes:
        """Everything up to the end of the connection, which must come."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()

    async def lost(self) -> None:
        """Wait until the connection is closed or reset."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionError:
                pass

    def end_input(self) -> None:
        self.writer.write_eof()

    def leave(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


@dataclass(frozen=True, slots=True)
class Served:
    server: HttpServer
    peers: list[Peer]

    async def connect(self, *, read_limit: int = 2**16) -> Peer:
        host, port = self.server.addresses[0]
        peer = Peer(*await asyncio.open_connection(host, port, limit=read_limit))
        self.peers.append(peer)
        return peer


@asynccontextmanager
async def serving(handler: Handler, limits: HttpLimits | None = None) -> AsyncIterator[Served]:
    server = HttpServer(handler, problem, limits or HttpLimits())
    await server.start("127.0.0.1", 0)
    peers: list[Peer] = []
    try:
        yield Served(server, peers)
    finally:
        await server.drain(0)
        for peer in peers:
            peer.leave()
            await peer.lost()
        assert server.connection_count == 0
        assert server.bodies_in_flight_bytes == 0


def problem(error: GoqError, _headers: Mapping[str, str]) -> Response:
    return Response(error.http_status, f"{error.code}: {error.detail}".encode(), "text/plain")


def describe(request: Request) -> Response:
    """Answer with what was understood of the request."""
    text = f"{request.method} {request.path} {len(request.body)}".encode()
    return Response(200, text, "text/plain")


def echo(request: Request) -> Response:
    return Response(200, request.body)


def post(body: bytes, *headers: str, path: str = "/") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path: str = "/", *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: test", *headers]).encode() + b"\r\n\r\n"


def chunked(*chunks: bytes) -> bytes:
    head = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
