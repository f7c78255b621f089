"""Leases of the messages of a consume loop, on a node as users run it, with its real clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from goq.client import AsyncClient, Client
from tests.support.api.calls import group_of
from tests.support.client.loop_clock import move_ahead
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node

VISIBILITY_S = 4
HANDLER_S = 0.6
MESSAGES = 14  # come at once, and take over twice the visibility timeout

Seen = list[tuple[int, int]]
"""Offsets and attempts, in the order in which a loop yielded them."""


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with running_node() as running:
        yield running


def fill(node: RunningNode, topic: str, count: int, visibility: str) -> None:
    settings = {"delivery": {"visibility_timeout": visibility}, "fsync": "never"}
    node.call("POST", "/v1/topics", {"name": topic, "partitions": 1, "settings": settings})
    with Client(node.url) as client:
        client.publish_many(topic, [b"%d" % n for n in range(count)])


def credit(node: RunningNode) -> int:
    """How many messages the only stream of the node may have in flight."""
    broker = node.node.broker
    assert broker is not None
    (stream,) = broker.streams._streams.values()
    return stream.account.credit


def handle(url: str, topic: str, group: str) -> Seen:
    seen = []
    with Client(url) as client, closing(client.consume(topic, group=group)) as loop:
        for message in loop:
            time.sleep(HANDLER_S)
            message.ack()
            seen.append((message.offset, message.attempt))
            if len(seen) == MESSAGES:
                return seen
    return seen


async def handle_in_loop(url: str, topic: str, group: str, *, blocks: bool) -> Seen:
    seen: Seen = []
    async with AsyncClient(url) as client:
        loop = client.consume(topic, group=group)
        async for message in loop:
            if blocks:
                time.sleep(HANDLER_S)
            else:
                await asyncio.sleep(HANDLER_S)
            await message.ack()
            seen.append((message.offset, message.attempt))
            if len(seen) == MESSAGES:
                break
        await loop.aclose()
    return seen


async def handle_longer_than_a_lease(url: str, topic: str, group: str) -> Seen:
    """Block the event loop for longer than a lease, which is extended meanwhile."""
    seen: Seen = []
    async with AsyncClient(url) as client:
        loop = client.consume(topic, group=group, auto_extend=True)
        async for message in loop:
            time.sleep(1.25 * VISIBILITY_S)
            await message.ack()
            seen.append((message.offset, message.attempt))
            if len(seen) == 2:
                break
        await loop.aclose()
    return seen


def test_a_handler_shorter_than_a_lease_is_given_each_message_once(node: RunningNode) -> None:
    """Those that are not are tried again: a machine that stands still takes leases away."""
    fill(node, "t", MESSAGES, f"{VISIBILITY_S}s")
    each_once = [(offset, 1) for offset in range(MESSAGES)]
    works: list[tuple[Callable[[str], Seen], Seen]] = [
        (lambda group: handle(node.url, "t", group), each_once),
        (lambda group: asyncio.run(handle_in_loop(node.url, "t", group, blocks=False)), each_once),
        (lambda group: asyncio.run(handle_in_loop(node.url, "t", group, blocks=True)), each_once),
        (
            lambda group: asyncio.run(handle_longer_than_a_lease(node.url, "t", group)),
            each_once[:2],
        ),
    ]

    def is_as_expected(number: int) -> bool:
        work, expected = works[number]
        return any(work(f"{number}-{attempt}") == expected for attempt in range(3))

    with ThreadPoolExecutor(len(works)) as pool:
        assert list(pool.map(is_as_expected, range(len(works)))) == [True] * len(works)


def test_messages_behind_a_hung_handler_go_to_another_consumer(node: RunningNode) -> None:
    fill(node, "hung", 10, "3s")
    with Client(node.url) as client, Client(node.url) as other:
        hung = client.consume("hung", group="g")
        first = next(hung)
        assert first.offset == 0
        seen = {}
        for message in other.consume("hung", group="g", timeout="30s"):
            message.ack()
            seen[message.offset] = message.attempt
            if len(seen) == 10:
                break
        assert seen == {0: 2, **dict.fromkeys(range(1, 10), 1)}
        client.publish("hung", b"later")
        assert next(hung).value == b"later"
        hung.close()


def test_a_slow_consumer_leaves_messages_to_others(node: RunningNode) -> None:
    fill(node, "slow", 200, "1h")
    with Client(node.url) as client, closing(client.consume("slow", group="g")) as loop:
        client.ack_many([next(loop) for _ in range(40)])  # a fast start
        assert credit(node) >= 100
        for _ in range(3):
            message = next(loop)
            time.sleep(HANDLER_S)
            message.ack()
        next(loop)
        assert credit(node) < 10


def test_what_a_loop_leaves_behind_has_lost_no_attempt(node: RunningNode) -> None:
    fill(node, "left", 10, "1h")
    with Client(node.url) as client:
        for number in range(6):
            with closing(client.consume("left", group="g", wait="1s")) as loop:
                message = next(loop)
                assert (message.offset, message.attempt) == (number, 1)
                message.ack()
        eventually(lambda: group_of(node, "left")["leased"] == 0)
        assert group_of(node, "left")["dead"] == 0


def test_messages_whose_lease_others_have_meanwhile_are_not_yielded(
    node: RunningNode, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(node, "lost", 4, "10s")
    with Client(node.url) as client, Client(node.url) as other:
        with closing(client.consume("lost", group="g", until_empty=True)) as loop:
            next(loop).ack()
            client.reset_group("lost", "g", to="1")
            others = other.receive("lost", "g", max_messages=10, wait="20s", visibility="1h")
            move_ahead(monkeypatch, 0.6)  # over 5 % of the lease: it is extended before a yield
            with caplog.at_level("INFO", "goq.client"):
                assert [message.offset for message in loop] == []
        assert [message.offset for message in others] == [1, 2, 3]
        assert other.ack_many(others).done == 3
    assert caplog.messages == [
        "3 leases of lost were lost, the first of 0:1: others get the messages"
    ]
