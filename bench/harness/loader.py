"""A client that costs almost nothing: raw sockets, requests made beforehand, one loop.

Each connection sends one request, awaits the whole answer, and sends the next: the load is
closed, with as many requests under way as there are connections.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import uvloop

Request = Sequence[bytes]
AnswerLength = Callable[[bytes], int]
"""Return how many bytes the answer that ``data`` begins with has, 0 when it cannot tell yet."""


class _Caller(asyncio.Protocol):
    def __init__(self, requests: Iterator[Request], length: AnswerLength, budget: Budget) -> None:
        self._requests = requests
        self._length = length
        self._budget = budget
        self._got = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def call(self) -> None:
        if self._budget.take():
            self._transport.writelines(next(self._requests))
        else:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        got = self._got + data if self._got else data
        try:
            length = self._length(got)
        except RuntimeError as error:
            self._budget.fail(error)
            return
        if not length or len(got) < length:
            self._got = got
            return
        self._got = got[length:]
        self._budget.answered()
        self.call()

    def connection_lost(self, exc: Exception | None) -> None:
        self._budget.left(exc)


class Budget:
    """How many requests are still to be sent by all connections together."""

    def __init__(self, requests: int, callers: int) -> None:
        self._to_send = self._to_answer = requests
        self._callers = callers
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self) -> bool:
        if self._to_send <= 0:
            return False
        self._to_send -= 1
        return True

    def answered(self) -> None:
        self._to_answer -= 1
        if not self._to_answer and not self.done.done():
            self.done.set_result(None)

    def left(self, error: Exception | None) -> None:
        if self._to_answer and not self.done.done():
            self._callers -= 1
            if error is not None or not self._callers:
                self.fail(error or RuntimeError("the server closed the connection"))

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def load(
    port: int | Sequence[int],
    callers: Sequence[Iterator[Request]],
    requests: int,
    length: AnswerLength,
) -> float:
    """Send so many requests over a connection a caller; return the seconds that it took.

    All connections are to one port, or each to its own.
    """
    ports = [port] * len(callers) if isinstance(port, int) else port

    async def main() -> float:
        loop = asyncio.get_running_loop()
        budget = Budget(requests, len(callers))
        connected = []
        for source, port in zip(callers, ports, strict=True):
            _, caller = await loop.create_connection(
                partial(_Caller, source, length, budget), "127.0.0.1", port
            )
            connected.append(caller)
        began_s = time.perf_counter()
        for caller in connected:
            caller.call()
        await budget.done
        return time.perf_counter() - began_s

    return uvloop.run(main())


def http_answer_length(data: bytes) -> int:
    """Return the length of an HTTP answer; raise ``RuntimeError`` when it is not a good one."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return 0
    if data[9:10] != b"2":
        raise RuntimeError(data.decode("latin-1"))
    at = data.lower().find(b"content-length:", 0, end)
    return end + 4 + int(data[at + 15 : data.index(b"\r\n", at)])
