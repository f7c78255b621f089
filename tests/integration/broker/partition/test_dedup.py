"""Dedup ids end to end in a partition: what is left out, what is answered, what a restart keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from goq import limits
from goq.broker.topic.publisher import ANY_PARTITION, PublishedFrame, RoutedMessage
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.errors import InvalidInput, OutOfOrderSequence, ProducerFenced, StorageFull
from goq.frame.encoder import NO_DEDUP_ID, Columns, ProducerMark, encode_frame
from goq.frame.hashes import dedup_hash
from goq.frame.view import FrameView
from goq.model import Message
from tests.support.broker.harness import BrokenDisk, MemoryMetadata, broker_on, run
from tests.support.eventually import until


@pytest.fixture(autouse=True, params=["on the event loop", "in a thread"])
def _admitted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each frame admitted there: a thread admits those with many dedup ids."""
    if request.param == "in a thread":
        monkeypatch.setattr(limits, "DEDUP_IDS_ADMITTED_AT_ONCE", 0)


def dedup_frame(
    text: str, *, mark: ProducerMark | None = None, compress: bool = False
) -> FrameView:
    """A frame of a message a letter: its value, and its dedup id unless it is a dot."""
    columns = Columns(
        [b"%d" % n for n in range(len(text))],
        keys=[b"k"] * len(text),
        dedup_ids=[NO_DEDUP_ID if c == "." else dedup_hash(c) for c in text],
        tenants=[c if c == "a" else None for c in text],
    )
    producer = mark or ProducerMark(0, 0, 0)
    return FrameView.parse(encode_frame(columns, producer=producer, compress=compress))


async def send(topic: Topic, text: str, first: int | None = None, epoch: int = 1) -> PublishedFrame:
    mark = None if first is None else ProducerMark(9, epoch, first)
    (stored,) = await topic.publisher.publish_frames([(0, dedup_frame(text, mark=mark))])
    return stored


def left_out(stored: PublishedFrame) -> list[tuple[int, int]]:
    return [(row, offset) for row, offset, _ in stored.left_out]


def stored_ids(topic: Topic) -> list[bytes | None]:
    partition = topic.partitions[0]
    frames = partition.read(0, messages_max=1000).frames
    return [m.dedup_id for f in frames for m in f.messages(0, f.header.message_count)]


def test_messages_that_are_there_are_left_out_and_their_originals_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            assert left_out(await send(topic, "ab.")) == []
            again = await send(topic, ".bc.ca")
            assert (again.offset, again.message_count, again.duplicate) == (3, 6, False)
            assert left_out(again) == [(1, 1), (4, 4), (5, 0)]
            assert stored_ids(topic) == [dedup_hash(c) if c != "." else None for c in "ab..c."]
            (frame,) = topic.partitions[0].read(3, messages_max=10).frames
            kept = list(frame.messages(0, 3))
            assert [m.value for m in kept] == [b"0", b"2", b"3"]
            assert [m.key for m in kept] == [b"k"] * 3
            none = await send(topic, "abc")
            assert left_out(none) == [(0, 0), (1, 1), (2, 4)]
            assert topic.partitions[0].end_offset == 6

    run(main())


def test_an_id_that_is_twice_in_a_frame_of_new_ids_is_stored_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            assert left_out(await send(topic, "aba.b")) == [(2, 0), (4, 1)]
            assert stored_ids(topic) == [dedup_hash("a"), dedup_hash("b"), None]

    run(main())


def test_a_compressed_frame_is_made_smaller_and_stays_compressed(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            text = "".join(chr(n) for n in range(200, 600))
            view = dedup_frame(text[:1], compress=True)
            await topic.publisher.publish_frames([(0, view)])
            await topic.publisher.publish_frames([(0, dedup_frame(text, compress=True))])
            assert stored_ids(topic) == [dedup_hash(c) for c in text]

    run(main())


def test_producers_numbers_count_what_was_left_out_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t")
            await send(topic, "ab", 0)
            first = await send(topic, "bxa.x", 2)
            assert left_out(first) == [(0, 1), (2, 0), (4, 2)]
            assert (first.offset, first.duplicate) == (2, False)
            for first_sequence in (2 + 2, 2 + 4, 2 + 6):
                with pytest.raises(OutOfOrderSequence):
                    await send(topic, "q", first_sequence)
            again = await send(topic, "bxa.x", 2)
            assert again.duplicate
            assert (again.offset, again.left_out) == (2, first.left_out)
        for _ in range(2):
            async with broker_on(tmp_path, metadata=metadata) as broker:
                topic = broker.topic("t")
                again = await send(topic, "bxa.x", 2)
                assert again.duplicate
                assert (again.offset, again.left_out) == (2, first.left_out)
                with pytest.raises(OutOfOrderSequence):
                    await send(topic, "q", 8)
                assert topic.partitions[0].end_offset == 4
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = broker.topic("t")
            assert not (await send(topic, "q", 7)).duplicate
            assert len(stored_ids(topic)) == 5

    run(main())


def test_a_frame_of_nothing_but_repetitions_uses_up_no_numbers(tmp_path: Path) -> None:
    async def main() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t")
            await send(topic, "ab", 0)
            for _ in range(2):
                none = await send(topic, "ba", 2)
                assert (left_out(none), none.duplicate) == ([(0, 1), (1, 0)], False)
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = broker.topic("t")
            assert left_out(await send(topic, "c", 2)) == []
            assert len(stored_ids(topic)) == 3

    run(main())


def test_a_zombie_producer_is_refused_before_its_ids_are_looked_at(tmp_path: Path) -> None:
    async def main() -> None:
        metadata = MemoryMetadata()
        async with broker_on(tmp_path, metadata=metadata) as broker:
            topic = await broker.topic_admin.create("t")
            await send(topic, "a", 0, epoch=1)
            await send(topic, "b", 0, epoch=2)
            with pytest.raises(ProducerFenced):
                await send(topic, "a", 0, epoch=1)
        async with broker_on(tmp_path, metadata=metadata) as broker:
            with pytest.raises(ProducerFenced):
                await send(broker.topic("t"), "new", 1, epoch=1)

    run(main())


def test_the_window_begins_with_the_originals_append_time_and_ends_exactly(tmp_path: Path) -> None:
    async def main() -> None:
        clock, metadata = ManualClock(), MemoryMetadata()
        async with broker_on(
            tmp_path, clock=clock, metadata=metadata, dedup__window="1m"
        ) as broker:
            topic = await broker.topic_admin.create("t")
            first = await send(topic, "a")
            clock.now_us += 59_999_999
            assert left_out(await send(topic, "a")) == [(0, 0)]
        async with broker_on(tmp_path, clock=clock, metadata=metadata) as broker:
            topic = broker.topic("t")
            again = await send(topic, "a")
            assert again.left_out == [(0, 0, first.time_us)]
            clock.now_us += 1
            assert left_out(await send(topic, "a")) == []
            assert left_out(await send(topic, "a")) == [(0, 1)]
        async with broker_on(tmp_path, clock=clock, metadata=metadata) as broker:
            topic = broker.topic("t")
            assert left_out(await send(topic, "a")) == [(0, 1)]
            clock.now_us -= 3_600_000_000
            assert left_out(await send(topic, "a")) == [(0, 1)]

    run(main())


def test_without_a_window_ids_are_stored_and_mean_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path, dedup__window="none") as broker:
            topic = await broker.topic_admin.create("t")
            for _ in range(2):
                assert left_out(await send(topic, "aa")) == []
            assert len(stored_ids(topic)) == 4
            await broker.topic_admin.alter("t", {"dedup.window": "1h"})
            assert left_out(await send(topic, "a")) == []
            assert left_out(await send(topic, "a")) == [(0, 4)]

    run(main())


def test_an_id_that_is_being_written_is_decided_when_that_is_durable(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            disk.hold("messages")
            tasks = [asyncio.create_task(send(topic, text)) for text in ("ab", "xb", "c")]
            await until(disk.holding.is_set)
            late = asyncio.create_task(send(topic, "bz"))
            await asyncio.sleep(0)
            assert not any(task.done() for task in (*tasks, late))
            disk.release()
            first, second, third = await asyncio.gather(*tasks)
            assert [left_out(s) for s in (first, second, third)] == [[], [(1, 1)], []]
            assert left_out(await late) == [(0, 1)]
            assert sorted(filter(None, stored_ids(topic))) == sorted(map(dedup_hash, "abxcz"))

    run(main())


def test_ids_of_a_write_that_failed_are_not_remembered(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await send(topic, "a")
            disk.fail("append", "messages")
            with pytest.raises(StorageFull):
                await send(topic, "abb")
            disk.heal()
            assert left_out(await send(topic, "abb")) == [(0, 0), (2, 1)]

    run(main())


def test_messages_without_a_key_meet_their_original_whatever_came_between(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path, partitions=5) as broker:
            topic = await broker.topic_admin.create("t")
            placed = [
                RoutedMessage(None, Message(b"v", dedup_id=dedup_hash(f"id-{n}")))
                for n in range(50)
            ]
            first = await topic.publisher.publish_messages(placed)
            await topic.publisher.publish_messages(
                [RoutedMessage(None, Message(b"x" * 100_000))] * 3
            )
            singly = [(await topic.publisher.publish_messages([p]))[0] for p in placed[:9]]
            again = await topic.publisher.publish_messages(placed)
            assert {s.partition for s in first} == set(range(5))
            assert not any(s.is_repetition for s in first)
            assert all(s.is_repetition for s in again + singly)
            places = [(s.partition, s.offset, s.time_us) for s in first]
            assert [(s.partition, s.offset, s.time_us) for s in again] == places
            with pytest.raises(InvalidInput):
                await topic.publisher.publish_frames([(ANY_PARTITION, dedup_frame("a"))])

    run(main())


def test_frames_with_many_ids_that_come_together_name_the_first_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COMMIT_BATCH_DEDUP_IDS_MAX", 5)

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            sends = [send(topic, text) for text in ("abc", "cd", "...", "dae", "abc", "f")]
            stored = await asyncio.gather(*sends)
            assert [(one.offset, left_out(one)) for one in stored] == [
                (0, []),
                (3, [(0, 2)]),
                (4, []),
                (7, [(0, 3), (1, 0)]),
                (0, [(0, 0), (1, 1), (2, 2)]),
                (8, []),
            ]
            assert stored_ids(topic) == [dedup_hash(c) if c != "." else None for c in "abcd...ef"]

    run(main())


def test_a_window_that_is_switched_off_counts_from_the_next_frame_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await send(topic, "ab")
            await broker.topic_admin.alter("t", {"dedup.window": "none"})
            assert left_out(await send(topic, "ab")) == []

    run(main())


def test_a_clock_that_is_set_ahead_and_right_again_forgets_no_id(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            await send(topic, "a")
            day_ms = 86_400_000  # the window
            for step_ms in (400 * day_ms, -400 * day_ms, -5 * day_ms, 5 * day_ms):
                clock.jump_ms(step_ms)
                assert left_out(await send(topic, "a")) == [(0, 0)]
            clock.advance_ms(day_ms)
            assert left_out(await send(topic, "a")) == []

    run(main())
