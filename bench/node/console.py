"""Rows of a node with many quiet groups: alone, and with one page of the console open.

``python -m bench.node.console --groups 100000 --topics 10`` measures other numbers, once. Browsers
are left out: a page is what it asks for, as often as its modules in ``goq/console/static`` do.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.harness.rows import Place, Row, Work
from bench.harness.servers import GoqNode
from goq.client import AsyncClient, Client

GROUPS = 10_000
TOPICS = 10
_AT_ONCE = 16
_SETTLE_S = 5.0
_LIVE = "/v1/live"


class Ask(NamedTuple):
    """What a page asks for, again ``period_s`` after an answer; None for once, or a stream."""

    path: str
    period_s: float | None = None


def _topic(number: int) -> str:
    return f"quiet-{number:05}"


_TOPIC = f"/v1/topics/{_topic(0)}"
_GROUP = f"{_TOPIC}/groups/group-00000"
PAGES = {
    "overview": [Ask(f"{_LIVE}?order=lag&top=100"), Ask("/healthz", 15)],
    "topics": [Ask(f"{_LIVE}?order=name&top=100")],
    "topic": [Ask(f"{_LIVE}?topics={_topic(0)}"), Ask(_TOPIC, 5), Ask(f"{_TOPIC}/history", 10)],
    "group": [
        Ask(f"{_TOPIC}/history"),
        Ask(_GROUP, 2),
        Ask(f"{_GROUP}/peek?state=leased&limit=50", 2),
        Ask(f"{_GROUP}/members", 5),
    ],
}


class _Connection:
    """A connection of a browser."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> _Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**26))

    def close(self) -> None:
        self._writer.transport.abort()

    async def ask(self, path: str) -> None:
        """Ask for a path; return at the end of the answer, of a stream after its first moment."""
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 503")):  # health is 503 with problems
            raise RuntimeError(head.decode())
        fields = dict(line.lower().split(b": ", 1) for line in head.splitlines()[1:-1])
        if b"content-length" in fields:
            await self._reader.readexactly(int(fields[b"content-length"]))
        else:
            while b'"more":false' not in await self._reader.readline():
                pass

    async def read_on(self) -> None:
        """Read the lines of a stream, until cancelled."""
        while await self._reader.read(2**20):
            pass


class _Page:
    """A page that is open."""

    def __init__(self, port: int, asks: Sequence[Ask]) -> None:
        self._port = port
        self._asks = asks
        self._connections: list[_Connection] = []
        self._going_on: list[asyncio.Task[None]] = []

    async def open(self) -> float:
        """Return how long it took until all was there, in seconds."""
        began_s = time.perf_counter()
        await asyncio.gather(*map(self._first, self._asks))
        return time.perf_counter() - began_s

    async def _first(self, ask: Ask) -> None:
        connection = await _Connection.open(self._port)
        self._connections.append(connection)
        await connection.ask(ask.path)
        if ask.path.startswith(_LIVE):
            self._going_on.append(asyncio.ensure_future(connection.read_on()))
        elif ask.period_s is not None:
            self._going_on.append(asyncio.ensure_future(self._again(connection, ask)))

    async def _again(self, connection: _Connection, ask: Ask) -> None:
        while True:
            await asyncio.sleep(ask.period_s or 0)
            await connection.ask(ask.path)

    async def close(self) -> None:
        for task in self._going_on:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*self._going_on, return_exceptions=True)
        for connection in self._connections:
            connection.close()


async def _fill(url: str, groups: int, topics: int) -> None:
    """Make topics of one partition, whose groups have read one of two messages."""
    turn = asyncio.Semaphore(_AT_ONCE)
    async with AsyncClient(url) as client:

        async def make_topic(number: int) -> None:
            async with turn:
                await client.create_topic(_topic(number), 1)
                await client.publish_many(_topic(number), [b"read", b"waiting"])

        async def make_group(number: int) -> None:
            async with turn:
                topic, group = _topic(number % topics), f"group-{number // topics:05}"
                [message] = await client.receive(topic, group, max_messages=1)
                await message.ack()

        await asyncio.gather(*map(make_topic, range(topics)))
        await asyncio.gather(*map(make_group, range(groups)))


async def _cpu_percent(node: GoqNode, seconds: float) -> float:
    before, began_s = node.cpu_s(), time.perf_counter()
    await asyncio.sleep(seconds)
    return 100 * (node.cpu_s() - before) / (time.perf_counter() - began_s)


async def _look(node: GoqNode, seconds: float) -> list[float]:
    """Return the CPU at rest in percent, and of each page when it was there and its CPU."""
    await asyncio.sleep(_SETTLE_S)
    figures = [await _cpu_percent(node, seconds)]
    for asks in PAGES.values():
        page = _Page(node.port, asks)
        try:
            figures.append(await page.open())
            await asyncio.sleep(_SETTLE_S)
            figures.append(await _cpu_percent(node, seconds))
        finally:
            await page.close()
    return figures


def _prepare(place: Place) -> None:
    uvloop.run(_fill(place.goq.url, GROUPS, TOPICS))


def _measure(place: Place) -> list[float]:
    return uvloop.run(_look(place.goq, place.scaled(30, 10)))


def _rows(groups: int, topics: int) -> list[Row]:
    where = f"{groups:,} quiet groups of {topics:,} topics"
    rows = [
        Row("console-rest", f"{where}: the node, nobody looks", "% of a core", 0.5, at_most=True)
    ]
    for name in PAGES:
        rows += [
            Row(f"console-{name}-s", f"the page {name}: all of it is there", "s", 1, at_most=True),
            Row(f"console-{name}", "the same, open: the node", "% of a core", 5, at_most=True),
        ]
    return rows


WORKS = [Work(_rows(GROUPS, TOPICS), _measure, prepare=_prepare)]


def main() -> None:
    """Measure a node once, and again after a restart; print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.node.console", description=__doc__)
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--topics", type=int, default=TOPICS)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement of CPU")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".goq-bench-", dir=Path.cwd()) as name:
        with GoqNode(Path(name) / "node") as node:
            began_s, cpu_s = time.perf_counter(), node.cpu_s()
            uvloop.run(_fill(node.url, given.groups, given.topics))
            took_s = time.perf_counter() - began_s
            print(f"filled in {took_s:.1f} s, {node.cpu_s() - cpu_s:.1f} s of CPU")
            _print(node, given)
        began_s = time.perf_counter()
        with GoqNode(Path(name) / "node") as node:
            print(f"started again in {time.perf_counter() - began_s:.2f} s")
            _await_open(node)
            took_s = time.perf_counter() - began_s
            print(f"all open after {took_s:.1f} s, {node.cpu_s():.1f} s of CPU")
            _print(node, given)


def _await_open(node: GoqNode) -> None:
    """Return when the start has opened all partitions."""
    with Client(node.url) as client:
        while client.get_health().opening:
            time.sleep(1)


def _print(node: GoqNode, given: argparse.Namespace) -> None:
    print(f"{'memory':20} {node.rss_mb():8.1f} MB")
    figures = uvloop.run(_look(node, given.seconds))
    for row, figure in zip(_rows(given.groups, given.topics), figures, strict=True):
        print(f"{row.name:20} {figure:8.2f} {row.unit}", flush=True)


if __name__ == "__main__":
    main()
