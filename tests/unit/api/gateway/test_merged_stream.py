"""One stream made of parts, with nodes that are played."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress

import pytest

from goq.api.gateway.merged_stream import MergedStream
from goq.api.routing_policy import ALIVE, MERGED_STREAM, REOPENED
from goq.api.schemas.groups import Receive
from goq.errors import TopicNotFound
from goq.http.message import Item, LiveStream, OwnedStream, Request, Response
from goq.model import Receipt
from tests.support.cluster.replication.loop import run_simulated
from tests.support.eventually import until

B, C = "http://b", "http://c"


class Nodes:
    """The leaders of a topic, this node among them, and the parts that they have open."""

    def __init__(self) -> None:
        self.urls: list[str | None] = [None, B]
        self.is_deleted = False
        self.asked: list[Request] = []
        self.opened: list[str | None] = []
        self.open: dict[str | None, asyncio.Event] = {}
        """What ends the open parts."""
        self.hung: set[str | None] = set()
        self.delivered: dict[str | None, int] = {}
        """The messages of a node's part."""
        self.told: list[str | None] = []
        """The nodes that were told that the consumer lives."""
        self.refused: dict[str | None, int] = {}
        self.returned: list[tuple[str, ...]] = []
        self.given_back: list[str] = []
        self.partition_leaders = self
        self.release = asyncio.Event()
        """Ends what hangs."""
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leader_urls(self, _topic: str) -> list[str | None]:
        if self.is_deleted:
            raise TopicNotFound("it is gone")
        return list(self.urls)

    def next_change(self) -> asyncio.Future[None]:
        return self._change

    def change(self, *urls: str | None) -> None:
        self.urls = list(urls)
        change, self._change = self._change, asyncio.get_running_loop().create_future()
        change.set_result(None)

    async def ask(self, url: str | None, request: Request) -> Response:
        if url in self.hung:
            await self.release.wait()
        if request.method == "DELETE":
            self.open[url].set()
            return Response(204)
        if request.method == "PATCH":
            if ALIVE in request.headers:
                self.told.append(url)
            asked = json.loads(request.body)
            credit = asked.get("more", asked.get("max_in_flight"))
            found = {"max_in_flight": credit, "in_flight": 0}
            return Response(200, json.dumps(found).encode(), "application/json")
        self.asked.append(request)
        self.opened.append(url)
        if url in self.refused:
            return Response(self.refused[url], b"{}")
        ends = self.open[url] = asyncio.Event()

        async def close() -> None:
            if self.open.get(url) is ends:
                del self.open[url]

        items = self._items(ends, self.delivered.get(url, 0))
        body = LiveStream(items, b"\n", close) if url is None else OwnedStream(items, close)
        return Response(200, body, "application/x-ndjson", {"Goq-Stream": f"at {url}"})

    @staticmethod
    async def _items(ends: asyncio.Event, count: int) -> AsyncGenerator[Item, None]:
        for _ in range(count):
            yield b'{"receipt":"0:5:1"}\n'
        await ends.wait()
        yield b"\n"

    async def return_leases(self, topic: str, group: str, receipts: Sequence[Receipt]) -> None:
        self.given_back += map(str, receipts)

    def return_held(self, *held: str) -> None:
        self.returned.append(held)

    def shares(self) -> list[int]:
        return [json.loads(request.body)["max_in_flight"] for request in self.asked]


def stream_of(nodes: Nodes, credit: int = 10, limit: int | None = None) -> MergedStream:
    request = Request("POST", "/v1/topics/orders/groups/g/receive")
    asked = Receive(stream=True, limit=limit)
    values = ("orders", "g")
    return MergedStream(nodes, nodes, request, values, asked, credit, frames=False)


def run(test: Callable[[Nodes], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await test(Nodes())

    run_simulated(main())


async def records(merged: MergedStream) -> list[Item]:
    return [record async for record in merged.records()]


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_stream_that_is_closed_leaves_no_part_open(is_begun: bool) -> None:
    async def test(nodes: Nodes) -> None:
        merged = stream_of(nodes)
        assert await merged.open() is None
        assert set(nodes.open) == {None, B}
        live = LiveStream(merged.records(), merged.heartbeat, merged.aclose)
        if is_begun:
            reading = asyncio.ensure_future(anext(live))
            await asyncio.sleep(0.01)
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
        await live.aclose()
        assert nodes.open == {}

    run(test)


@pytest.mark.parametrize(("delivered", "told"), [(5, []), (6, [B]), (20, [B])])
def test_a_part_that_delivers_more_than_its_share_shows_the_others_that_the_consumer_lives(
    delivered: int, told: list[str | None]
) -> None:
    async def test(nodes: Nodes) -> None:
        nodes.delivered = {None: delivered}
        merged = stream_of(nodes)
        await merged.open()
        stream = merged.records()
        for _ in range(delivered):
            await anext(stream)
        await until(lambda: nodes.told == told)
        await merged.aclose()
        assert nodes.told == told

    run(test)


def test_a_client_that_leaves_while_parts_are_opened_leaves_none_open() -> None:
    async def test(nodes: Nodes) -> None:
        nodes.hung = {B}
        opening = asyncio.ensure_future(stream_of(nodes).open())
        await until(lambda: None in nodes.open)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert nodes.open == {}
        assert len(asyncio.all_tasks()) == 1

    run(test)


def test_a_stream_that_ends_while_a_part_is_opened_ends_that_part_too() -> None:
    async def test(nodes: Nodes) -> None:
        merged = stream_of(nodes)
        await merged.open()
        reading = asyncio.ensure_future(records(merged))
        nodes.hung = {C}
        nodes.change(None, B, C)
        await asyncio.sleep(0.01)
        merged.end()
        await until(lambda: not nodes.open)
        assert not reading.done()
        nodes.release.set()
        assert await reading == []
        assert nodes.opened == [None, B, C]
        assert nodes.open == {}

    run(test)


def test_the_end_waits_for_no_node_that_hangs() -> None:
    async def test(nodes: Nodes) -> None:
        merged = stream_of(nodes)
        await merged.open()
        reading = asyncio.ensure_future(records(merged))
        nodes.hung = {B, C}
        nodes.change(None, B, C)
        await asyncio.sleep(0.01)
        merged.end()
        assert await reading == []
        assert nodes.open == {}

    run(test)


def test_a_part_that_ended_is_opened_again_after_a_pause_and_says_so() -> None:
    async def test(nodes: Nodes) -> None:
        merged = stream_of(nodes)
        await merged.open()
        nodes.open[B].set()
        await until(lambda: nodes.opened == [None, B, B])
        assert [REOPENED in request.headers for request in nodes.asked] == [False, False, True]
        assert {request.headers[MERGED_STREAM] for request in nodes.asked} == {merged.id}
        await merged.aclose()

    run(test)


def test_messages_beyond_the_limit_are_released_when_the_client_closes_at_its_limit() -> None:
    async def test(nodes: Nodes) -> None:
        nodes.delivered = {None: 3, B: 3}
        merged = stream_of(nodes, limit=2)
        await merged.open()
        stream = merged.records()
        for _ in range(2):
            await anext(stream)
        await stream.aclose()
        await merged.aclose()
        assert len(nodes.given_back) == 4
        assert nodes.returned == []
        assert nodes.open == {}

    run(test)


@pytest.mark.parametrize("is_ended", [False, True])
def test_all_leaders_are_asked_to_end_what_a_closed_stream_held_unless_its_consumer_keeps_it(
    is_ended: bool,
) -> None:
    async def test(nodes: Nodes) -> None:
        merged = stream_of(nodes)
        await merged.open()
        if is_ended:
            merged.end()
        await merged.aclose()
        held = ("orders", "g", merged.id, "connection closed")
        assert nodes.returned == ([] if is_ended else [held])

    run(test)


def test_a_part_that_ends_at_once_is_not_opened_again_and_again() -> None:
    async def test(nodes: Nodes) -> None:
        merged = stream_of(nodes)
        await merged.open()
        nodes.open[B].set()
        await until(lambda: B not in nodes.open)
        for _ in range(5):
            nodes.change(None, B)
            await asyncio.sleep(0.01)
        assert nodes.opened == [None, B]
        await merged.aclose()

    run(test)


@pytest.mark.parametrize("status", [400, 401, 403, 409])
def test_a_stream_is_over_when_a_node_refuses_its_part(status: int) -> None:
    async def test(nodes: Nodes) -> None:
        merged = stream_of(nodes)
        await merged.open()
        nodes.refused[B] = status
        nodes.open[B].set()
        assert await records(merged) == []
        assert nodes.open == {}
        await merged.aclose()

    run(test)


@pytest.mark.parametrize("status", [421, 404, 429, 503])
def test_a_node_that_refuses_for_now_is_asked_again(status: int) -> None:
    async def test(nodes: Nodes) -> None:
        merged = stream_of(nodes)
        await merged.open()
        nodes.refused[C] = status
        nodes.change(None, B, C)
        await until(lambda: nodes.opened.count(C) == 3)
        del nodes.refused[C]
        await until(lambda: C in nodes.open)
        assert set(nodes.open) == {None, B, C}
        await merged.aclose()

    run(test)


def test_a_stream_ends_with_its_topic() -> None:
    async def test(nodes: Nodes) -> None:
        merged = stream_of(nodes)
        await merged.open()
        nodes.is_deleted = True
        nodes.change()
        assert await records(merged) == []
        assert nodes.open == {}

    run(test)


def test_a_paused_stream_gets_no_part_at_a_new_leader_until_it_goes_on() -> None:
    async def test(nodes: Nodes) -> None:
        merged = stream_of(nodes)
        await merged.open()
        assert nodes.shares() == [5, 5]
        await merged.grant(0, 0)
        nodes.change(None, B, C)
        await asyncio.sleep(0.02)
        assert nodes.opened == [None, B]
        await merged.grant(0, 30)
        await until(lambda: C in nodes.open)
        assert nodes.shares() == [5, 5, 10]
        await merged.grant(60, None)
        nodes.change(None, B, C, "http://d")
        await until(lambda: len(nodes.open) == 4)
        assert nodes.shares() == [5, 5, 10, 15]
        await merged.aclose()

    run(test)
