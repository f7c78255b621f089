"""Rows of consoles that look at a node with many topics, by what their overview asks for.

Browsers are left out: each looker is a connection that reads ``GET /v1/live``, and one that asks
for the health as often as the page does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import uvloop

from bench.harness.rows import Place, Row, Work
from goq.client import AsyncClient

TOPICS = 1_000
LOOKERS = 10
BUSY_TOPICS = 50
_AT_ONCE = 10
_SETTLE_S = 7.0
_LINES_PER_S_MIN = 0.2
_HEALTH_PERIOD_S = 15.0


class _Looker(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.lines = 0
        self.received_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.lines += data.count(b"}\n")
        self.received_bytes += len(data)

    def ask(self, path: str) -> None:
        self.transport.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())


async def _open(port: int) -> _Looker:
    _, looker = await asyncio.get_running_loop().create_connection(_Looker, "127.0.0.1", port)
    return looker


async def _look(port: int) -> list[_Looker]:
    """Open the streams of all lookers, each at another part of a second."""
    lookers = []
    for _ in range(LOOKERS):
        looker = await _open(port)
        looker.ask("/v1/live?order=lag&top=100")
        lookers.append(looker)
        await asyncio.sleep(1.37 / LOOKERS)
    return lookers


async def _ask_for_health(port: int) -> None:
    """Ask for the health as each open overview does."""
    asking = [await _open(port) for _ in range(LOOKERS)]
    try:
        while True:
            for each in asking:
                each.ask("/healthz")
                await asyncio.sleep(_HEALTH_PERIOD_S / LOOKERS)
    finally:
        for each in asking:
            each.transport.abort()


async def _publish(place: Place, names: list[str]) -> None:
    """Publish a message a second to each of some topics."""
    async with AsyncClient(place.goq.url) as client:
        while True:
            for name in names:
                await client.publish(name, b"one")
                await asyncio.sleep(1 / len(names))


async def _each(count: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Run ``work`` for each number, some at once."""
    for start in range(0, count, _AT_ONCE):
        await asyncio.gather(*(work(n) for n in range(start, min(start + _AT_ONCE, count))))


async def _fill(place: Place) -> None:
    """Make the topics, each with a group that lacks its only message."""
    async with AsyncClient(place.goq.url) as client:

        async def make(number: int) -> None:
            name = f"look-{number:05}"
            await client.create_topic(name, 1 if number % 10 else None)
            await client.publish(name, b"waiting")
            await client.set_group_config(name, "group", {"max_attempts": 5})

        await _each(TOPICS, make)


def _prepare(place: Place) -> None:
    uvloop.run(_fill(place))


async def _cpu_share(place: Place, seconds: float) -> float:
    before_s, began_s = place.goq.cpu_s(), time.perf_counter()
    await asyncio.sleep(seconds)
    return (place.goq.cpu_s() - before_s) / (time.perf_counter() - began_s)


def _looking(place: Place) -> tuple[float, float]:
    """Return what the lookers add to the CPU, of an idle node and beside publishes, in percent.

    On a busy machine lookers get less than a line a second: what they would add with one is told.
    """
    seconds = place.scaled(30, 15)

    async def added() -> float:
        alone = await _cpu_share(place, seconds)
        lookers = await _look(place.goq.port)
        pages = asyncio.ensure_future(_ask_for_health(place.goq.port))
        try:
            await asyncio.sleep(_SETTLE_S)
            before = sum(each.lines for each in lookers)
            looked = await _cpu_share(place, seconds)
            lines_per_s = (sum(each.lines for each in lookers) - before) / seconds / LOOKERS
            if lines_per_s < _LINES_PER_S_MIN:
                raise RuntimeError(f"lookers got {lines_per_s:.2f} lines a second")
            return 100 * (looked - alone) / min(1.0, lines_per_s)
        finally:
            pages.cancel()
            for each in lookers:
                each.transport.abort()

    async def main() -> tuple[float, float]:
        await asyncio.sleep(_SETTLE_S)
        idle = await added()
        busy = [f"look-{number:05}" for number in range(BUSY_TOPICS)]
        publishing = asyncio.ensure_future(_publish(place, busy))
        try:
            await asyncio.sleep(_SETTLE_S)
            return idle, await added()
        finally:
            publishing.cancel()

    return uvloop.run(main())


WORKS = [
    Work(
        [
            Row(
                "lookers-idle",
                f"{LOOKERS} consoles on {TOPICS:,} topics at rest: CPU added",
                "% of a core",
                2,
                at_most=True,
            ),
            Row(
                "lookers-busy",
                f"the same beside publishes to {BUSY_TOPICS} of them: CPU added",
                "% of a core",
                2,
                at_most=True,
            ),
        ],
        _looking,
        prepare=_prepare,
    )
]
