from __future__ import annotations

import asyncio
import threading

import pytest

from goq import limits
from goq.client import AsyncClient, Client
from goq.errors import (
    InvalidInput,
    NotAllowed,
    PartitionNotFound,
    TooLarge,
    TopicNotFound,
    Unavailable,
)
from goq.frame.hashes import partition_of
from goq.model import Message, MessageId
from tests.support.client.fake_node import FakeNode, Refused


def test_publish_returns_where_the_message_is(node: FakeNode, client: Client) -> None:
    node.create("orders")
    first = client.publish("orders", b"one")
    second = client.publish("orders", "zwei ü", key="k", headers={"trace": "t-1"})
    assert first.id == MessageId("orders", 0, 0)
    assert second.id == MessageId("orders", 0, 1)
    assert second.timestamp > first.timestamp
    assert not first.duplicate
    [_, stored] = client.read("orders", partition=0).messages
    assert stored.value == "zwei ü".encode()
    assert stored.key == b"k"
    assert list(stored.headers) == [("trace", b"t-1")]
    assert stored.id == second.id
    assert stored.timestamp == second.timestamp


def test_a_key_decides_the_partition_and_no_key_goes_round(node: FakeNode, client: Client) -> None:
    node.create("orders", 4)
    keys = [f"key-{n}" for n in range(20)]
    for key in keys:
        assert client.publish("orders", b"", key=key).id.partition == partition_of(key.encode(), 4)
    assert {client.publish("orders", b"").id.partition for _ in range(4)} == {0, 1, 2, 3}


def test_a_partition_can_be_named_and_must_exist(node: FakeNode, client: Client) -> None:
    node.create("orders", 3)
    assert client.publish("orders", b"", key="k", partition=2).id.partition == 2
    with pytest.raises(PartitionNotFound, match="0 to 2, not 3"):
        client.publish("orders", b"", partition=3)


def test_a_lost_answer_stores_the_message_once(node: FakeNode, client: Client) -> None:
    [partition] = node.create("orders")
    client.publish("orders", b"before")
    node.drops_after_storing = 2
    published = client.publish("orders", b"once")
    assert published.duplicate
    assert published.id.offset == 1
    assert partition.values() == [b"before", b"once"]
    assert not client.publish("orders", b"after").duplicate
    assert partition.values() == [b"before", b"once", b"after"]


def test_a_request_that_was_never_carried_out_is_sent_again(node: FakeNode, client: Client) -> None:
    [partition] = node.create("orders")
    node.drops_before_storing = 2
    assert not client.publish("orders", b"once").duplicate
    assert partition.values() == [b"once"]


def test_a_publish_that_was_given_up_does_not_make_the_next_one_a_duplicate(
    node: FakeNode,
) -> None:
    [partition] = node.create("orders")
    with Client(node.url, retries=0) as client:
        client.publish("orders", b"a")
        node.drops_after_storing = 1
        with pytest.raises(Unavailable, match="may still have been done"):
            client.publish("orders", b"b")
        assert not client.publish("orders", b"c").duplicate
    assert partition.values() == [b"a", b"b", b"c"]


def test_publish_many_keeps_the_order_and_tells_every_id(node: FakeNode, client: Client) -> None:
    partitions = node.create("orders", 3)
    messages = [Message(b"%d" % n, b"key-%d" % (n % 7)) for n in range(100)]
    published = client.publish_many("orders", messages)
    assert len(published) == 100
    for message, result in zip(messages, published, strict=True):
        partition = partitions[result.id.partition]
        assert partition.values()[result.id.offset] == message.value
        assert message.key is not None
        assert result.id.partition == partition_of(message.key, 3)


def test_publish_many_splits_what_is_too_much_for_one_request(
    node: FakeNode, client: Client
) -> None:
    [partition] = node.create("orders")
    values = [bytes([n]) * 400_000 for n in range(10)]
    published = client.publish_many("orders", values, compress=True)
    assert [result.id.offset for result in published] == list(range(10))
    assert published[9].id.offset == 9
    assert partition.values() == values
    assert len(node.paths("POST", "/messages")) == 5


def test_a_tombstone_and_an_empty_value_differ(node: FakeNode, client: Client) -> None:
    node.create("orders")
    client.publish_many("orders", [Message(None, b"k"), Message(b"", b"k")])
    assert [m.value for m in client.read("orders", partition=0).messages] == [None, b""]


def test_a_value_over_the_limit_is_refused_before_it_is_sent(
    node: FakeNode, client: Client
) -> None:
    node.create("orders")
    with pytest.raises(TooLarge, match="over the limit of 8388608"):
        client.publish("orders", bytes(8 * 1024 * 1024 + 1))
    with pytest.raises(InvalidInput, match="bytes or str, not int"):
        client.publish("orders", 5)
    assert node.paths("POST", "/messages") == []


def test_errors_of_the_node_come_back_as_what_they_were(node: FakeNode, client: Client) -> None:
    with pytest.raises(TopicNotFound):
        client.publish("missing", b"")
    node.create("orders")
    node.refusals.append(Refused(403, "not_allowed", field="token"))
    with pytest.raises(NotAllowed) as raised:
        client.publish("orders", b"")
    assert raised.value.field == "token"
    assert raised.value.detail == "said not_allowed"


def test_a_topic_made_anew_with_fewer_partitions_is_noticed(node: FakeNode, client: Client) -> None:
    node.create("orders", 8)
    keys = [f"key-{n}" for n in range(30)]
    for key in keys:
        client.publish("orders", b"", key=key)
    node.create("orders", 2)
    for key in keys:
        assert client.publish("orders", b"", key=key).id.partition == partition_of(key.encode(), 2)


def test_a_topic_is_made_by_the_first_publish_where_the_node_does_that(
    node: FakeNode, client: Client
) -> None:
    node.creates_topics = True
    assert client.publish("new", b"", key="k").id.partition == partition_of(b"k", 5)
    assert sum(partition.end for partition in node.topics["new"]) == 1


def test_publishers_at_the_same_moment_share_requests_and_keep_their_sequences(
    node: FakeNode,
) -> None:
    partitions = node.create("orders", 3)
    node.may_publish.clear()

    async def scenario() -> None:
        async with AsyncClient(node.url) as q:
            calls = [
                asyncio.create_task(q.publish("orders", f"{n}", key=f"k{n % 5}"))
                for n in range(200)
            ]
            await asyncio.to_thread(node.eventually, lambda: node.paths("POST", "/messages"))
            node.may_publish.set()
            for n, published in enumerate(await asyncio.gather(*calls)):
                stored = partitions[published.id.partition].values()[published.id.offset]
                assert stored == b"%d" % n

    asyncio.run(scenario())
    assert len(node.paths("POST", "/messages")) < 10
    for partition in partitions:
        assert partition.values() == sorted(partition.values(), key=lambda v: int(v or b""))


def test_threads_that_publish_at_the_same_moment_share_requests(
    node: FakeNode, client: Client
) -> None:
    [partition] = node.create("orders")
    node.may_publish.clear()
    threads = [threading.Thread(target=client.publish, args=("orders", f"{n}")) for n in range(20)]
    for thread in threads:
        thread.start()
    node.eventually(lambda: node.paths("POST", "/messages"))
    node.may_publish.set()
    for thread in threads:
        thread.join()
    assert sorted(partition.values(), key=lambda v: int(v or b"")) == [b"%d" % n for n in range(20)]
    assert len(node.paths("POST", "/messages")) < 20


def test_a_cancelled_publish_leaves_the_others_and_the_sequences_whole(node: FakeNode) -> None:
    [partition] = node.create("orders")

    async def scenario() -> None:
        async with AsyncClient(node.url) as q:
            await q.publish("orders", b"first")
            node.may_publish.clear()
            cancelled = asyncio.create_task(q.publish("orders", b"cancelled"))
            posts = len(node.paths("POST", "/messages"))
            await asyncio.to_thread(
                node.eventually, lambda: len(node.paths("POST", "/messages")) > posts
            )
            waiting = [asyncio.create_task(q.publish("orders", f"{n}")) for n in range(3)]
            await asyncio.sleep(0)
            waiting[1].cancel()
            cancelled.cancel()
            node.may_publish.set()
            outcomes = await asyncio.gather(cancelled, *waiting, return_exceptions=True)
            assert isinstance(outcomes[0], asyncio.CancelledError)
            assert isinstance(outcomes[2], asyncio.CancelledError)
            await q.publish("orders", b"last")

    asyncio.run(scenario())
    assert partition.values() == [b"first", b"cancelled", b"0", b"2", b"last"]


def test_a_message_that_is_published_in_a_span_carries_it(node: FakeNode, client: Client) -> None:
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

    node.create("orders")
    with use_span(NonRecordingSpan(SpanContext(1, 2, False, TraceFlags(0)))):
        client.publish("orders", b"in")
    client.publish("orders", b"out")
    inside, outside = client.read("orders", partition=0).messages
    assert inside.traceparent == f"00-{1:032x}-{2:016x}-00"
    assert (outside.traceparent, list(outside.headers)) == (None, [])


def test_a_client_names_itself_in_every_request(node: FakeNode) -> None:
    node.create("orders")
    with Client(node.url, client_id="Zoë's shop") as client:
        client.publish("orders", b"v")
    with Client(node.url) as client:
        client.publish("orders", b"v")
        own = client.client_id
    names = [headers["goq-client-id"] for headers in node.headers]
    assert {name.encode("latin-1").decode() for name in names} == {"Zoë's shop", own}


@pytest.mark.parametrize("name", ["x" * limits.CLIENT_ID_CHARS_MAX, "a b"])
def test_a_client_takes_names_that_can_be_shown(name: str) -> None:
    with Client(client_id=name) as client:
        assert client.client_id == name


@pytest.mark.parametrize(
    "name", ["", "x" * (limits.CLIENT_ID_CHARS_MAX + 1), "a\nb", "a\0", " a", "\ud800"]
)
def test_a_client_refuses_a_name_that_cannot(name: str) -> None:
    with pytest.raises(InvalidInput, match="client id"):
        Client(client_id=name)
