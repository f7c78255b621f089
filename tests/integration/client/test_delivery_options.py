"""What the client says of a message's delivery, against a real node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from goq.client import AsyncClient, Client
from goq.client.delivery_options import NodeClock
from goq.errors import InvalidInput
from goq.frame.hashes import dedup_hash, dedup_partition_of
from goq.model import Message
from tests.support.node.running_node import RunningNode, running_node

HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def running() -> Iterator[RunningNode]:
    with running_node() as node:
        yield node


@pytest.fixture
def q(running: RunningNode) -> Iterator[Client]:
    with Client(running.url) as client:
        yield client


def test_what_is_said_comes_back_by_every_way_out(q: Client) -> None:
    done = q.publish("all", b"x", priority="high", ttl="1h", tenant="acme", dedup_id="d")
    read = q.read("all", partition=done.id.partition).messages
    for [message] in (read, list(q.read_log("all")), q.receive("all", "g")):
        assert (message.priority, message.tenant) == ("high", "acme")
        assert message.deliver_at is None
        assert message.expires_at is not None
        assert 0 <= message.expires_at - done.timestamp - HOUR_US + 1_000_000 < 2_000_000


def test_a_plain_message_is_in_the_default_lane(q: Client) -> None:
    q.create_topic("named", settings={"priority.lanes": "a,b,c,d,e"})
    q.publish("named", b"x")
    [message] = q.receive("named", "g")
    assert (message.priority, message.tenant) == ("c", None)
    assert (message.deliver_at, message.expires_at) == (None, None)


def test_messages_of_one_batch_keep_what_each_says(q: Client) -> None:
    q.create_topic("mixed", 1)
    with q.producer("mixed", linger="1s") as producer:
        producer.send(b"0")
        producer.send(b"1", priority="low", key="k")
        producer.send(b"2", tenant="t", delay="1h")
        producer.send_values([b"3", b"4"])
        producer.send_many([Message(b"5", lane=0), Message(b"6")])
    found = q.read("mixed", partition=0).messages
    assert [m.value for m in found] == [b"%d" % n for n in range(7)]
    lanes = ["normal", "low", "normal", "normal", "normal", "high", "normal"]
    assert [m.priority for m in found] == lanes
    assert [m.tenant for m in found] == [None, None, "t", None, None, None, None]
    assert [m.deliver_at is not None for m in found] == [n == 2 for n in range(7)]
    assert found[2].deliver_at is not None
    assert found[2].deliver_at - found[2].timestamp >= HOUR_US - 1_000_000


def test_a_dedup_id_stores_once_whoever_sends_it(running: RunningNode, q: Client) -> None:
    first = q.publish("once", b"x", dedup_id="d-1")
    assert first.id.partition == dedup_partition_of(dedup_hash("d-1"), 6)
    with Client(running.url) as other:
        for client in (q, other, q):
            again = client.publish("once", b"y", dedup_id="d-1")
            assert (again.id, again.timestamp, again.duplicate) == (*first[:2], True)
            client.publish("once", b"in between", partition=first.id.partition)
    keyed = q.publish("once", b"x", key="k", dedup_id="d-2")
    assert q.publish("once", b"x", key="k", dedup_id="d-2").id == keyed.id


def test_repetitions_among_many_are_told_one_by_one(q: Client) -> None:
    messages = [Message(b"%d" % n, dedup_id=dedup_hash(f"{n % 7}")) for n in range(20)]
    stored = q.publish_many("many", messages)
    assert [p.duplicate for p in stored] == [n >= 7 for n in range(20)]
    assert [p.id for p in stored] == [stored[n % 7].id for n in range(20)]
    again = q.publish_many("many", [*messages, Message(b"new")])
    assert [p.id for p in again][:20] == [p.id for p in stored]
    assert not again[20].duplicate
    more = q.publish_many("many", [Message(b"x", key=b"k") for _ in range(5)])
    assert not any(p.duplicate for p in more)
    assert len(list(q.read_log("many"))) == 7 + 1 + 5


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"priority": "urgent"}, "priority"),
        ({"delay": "1s", "deliver_at": "+1s"}, "delay"),
        ({"delay": "400d"}, "delay"),
        ({"deliver_at": "+400d"}, "deliver_at"),
        ({"ttl": 0}, "ttl"),
        ({"tenant": ""}, "message.tenant"),
        ({"dedup_id": ""}, "dedup_id"),
    ],
)
def test_a_bad_option_is_named(q: Client, options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        q.publish("bad", b"x", **options)
    assert raised.value.field == field


def test_a_lane_that_was_added_later_is_found(q: Client) -> None:
    q.publish("grows", b"x", priority="low")
    q.alter_topic("grows", settings={"priority.lanes": "high,normal,low,idle"})
    q.publish("grows", b"y", priority="idle")
    found = {m.value: m.priority for m in q.read_log("grows")}
    assert found == {b"x": "low", b"y": "idle"}


def test_a_longer_delay_is_taken_once_the_topic_allows_it(q: Client, running: RunningNode) -> None:
    q.create_topic("waits", settings={"delay.max": "1h"})
    q.publish("waits", b"x", delay="10m")
    with pytest.raises(InvalidInput, match=r"delay\.max"):
        q.publish("waits", b"x", delay="2d")
    with Client(running.url) as admin, q.producer("waits") as producer:
        admin.alter_topic("waits", settings={"delay.max": "10d"})
        assert q.publish("waits", b"y", delay="2d").id
        admin.alter_topic("waits", settings={"delay.max": "20d"})
        producer.send(b"z", delay="15d")
        admin.alter_topic("waits", settings={"delay.max": "30d"})
        producer.send(b"z", delay="25d")


def test_the_async_client_says_the_same(running: RunningNode) -> None:
    async def main() -> None:
        async with AsyncClient(running.url) as q:
            first = await q.publish("aio", b"x", priority=0, dedup_id="d")
            assert (await q.publish("aio", b"x", dedup_id="d")).id == first.id
            async with q.producer("aio") as producer:
                await producer.send(b"y", tenant="t")
            found = [message async for message in q.read_log("aio")]
            assert [(m.priority, m.tenant) for m in found] == [("high", None), ("normal", "t")]

    asyncio.run(main())


def test_delays_are_counted_by_the_nodes_clock() -> None:
    clock = NodeClock()
    ahead_us = 10**15
    clock.note(clock.monotonic_us() + ahead_us, clock.monotonic_us())
    assert abs(clock.now_us() - clock.monotonic_us() - ahead_us) < 1_000_000
    slow_us = clock.monotonic_us() - 10_000_000
    clock.note(clock.monotonic_us(), slow_us)  # too long under way to say anything
    assert abs(clock.now_us() - clock.monotonic_us() - ahead_us) < 1_000_000


@pytest.mark.parametrize("ahead_us", [-3_000_000, 30_000_000])
def test_whether_a_delivery_time_has_passed_is_for_the_node_to_say(
    q: Client, monkeypatch: pytest.MonkeyPatch, ahead_us: int
) -> None:
    monkeypatch.setattr(NodeClock, "now_us", lambda _: time.time_ns() // 1000 + ahead_us)
    topic, now_ms = f"by-the-node{ahead_us}", time.time_ns() // 1_000_000
    q.create_topic(topic, 1)
    for at_ms in (now_ms + 3_600_000, now_ms + 20_000, now_ms - 1_000, 0):
        q.publish(topic, b"%d" % at_ms, deliver_at=at_ms, ttl="1h")
    for message in q.read(topic, partition=0).messages:
        due_us, expires_us = message.deliver_at or 0, message.expires_at
        assert message.value == b"%d" % (due_us // 1000)
        assert expires_us is not None
        assert 0 <= expires_us - max(due_us, message.timestamp) - HOUR_US <= 1000
    assert [m.offset for m in q.receive(topic, "g", max_messages=9)] == [2, 3]


def test_few_messages_of_a_large_frame_come_under_their_own_offsets(q: Client) -> None:
    q.create_topic("picked", 1, {"delivery.backoff.initial": "0s"})
    with q.producer("picked", linger="1s") as producer:
        producer.send_values([b"%d:" % n + bytes(500) for n in range(100)])
    found = q.receive("picked", "g", max_messages=100)
    chosen = (3, 50, 51, 97)
    q.nack("picked", "g", [m.receipt for m in found if m.offset in chosen])
    again = q.receive("picked", "g", wait="5s")
    assert [(m.offset, (m.value or b"").partition(b":")[0]) for m in again] == [
        (n, b"%d" % n) for n in chosen
    ]
    assert q.ack_many(again).done == len(chosen)
