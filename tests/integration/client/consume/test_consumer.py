from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from goq import limits
from goq.client import AsyncClient, Client, ReceivedMessage
from goq.client._sync.consume.received_message import extend_leases
from goq.client._sync.consume.settlement import Settler
from goq.client.leases.message_buffer import LeaseTime, MessageBuffer
from goq.client.messages import FailedReceipt, Settled
from goq.errors import GoqError, InvalidInput, LeaseLost, TopicNotFound, Unavailable
from goq.model import Message, MessageId, Receipt
from tests.support.client.fake_node import FakeGroup, FakeNode
from tests.support.client.loop_clock import move_ahead


def fill(node: FakeNode, client: Client, count: int, partitions: int = 1) -> FakeGroup:
    node.create("orders", partitions)
    client.publish_many(
        "orders", [Message(b"%d" % n, b"k%d" % n, [("h", b"v")]) for n in range(count)]
    )
    return node.group("orders", "workers")


def test_a_loop_yields_every_message_and_acks_what_it_is_told(
    node: FakeNode, client: Client
) -> None:
    group = fill(node, client, 25, partitions=3)
    seen = []
    for message in client.consume("orders", group="workers", prefetch=10, until_empty=True):
        assert message.key == b"k" + (message.value or b"")
        assert list(message.headers) == [("h", b"v")]
        assert message.attempt == 1
        assert message.lease_until > message.timestamp
        seen.append(message.id)
        message.ack()
    assert len(set(seen)) == 25
    assert group.done == {(i.partition, i.offset) for i in seen}
    assert not group.leased


def test_leaving_the_loop_early_gives_back_what_was_not_yielded(
    node: FakeNode, client: Client
) -> None:
    group = fill(node, client, 10)
    for message in client.consume("orders", group="workers"):
        message.ack()
        if message.offset == 3:
            break
    assert group.done == {(0, n) for n in range(4)}
    assert not group.leased
    [given_back] = [body for verb, body in group.calls if verb == "release"]
    assert [Receipt.parse(text)[2:4] for text in given_back["receipts"]] == [(4, 10)]
    again = client.receive("orders", "workers")
    assert [(m.offset, m.attempt) for m in again] == [(n, 1) for n in range(4, 10)]


def test_a_node_that_cannot_release_is_told_to_retry_at_once(
    node: FakeNode, client: Client
) -> None:
    node.knows_releases = False
    group = fill(node, client, 3)
    for message in client.consume("orders", group="workers"):
        message.ack()
        break
    assert not group.leased
    [given_back] = [body for verb, body in group.calls if verb == "nack"]
    assert given_back["delay"] == "0s"


def test_a_loop_that_is_never_finished_is_finished_with_its_client(node: FakeNode) -> None:
    with Client(node.url) as client:
        group = fill(node, client, 10)
        loop = client.consume("orders", group="workers")
        next(loop).ack()
    assert not group.leased
    assert list(loop) == []


def test_an_asynchronous_loop_left_early_gives_back_too(node: FakeNode, client: Client) -> None:
    group = fill(node, client, 10)

    async def scenario() -> None:
        async with AsyncClient(node.url) as q:
            async for message in q.consume("orders", group="workers"):
                await message.ack()
                break
            gc.collect()

    asyncio.run(scenario())
    assert group.done == {(0, 0)}
    assert not group.leased


def test_max_counts_messages_and_never_takes_more(node: FakeNode, client: Client) -> None:
    group = fill(node, client, 30)
    assert len(list(client.consume("orders", group="workers", prefetch=4, max_messages=10))) == 10
    assert len(group.leased) == 10
    assert list(client.consume("orders", group="workers", max_messages=0)) == []


def test_until_empty_does_not_wait(node: FakeNode, client: Client) -> None:
    fill(node, client, 0)
    assert list(client.consume("orders", group="workers", until_empty=True, wait="60s")) == []


def test_timeout_ends_a_loop_to_which_nothing_comes(node: FakeNode, client: Client) -> None:
    fill(node, client, 3)
    assert len(list(client.consume("orders", group="workers", timeout="1s"))) == 3


def test_a_loop_waits_for_what_is_published_later(node: FakeNode, client: Client) -> None:
    fill(node, client, 0)

    def publish_late() -> None:
        node.eventually(lambda: node.paths("POST", "/receive"))
        client.publish("orders", b"late")

    thread = threading.Thread(target=publish_late)
    thread.start()
    for message in client.consume("orders", group="workers"):
        assert message.value == b"late"
        break
    thread.join()


def test_a_loop_without_waiting_or_topics_is_refused(client: Client) -> None:
    with pytest.raises(InvalidInput, match="without pause"):
        client.consume("orders", group="workers", wait=0)
    with pytest.raises(InvalidInput, match="at least one topic"):
        client.consume([], group="workers")


def test_several_topics_are_consumed_at_once(node: FakeNode, client: Client) -> None:
    topics = ["a", "b", "c"]
    for topic in topics:
        node.create(topic)
        client.publish_many(topic, [f"{topic}{n}" for n in range(25)])
    seen = []
    for message in client.consume(topics, group="workers", prefetch=10, until_empty=True):
        message.ack()
        seen.append(message.value)
    assert sorted(seen, key=str) == [
        b"%s%d" % (t.encode(), n) for t in topics for n in sorted(range(25), key=str)
    ]


def test_several_topics_waited_for_are_given_back_when_the_loop_is_left(
    node: FakeNode, client: Client
) -> None:
    node.create("quiet")
    fill(node, client, 50)
    for message in client.consume(["orders", "quiet"], group="workers", prefetch=5):
        message.ack()
        break
    group = node.group("orders", "workers")
    assert group.done == {(0, 0)}
    assert not group.leased


def test_an_asynchronous_loop_over_several_topics(node: FakeNode, client: Client) -> None:
    node.create("quiet")
    group = fill(node, client, 20)

    async def scenario() -> None:
        async with AsyncClient(node.url) as q:
            loop = q.consume(["orders", "quiet"], group="workers", prefetch=5)
            for _ in range(7):
                await (await anext(loop)).ack()

    asyncio.run(scenario())
    assert len(group.done) == 7
    assert not group.leased


def test_an_error_of_one_topic_ends_the_loop_over_several(node: FakeNode, client: Client) -> None:
    fill(node, client, 1)
    with pytest.raises(TopicNotFound):
        list(client.consume(["orders", "missing"], group="workers", wait_for_topics=False))


def test_nack_and_extend_say_what_they_were_told(node: FakeNode, client: Client) -> None:
    group = fill(node, client, 2)
    first, second = client.receive(
        "orders", "workers", max_messages=2, visibility="1m", consumer="c-1"
    )
    first.nack(delay="90s", reason="no stock")
    second.extend("2m")
    assert group.calls == [
        ("nack", {"receipts": [first.receipt], "delay": "1m30s", "reason": "no stock"}),
        ("extend", {"receipts": [second.receipt], "visibility": "2m"}),
    ]
    assert first.id == MessageId("orders", 0, 0)
    assert b'"visibility":"1m"' in node.bodies[-3]
    assert b'"consumer":"c-1"' in node.bodies[-3]


def test_a_lost_lease_raises(node: FakeNode, client: Client) -> None:
    fill(node, client, 1)
    [message] = client.receive("orders", "workers")
    message.nack()
    with pytest.raises(LeaseLost, match="orders:0:0"):
        message.ack()


def test_ack_many_sends_runs(node: FakeNode, client: Client) -> None:
    group = fill(node, client, 20)
    messages = client.receive("orders", "workers", max_messages=20)
    settled = client.ack_many(messages[:8] + messages[12:])
    assert settled.done == 16
    [(_, body)] = group.calls
    assert [Receipt.parse(text)[2:4] for text in body["receipts"]] == [(0, 8), (12, 20)]
    lost = client.ack_many(messages[7:9])
    assert lost.done == 1
    assert [(f.receipt, f.code) for f in lost.failed] == [(messages[7].receipt, "lease_lost")]


def test_many_messages_are_settled_unless_their_leases_may_last(
    client: Client, monkeypatch: pytest.MonkeyPatch, node: FakeNode
) -> None:
    fill(node, client, 4)
    messages = client.receive("orders", "workers")
    codes = ["timed_out", "lease_lost", "topic_not_found"]
    failed = [FailedReceipt(m.receipt, code) for m, code in zip(messages, codes, strict=False)]
    monkeypatch.setattr(Settler, "settle", lambda *_args, **_details: Settled(1, failed))
    client.ack_many(messages)
    assert [message.settled for message in messages] == [False, True, True, True]


@pytest.mark.parametrize("error", [Unavailable("gone"), TopicNotFound("deleted meanwhile")])
def test_what_one_of_several_requests_settled_is_told_when_another_one_fails(
    client: Client, monkeypatch: pytest.MonkeyPatch, node: FakeNode, error: GoqError
) -> None:
    fill(node, client, 4)
    texts = [message.receipt for message in client.receive("orders", "workers")]
    monkeypatch.setattr(limits, "RECEIPTS_PER_REQUEST_MAX", 2)
    outcomes: list[Settled | GoqError] = [Settled(2, []), error, error]

    def settle(*_args: object) -> Settled:
        outcome = outcomes.pop(0)
        if isinstance(outcome, GoqError):
            raise outcome
        return outcome

    monkeypatch.setattr(Settler, "_settle", settle)
    failed = [FailedReceipt(text, error.code) for text in texts[2:]]
    assert client.ack("orders", "workers", texts) == Settled(2, failed)
    with pytest.raises(type(error)):
        client.ack("orders", "workers", texts[2:])


def test_receipts_can_be_settled_by_their_text(node: FakeNode, client: Client) -> None:
    group = fill(node, client, 3)
    a, b, c = client.receive("orders", "workers")
    assert client.ack("orders", "workers", [a.receipt]).done == 1
    assert client.nack("orders", "workers", [b.claim()], delay=0).done == 1
    assert client.extend("orders", "workers", [c.receipt], visibility=60).done == 1
    assert group.done == {(0, 0)}


def test_a_batch_is_settled_without_being_split(node: FakeNode, client: Client) -> None:
    group = fill(node, client, 100)
    batch = client.receive_batch("orders", "workers", max_messages=60)
    assert len(batch) == 60
    assert list(batch.values()) == [b"%d" % n for n in range(60)]
    assert [m.value for m in batch.messages()] == list(batch.values())
    assert batch.extend("1m").done == 60
    assert batch.ack().done == 60
    assert len(group.done) == 60
    assert [len(body["receipts"]) for _, body in group.calls] == [1, 1]
    rest = client.receive_batch("orders", "workers")
    assert rest.nack(delay="1s").done == 40
    assert len(client.receive_batch("orders", "workers")) == 40


def test_auto_extend_renews_what_is_not_settled(node: FakeNode, client: Client) -> None:
    group = fill(node, client, 3)
    loop = client.consume("orders", group="workers", auto_extend=True, visibility="300ms")
    next(loop).ack()
    next(loop)

    def renewed() -> bool:
        return any(verb == "extend" for verb, _ in group.calls)

    node.eventually(renewed)
    [first, *_] = [body for verb, body in group.calls if verb == "extend"]
    assert [Receipt.parse(text)[2:4] for text in first["receipts"]] == [(1, 3)]
    assert first["visibility"] == "300ms"
    del loop
    assert set(group.leased) == {(0, 1)}


def test_a_message_that_waited_is_extended_before_it_is_yielded(
    node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = fill(node, client, 3)
    loop = client.consume("orders", group="workers", visibility="10s")
    next(loop).ack()
    move_ahead(monkeypatch, 0.6)  # over 5 % of the lease
    next(loop)
    extended = [body for verb, body in group.calls if verb == "extend"]
    assert [Receipt.parse(text)[2:4] for text in extended[0]["receipts"]] == [(1, 3)]
    loop.close()


def test_a_message_whose_lease_is_lost_is_not_yielded(
    node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = fill(node, client, 3)
    loop = client.consume("orders", group="workers", visibility="10s")
    next(loop).ack()
    with node.changed:
        del group.leased[0, 1]
    move_ahead(monkeypatch, 0.6)  # over 5 % of the lease
    assert next(loop).offset == 2
    loop.close()


def test_messages_whose_lease_is_lost_are_dropped(node: FakeNode, client: Client) -> None:
    fill(node, client, 3)
    messages = client.receive("orders", "workers")
    buffer = MessageBuffer[ReceivedMessage](keeps_taken=False)
    lease_time = LeaseTime(60.0, 0.0)
    for message in messages:
        message.lease_time = lease_time
    buffer.add(messages, lease_time)
    client.nack("orders", "workers", [messages[1].receipt])
    extend_leases(client._settler, buffer, buffer.due(100.0))
    assert [message.offset for message in buffer.drain()] == [0, 2]


def test_a_loop_with_an_unreachable_node_ends_in_its_error() -> None:
    with FakeNode() as node:
        url = node.url
    with Client(url, retries=0) as client, pytest.raises(Unavailable, match="goq serve"):
        list(client.consume("orders", group="workers"))


def test_giving_back_to_a_node_that_is_gone_does_not_raise() -> None:
    with FakeNode() as node:
        client = Client(node.url, retries=0)
        fill(node, client, 5)
        loop = client.consume("orders", group="workers")
        message = next(loop)
    client.close()
    with pytest.raises(GoqError):
        message.ack()
    assert isinstance(message, ReceivedMessage)
