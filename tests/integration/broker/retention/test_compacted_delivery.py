"""What groups get of a compacted topic, and what producers are told of what is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from goq.broker.topic.publisher import PublishedMessage, RoutedMessage
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.config.topic import Cleanup
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.hashes import dedup_hash
from goq.frame.view import FrameView
from goq.model import Message
from tests.support.broker.compacted_topics import (
    COMPACT,
    by_hand,
    compacted,
    got,
    put,
    seal,
    served,
)
from tests.support.broker.harness import MemoryMetadata, ack, broker_on, leased, nack, options, run
from tests.support.broker.partition_internals import message_log, state_of
from tests.support.eventually import until


def test_what_was_leased_may_be_settled_although_it_is_gone(tmp_path: Path) -> None:
    async def work() -> None:
        async with by_hand(tmp_path, delivery__ordering="none", **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
            held = await topic.receiver.receive("g", options(1))
            given = await topic.receiver.receive("g", options(1))
            assert [o for o, _, _ in leased([*held, *given])] == [0, 1]
            await put(topic, (b"a", b"2"), (b"b", b"2"))
            await seal(topic)
            assert await compacted(broker) == 2
            assert await ack(topic, "g", held) == 1
            assert await nack(topic, "g", given) == 1
            assert await got(topic, "g") == [(2, b"1"), (3, b"2"), (4, b"2")]
            assert not len(state_of(topic.partitions[0]).group("g").retries)
            assert state_of(topic.partitions[0]).group("g").taken.floor == 5

    run(work())


def test_a_delayed_message_that_is_gone_is_neither_delivered_nor_waited_for(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        clock, metadata = ManualClock(), MemoryMetadata()
        due_ms = clock.wall_ms() + 10_000
        async with by_hand(tmp_path, clock=clock, metadata=metadata, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"late"), (b"b", b"late"), deliver_at_ms=due_ms)
            await put(topic, (b"a", b"now"))
            await seal(topic)
            assert await compacted(broker) == 1
            assert await got(topic, "g") == [(2, b"now")]
        async with by_hand(tmp_path, clock=clock, metadata=metadata, **COMPACT) as broker:
            topic = broker.topic("t")
            assert topic.partitions[0].delayed_count == 1
            assert await got(topic, "g") == []
            clock.advance_ms(10_000)
            topic.partitions[0]._timers._on_time()
            assert await got(topic, "g") == [(1, b"late")]
            assert state_of(topic.partitions[0]).group("g").taken.floor == 3

    run(work())


def test_a_repeated_batch_is_known_although_all_of_it_is_gone(tmp_path: Path) -> None:
    async def work() -> None:
        metadata = MemoryMetadata()

        def batch(sequence: int) -> FrameView:
            mark = ProducerMark(7, 1, sequence)
            return FrameView.parse(encode_frame(Columns([b"v"], [b"k"]), producer=mark))

        async with by_hand(tmp_path, metadata=metadata, **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            for sequence in range(20):
                await topic.partitions[0].appender.publish(batch(sequence))
            await put(topic, (b"k", b"last"))
            await seal(topic)
            assert await compacted(broker) == 20
            assert (await topic.partitions[0].appender.publish(batch(19))).duplicate
        for path in (tmp_path / "topics" / "t" / "0" / "events").iterdir():
            path.unlink()  # so that producers are learned from the frames
        async with by_hand(tmp_path, metadata=metadata, **COMPACT) as broker:
            partition = broker.topic("t").partitions[0]
            again = await partition.appender.publish(batch(19))
            assert (again.offset, again.duplicate) == (19, True)
            assert (await partition.appender.publish(batch(20))).offset == 21

    run(work())


def test_a_dedup_id_is_known_for_its_window_although_its_message_is_gone(tmp_path: Path) -> None:
    async def work() -> None:
        clock, metadata = ManualClock(), MemoryMetadata()
        given = {**COMPACT, "dedup__window": "2h"}
        first = Message(b"1", b"a", dedup_id=dedup_hash("once"))

        async def publish_it(topic: Topic) -> PublishedMessage:
            (stored,) = await topic.publisher.publish_messages([RoutedMessage(0, first)])
            return stored

        async with by_hand(tmp_path, clock=clock, metadata=metadata, **given) as broker:
            topic = await broker.topic_admin.create("t")
            await publish_it(topic)
            await put(topic, (b"a", b"2"))
            await seal(topic)
            assert await compacted(broker) == 1
        clock.advance_ms(2 * 3_600_000 - 1)
        async with by_hand(tmp_path, clock=clock, metadata=metadata, **given) as broker:
            stored = await publish_it(broker.topic("t"))
            assert (stored.offset, stored.is_repetition) == (0, True)
            clock.advance_ms(1)
            stored = await publish_it(broker.topic("t"))
            assert (stored.offset, stored.is_repetition) == (2, False)

    run(work())


def test_readers_and_consumers_go_on_while_segments_are_exchanged(tmp_path: Path) -> None:
    async def work() -> None:
        async with broker_on(tmp_path, delivery__ordering="none", **COMPACT) as broker:
            topic = await broker.topic_admin.create("t")
            log = message_log(topic.partitions[0])
            newest: dict[bytes, int] = {}
            is_over = False

            async def produce() -> None:
                nonlocal is_over
                for number in range(120):
                    pairs = [(b"%d" % (n % 7), b"%d" % number) for n in range(4)]
                    offsets = await put(topic, *pairs)
                    newest.update((pair[0], o) for pair, o in zip(pairs, offsets, strict=True))
                    if number % 10 == 9:
                        await seal(topic)
                is_over = True

            async def consume() -> list[int]:
                found = []
                while True:
                    was_over = is_over
                    some = [offset for offset, _ in await got(topic, "g", 5)]
                    found += some
                    if was_over and not some:
                        return found
                    await asyncio.sleep(0)

            async def read() -> int:
                rounds = 0
                while not is_over:
                    offsets = await asyncio.to_thread(lambda: list(served(topic)))
                    assert offsets == sorted(set(offsets))
                    rounds += 1
                return rounds

            _, found, rounds = await asyncio.gather(produce(), consume(), read())
            assert found == sorted(set(found))
            assert set(newest.values()) <= set(found)
            assert rounds > 1
            await until(lambda: any(s.generation for s in log.segments))
            assert state_of(topic.partitions[0]).group("g").taken.floor == log.end_offset

    run(work())


def test_what_is_given_up_after_it_has_gone_says_so_in_the_dead_letters(tmp_path: Path) -> None:
    async def work() -> None:
        given = {**COMPACT, "delivery__max_attempts": 1}
        async with by_hand(tmp_path, **given) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"))
            held = await topic.receiver.receive("g", options(1))
            await put(topic, (b"a", b"2"))
            await seal(topic)
            assert await compacted(broker) == 1
            topic.partitions[0].leases._frames.clear()
            await nack(topic, "g", held)
            await until(lambda: "t.dlq" in broker.topics)
            dead = broker.topic("t.dlq")
            await until(lambda: dead.partitions[0].end_offset == 1)
            (view,) = dead.partitions[0].message_reader.read(0, 1).frames
            (message,) = view.messages(0, 1)
            assert (message.key, message.value) == (None, b"")
            assert b"compacted away" in [value for _, value in message.headers]
            assert dead.settings.cleanup is Cleanup.DELETE

    run(work())


@pytest.mark.parametrize("ordering", ["key", "none", "partition"])
def test_retries_and_what_is_held_back_are_passed_over_when_they_are_gone(
    tmp_path: Path, ordering: str
) -> None:
    async def work() -> None:
        clock = ManualClock()
        given = {**COMPACT, "clock": clock, "delivery__ordering": ordering}
        async with by_hand(tmp_path, **given) as broker:
            topic = await broker.topic_admin.create("t")
            await put(topic, (b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"a", b"3"))
            first = await topic.receiver.receive("g", options(1))
            await topic.receiver.receive("other", options(2))
            await nack(topic, "g", first, delay_ms=1000)
            if ordering == "key":  # which puts the next of the key behind it
                assert [o for o, _ in await got(topic, "g")] == [2]
            await put(topic, (b"b", b"2"), (b"a", b"4"))
            await seal(topic)
            assert await compacted(broker) == 4
            topic.partitions[0].leases._frames.clear()
            clock.advance_ms(1000)
            topic.partitions[0]._timers._on_time()
            assert [o for o, _ in await got(topic, "g")] == [4, 5]
            group = state_of(topic.partitions[0]).group("g")
            assert (group.taken.floor, len(group.retries), group.locks.held_count) == (6, 0, 0)

    run(work())
