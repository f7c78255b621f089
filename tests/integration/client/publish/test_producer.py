from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from goq.client import AsyncClient, Client, PublishedBatch
from goq.errors import InvalidInput, NotAllowed, TimedOut, TooLarge, TopicNotFound, Unavailable
from goq.frame.hashes import partition_of
from goq.model import Message
from tests.support.client.fake_node import FakeNode, FakePartition, Refused, placed_frames
from tests.support.client.interrupts import is_done
from tests.support.eventually import WAIT_S_MAX, eventually, until

NEVER = "1h"


def batches(node: FakeNode) -> list[list[tuple[int, int]]]:
    """Partition and count of each frame of each publish."""
    return [
        [(partition, view.header.message_count) for partition, view in placed_frames(body)]
        for (method, path), body in zip(node.requests, node.bodies, strict=True)
        if method == "POST" and path.endswith("/messages")
    ]


def test_a_full_batch_is_sent_and_closing_sends_the_rest(node: FakeNode, client: Client) -> None:
    [partition] = node.create("lines")
    with client.producer("lines", batch=10, linger=NEVER) as producer:
        for n in range(25):
            producer.send(f"{n}")
    assert partition.values() == [b"%d" % n for n in range(25)]
    assert [frames[0][1] for frames in batches(node)] == [10, 10, 5]
    assert producer.unsent == 0


def test_whole_lists_are_cut_into_batches(node: FakeNode, client: Client) -> None:
    [partition] = node.create("lines")
    values = [b"%d" % n for n in range(2500)]
    with client.producer("lines", linger=NEVER) as producer:
        producer.send_values(values[:1])
        producer.send_values(values[1:])
    assert partition.values() == values
    assert [frames[0][1] for frames in batches(node)] == [1000, 1000, 500]


def test_a_batch_ends_at_its_bytes(node: FakeNode, client: Client) -> None:
    [partition] = node.create("lines")
    values = [bytes([n]) * 1000 for n in range(100)]
    with client.producer("lines", batch_bytes="10KiB", linger=NEVER) as producer:
        producer.send_values(values[:50])
        for value in values[50:]:
            producer.send(value)
        producer.send(bytes(50_000))
    assert partition.values() == [*values, bytes(50_000)]
    for [(_, count)] in batches(node):
        assert count <= 10


def test_the_linger_deadline_sends_without_another_call(node: FakeNode, client: Client) -> None:
    [partition] = node.create("lines")
    with client.producer("lines", linger="1ms") as producer:
        producer.send(b"alone")
        node.eventually(lambda: partition.end == 1)


def test_keyless_batches_go_round_and_keyed_messages_go_home(
    node: FakeNode, client: Client
) -> None:
    partitions = node.create("lines", 3)
    with client.producer("lines", batch=4, linger=NEVER) as producer:
        producer.send_values([b"x"] * 12)
    sent = batches(node)
    assert [len(frames) for frames in sent] == [1, 1, 1]
    assert {frames[0][0] for frames in sent} == {0, 1, 2}
    with client.producer("lines", batch=100, linger=NEVER) as producer:
        producer.send_many(Message(f"{n}".encode(), f"k{n}".encode()) for n in range(60))
    for number, partition in enumerate(partitions):
        keyed = [v for v in partition.values() if v != b"x"]
        assert keyed == [b"%d" % n for n in range(60) if partition_of(b"k%d" % n, 3) == number]


def test_a_producer_can_be_bound_to_a_partition(node: FakeNode, client: Client) -> None:
    node.create("lines", 3)
    with client.producer("lines", partition=1) as producer:
        producer.send(b"a", key=b"k")
        producer.send(b"b")
    assert {p for frames in batches(node) for p, _ in frames} == {1}


def test_a_lost_answer_doubles_nothing(node: FakeNode, client: Client) -> None:
    partitions = node.create("lines", 2)
    node.drops_after_storing = 3
    found: list[PublishedBatch] = []
    with client.producer("lines", batch=10, on_published=found.append) as producer:
        producer.send_many(Message(b"%d" % n, b"k%d" % n) for n in range(40))
    stored = sorted(int(v or b"") for partition in partitions for v in partition.values())
    assert stored == list(range(40))
    ids = [published.id for batch in found for published in batch]
    assert [partitions[i.partition].values()[i.offset] for i in ids] == [
        b"%d" % n for n in range(40)
    ]
    assert any(published.duplicate for batch in found for published in batch)


def test_what_could_not_be_sent_is_kept_and_sent_by_the_next_flush(node: FakeNode) -> None:
    [partition] = node.create("lines")
    with Client(node.url, retries=0) as client:
        producer = client.producer("lines", linger=NEVER)
        producer.send(b"a")
        node.refusals.append(Refused(403, "not_allowed"))
        with pytest.raises(NotAllowed):
            producer.flush()
        assert producer.unsent == 1
        producer.send(b"b")
        producer.flush()
        assert producer.unsent == 0
        producer.close()
    assert partition.values() == [b"a", b"b"]


def test_closing_tries_once_more_and_then_says_what_is_wrong(node: FakeNode) -> None:
    with Client(node.url) as client:
        producer = client.producer("missing", linger=NEVER)
        producer.send_values([b"a", b"b"])
        with pytest.raises(TopicNotFound):
            producer.flush()
        with pytest.raises(TopicNotFound):
            producer.close()
        assert producer.unsent == 2
        producer.close()
        with pytest.raises(InvalidInput, match="closed"):
            producer.send(b"c")


def test_closing_sends_again_what_failed_since_the_last_call(node: FakeNode) -> None:
    [partition] = node.create("lines")
    with Client(node.url, retries=0) as client:
        producer = client.producer("lines", linger=0)
        node.refusals.append(Refused(403, "not_allowed"))
        producer.send(b"a")
        eventually(lambda: producer._error)
        assert is_done(producer.close)
    assert partition.values() == [b"a"]


def test_closing_an_asynchronous_producer_sends_again_what_failed(node: FakeNode) -> None:
    [partition] = node.create("lines")

    async def scenario() -> None:
        async with AsyncClient(node.url, retries=0) as q:
            producer = q.producer("lines", linger=0)
            node.refusals.append(Refused(403, "not_allowed"))
            await producer.send(b"a")
            await until(lambda: producer._error)
            async with asyncio.timeout(WAIT_S_MAX):
                await producer.aclose()

    asyncio.run(scenario())
    assert partition.values() == [b"a"]


def test_an_error_inside_of_the_block_is_not_hidden_by_one_of_closing(node: FakeNode) -> None:
    def fail_inside(client: Client) -> None:
        with client.producer("missing") as producer:
            producer.send(b"a")
            raise ZeroDivisionError

    with Client(node.url) as client:
        with pytest.raises(ZeroDivisionError) as raised:
            fail_inside(client)
        assert "said topic_not_found" in raised.value.__notes__[0]


def test_an_error_of_the_callback_is_not_lost(node: FakeNode, client: Client) -> None:
    [partition] = node.create("lines")

    def break_down(batch: PublishedBatch) -> None:
        raise ZeroDivisionError

    producer = client.producer("lines", on_published=break_down, linger=NEVER)
    producer.send(b"a")
    with pytest.raises(ZeroDivisionError):
        producer.flush()
    producer.close()
    assert partition.values() == [b"a"]


def test_a_value_over_the_limit_is_not_taken(node: FakeNode, client: Client) -> None:
    [partition] = node.create("lines")
    with client.producer("lines") as producer:
        with pytest.raises(TooLarge):
            producer.send_values([b"small", bytes(8 * 1024 * 1024 + 1)])
        producer.send(b"small")
    assert partition.values() == [b"small"]


def test_bounds_of_a_batch_are_checked(client: Client) -> None:
    with pytest.raises(InvalidInput, match="1 to 65536 messages"):
        client.producer("lines", batch=0)
    with pytest.raises(InvalidInput, match="bytes"):
        client.producer("lines", batch_bytes="1GiB")


def test_send_waits_while_too_much_is_unsent(node: FakeNode, client: Client) -> None:
    [partition] = node.create("lines")
    node.may_publish.clear()
    producer = client.producer("lines", batch=10, linger=NEVER)
    much = threading.Event()

    def fill() -> None:
        for n in range(1000):
            producer.send(f"{n}")
            if n == 40:
                much.set()

    thread = threading.Thread(target=fill)
    thread.start()
    assert much.wait(60)
    assert 40 < producer.unsent <= 70
    assert thread.is_alive()
    node.may_publish.set()
    thread.join()
    producer.close()
    assert partition.values() == [b"%d" % n for n in range(1000)]


def test_many_threads_share_a_producer(node: FakeNode, client: Client) -> None:
    partitions = node.create("lines", 3)
    with client.producer("lines", batch=7) as producer:
        threads = [
            threading.Thread(target=producer.send_values, args=([b"%d" % t] * 100,))
            for t in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stored = [v for partition in partitions for v in partition.values()]
    assert sorted(stored, key=str) == [b"%d" % t for t in range(8) for _ in range(100)]


def test_the_asynchronous_producer_does_the_same(node: FakeNode) -> None:
    partitions = node.create("lines", 2)

    async def scenario() -> None:
        async with AsyncClient(node.url) as q:
            node.drops_after_storing = 1
            async with q.producer("lines", batch=10, linger="1ms", compress=True) as producer:
                await producer.send(b"linger")
                await asyncio.to_thread(
                    node.eventually, lambda: any(partition.end for partition in partitions)
                )
                await producer.send_values([b"%d" % n for n in range(500)])
                await producer.flush()
                assert producer.unsent == 0
                await producer.send("last", headers=[("h", b"v")])

    asyncio.run(scenario())
    assert sum(partition.end for partition in partitions) == 502


def test_an_asynchronous_producer_reports_and_resumes(node: FakeNode) -> None:
    [partition] = node.create("lines")

    async def scenario() -> None:
        async with AsyncClient(node.url, retries=0) as q:
            producer = q.producer("lines")
            node.drops_after_storing = 1
            await producer.send(b"a")
            with pytest.raises(Unavailable):
                await producer.flush()
            await producer.aclose()

    asyncio.run(scenario())
    assert partition.values() == [b"a"]


def forget_last(partition: FakePartition) -> None:
    """Lose the last batch, as a leader does that only it had."""
    lost = partition.frames.pop().header
    partition.end -= lost.message_count
    _, seen = partition.producers[lost.producer_id]
    del seen[lost.first_sequence]
    partition.producers[lost.producer_id] = (lost.first_sequence, seen)


def test_a_producer_goes_on_where_a_leader_has_lost_its_last_batch(
    node: FakeNode, client: Client
) -> None:
    [partition] = node.create("lines")
    with client.producer("lines", acks="leader", linger=NEVER) as producer:
        for value in ("first", "lost"):
            producer.send(value)
            producer.flush()
        forget_last(partition)
        for value in ("next", "last"):
            producer.send(value)
            producer.flush()
    assert partition.values() == [b"first", b"next", b"last"]


def test_a_publish_goes_on_where_a_leader_has_lost_the_one_before(
    node: FakeNode, client: Client
) -> None:
    [partition] = node.create("lines")
    client.publish_many("lines", [b"first"])
    client.publish("lines", b"lost")
    forget_last(partition)
    assert client.publish("lines", b"next").id.offset == 1
    assert partition.values() == [b"first", b"next"]


def test_a_batch_of_which_a_part_is_refused_for_good_is_stored_once(node: FakeNode) -> None:
    partitions = node.create("lines", 3)
    messages = [Message(b"%d" % number, b"k%d" % number) for number in range(30)]
    with Client(node.url, retries="100ms") as client:
        producer = client.producer("lines", linger=NEVER)
        for _ in range(2):
            producer.send_many(messages)
            producer.flush()
        forget_last(partitions[0])
        producer.send_many(messages)
        with pytest.raises(TimedOut):
            producer.flush()
        producer.close()
    counts = Counter(value for partition in partitions for value in partition.values())
    lost = {message.value for message in messages if partition_of(message.key or b"", 3) == 0}
    assert counts == {m.value: 2 if m.value in lost else 3 for m in messages}
