"""What the node pushes to a loop: credit, ends and breaks of streams."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from goq.client import AsyncClient, Client
from goq.client._async.consume import consumer as async_consumer
from goq.client._sync.consume import consumer as sync_consumer
from goq.client._sync.consume.receive_workers import ReceiveWorkers
from goq.client.leases import prefetch
from goq.client.protocol.frames import StreamSplitter
from goq.errors import InvalidFrame, Unavailable
from goq.model import Message
from tests.support.client.fake_node import FakeGroup, FakeNode


@pytest.fixture(autouse=True)
def _never_out_of_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a loop that waits long on a busy machine from changing its credit."""
    monkeypatch.setattr(prefetch, "_AHEAD_S", 600.0)
    for module in (sync_consumer, async_consumer):
        monkeypatch.setattr(module, "_EXHAUSTED_S", 60.0)


def fill(node: FakeNode, client: Client, count: int, topic: str = "orders") -> FakeGroup:
    node.create(topic)
    client.publish_many(topic, [Message(b"%d" % n) for n in range(count)])
    return node.group(topic, "workers")


def asked(node: FakeNode, method: str, part: str) -> list[dict[str, object]]:
    return [
        json.loads(body or b"null")
        for (verb, path), body in zip(node.requests, node.bodies, strict=True)
        if verb == method and part in path
    ]


def test_a_loop_asks_once_and_is_given_more_as_it_acknowledges(
    node: FakeNode, client: Client
) -> None:
    group = fill(node, client, 30)
    with contextlib.closing(client.consume("orders", group="workers", prefetch=5)) as loop:
        for number in range(30):
            message = next(loop)
            assert message.value == b"%d" % number
            assert len(group.leased) <= 5
            message.ack()
    assert len(group.done) == 30
    assert [(a["stream"], a["max_in_flight"]) for a in asked(node, "POST", "/receive")] == [
        (True, 5)
    ]
    assert asked(node, "PATCH", "/streams/") == []


def test_an_asynchronous_loop_is_given_more_as_it_acknowledges(
    node: FakeNode, client: Client
) -> None:
    group = fill(node, client, 30)

    async def scenario() -> None:
        async with AsyncClient(node.url) as q:
            loop = q.consume("orders", group="workers", prefetch=5)
            for _ in range(30):
                message = await anext(loop)
                assert len(group.leased) <= 5
                await message.ack()
            await loop.aclose()

    asyncio.run(scenario())
    assert len(group.done) == 30
    assert len(asked(node, "POST", "/receive")) == 1


def test_a_loop_whose_user_settles_nothing_goes_on_at_once(
    node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = fill(node, client, 30)
    wait, waits = ReceiveWorkers.wait, list[bool]()

    def noted_wait(workers: ReceiveWorkers, timeout_s: float | None) -> bool:
        waits.append(wait(workers, timeout_s))
        return waits[-1]

    monkeypatch.setattr(ReceiveWorkers, "wait", noted_wait)
    with contextlib.closing(client.consume("orders", group="workers", prefetch=5)) as loop:
        taken = [next(loop) for _ in range(23)]
        assert client.ack_many(taken).done == 23
    assert all(waits), "it waited for what it had not asked for"
    assert len(group.done) == 23
    assert all(a == {"more": 5} for a in asked(node, "PATCH", "/streams/"))
    assert not group.leased


def test_what_a_loop_passed_on_stays_leased_when_it_is_left(node: FakeNode, client: Client) -> None:
    group = fill(node, client, 10)
    with contextlib.closing(client.consume("orders", group="workers", prefetch=6)) as loop:
        taken = [next(loop), next(loop)]
    assert sorted(group.leased) == [(0, 0), (0, 1)]
    assert client.ack_many(taken).done == 2
    assert not node.streams


def test_a_loop_that_dies_gives_back_with_its_connection(node: FakeNode, client: Client) -> None:
    group = fill(node, client, 4)
    loop = client.consume("orders", group="workers")
    next(loop)
    assert len(group.leased) == 4
    node.break_connections()
    node.eventually(lambda: any(attempt == 2 for _, attempt in group.leased.values()))
    loop.close()


@pytest.mark.parametrize("forgets", [False, True])
def test_after_a_break_a_loop_drops_what_it_held_and_goes_on(
    node: FakeNode, client: Client, forgets: bool
) -> None:
    """A node that was started anew knows the leases still, and hears that they are not used."""
    node.forgets_to_give_back = forgets
    group = fill(node, client, 6)
    with contextlib.closing(client.consume("orders", group="workers", prefetch=4)) as loop:
        first = next(loop)
        node.break_connections()
        node.eventually(lambda: len(asked(node, "POST", "/receive")) == 2)
        seen = {}
        for message in loop:
            seen[message.offset] = message.attempt
            message.ack()
            if len(group.done) == (5 if forgets else 6):
                break
    assert set(seen) - {0} == {1, 2, 3, 4, 5}
    if forgets:
        assert set(seen.values()) == {1}
        first.ack()
    assert len(group.done) == 6


def test_a_break_that_lasts_ends_the_loop_in_its_error() -> None:
    with FakeNode() as node, Client(node.url, retries="100ms") as client:
        fill(node, client, 1)
        loop = client.consume("orders", group="workers")
        next(loop).ack()
        node.__exit__()
        with pytest.raises(Unavailable):
            next(loop)


def test_max_is_told_to_the_node_and_counts_over_breaks(node: FakeNode, client: Client) -> None:
    group = fill(node, client, 10)
    with contextlib.closing(
        client.consume("orders", group="workers", prefetch=4, max_messages=6)
    ) as loop:
        for _ in range(2):
            next(loop).ack()
        node.break_connections()
        node.eventually(lambda: len(asked(node, "POST", "/receive")) == 2)
        assert len([message.ack() for message in loop]) == 4
    assert len(group.done) == 6
    assert [a["limit"] for a in asked(node, "POST", "/receive")] == [6, 4]
    assert not group.leased


def test_streams_of_several_topics_break_together_and_go_on(node: FakeNode, client: Client) -> None:
    groups = [fill(node, client, 20, topic) for topic in ("a", "b")]
    loop = client.consume(["a", "b"], group="workers", prefetch=3)
    next(loop).ack()
    node.break_connections()
    for message in loop:
        client.ack_many([message])  # a lease that the break has ended comes again
        if sum(len(group.done) for group in groups) == 40:
            break
    loop.close()
    assert not node.streams


def answers(*texts: bytes) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_a_stream_is_cut_into_answers_wherever_it_is_broken(step: int) -> None:
    texts = [b"first answer", b"x" * 5, b"y" * 300]
    data = answers(*texts)
    cutter = StreamSplitter(1000)
    found: list[bytes] = []
    for start in range(0, len(data), step):
        found += cutter.feed(data[start : start + step])
    assert found == texts


@pytest.mark.parametrize("size", [0, 4, 1001, 2**32 - 1])
def test_a_length_that_no_answer_has_is_refused(size: int) -> None:
    with pytest.raises(InvalidFrame, match="stream"):
        StreamSplitter(1000).feed(size.to_bytes(4, "little"))
