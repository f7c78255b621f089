"""Searches find what a look at every message finds, the newest first, page by page."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from goq import limits
from goq.broker.broker import Broker
from goq.broker.runtime.background import ThreadThrottle
from goq.broker.search.finder import Finder, SearchPage, TopicSearch
from goq.broker.search.partition_search import FoundMessage, MessageQuery, SearchBudget
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.clock import ManualClock
from goq.errors import (
    GoqError,
    InvalidInput,
    PartitionOffline,
    ShuttingDown,
    TooManyRequests,
)
from goq.frame.encoder import Columns, encode_frame
from goq.frame.hashes import dedup_hash, key_hash
from goq.frame.view import FrameView
from goq.model import Message
from tests.support.broker.harness import BrokenDisk, broker_on, run, trim
from tests.support.broker.partition_internals import message_log
from tests.support.effort import first_of
from tests.support.eventually import until
from tests.support.node.node_process import tells_of_load
from tests.support.storage.keys import with_key_hashes

KEYS = [None, b"", b"a", b"b"]
HEADERS = [(), (("h", b"1"),), (("h", b"2"), ("g", b"1")), (("h", b""),)]


async def publish_messages(topic: Topic, partition: int, messages: Iterable[Message]) -> None:
    await topic.publisher.publish_messages([RoutedMessage(partition, m) for m in messages])


def random_message(random: Random) -> Message:
    dedup_id = dedup_hash(f"id-{random.randrange(10**6)}") if random.random() < 0.2 else None
    return Message(
        random.randbytes(10), random.choice(KEYS), random.choice(HEADERS), dedup_id=dedup_id
    )


async def filled(broker: Broker, clock: ManualClock, seed: int) -> tuple[Topic, list[FoundMessage]]:
    """Return a topic of messages, and where each lies."""
    random = Random(seed)
    topic = await broker.topic_admin.create("t", 3)
    for _ in range(60):
        clock.advance_ms(random.randint(0, 20))
        partition = random.randrange(3)
        messages = [random_message(random) for _ in range(random.randint(1, 5))]
        await publish_messages(topic, partition, messages)
        if random.random() < 0.1:
            await topic.partitions[partition].trimmer.roll()
    found = []
    for partition in topic.partitions:
        reading = partition.read(0, messages_max=10**6)
        for view in reading.frames:
            header = view.header
            found += [
                FoundMessage(partition.identity.number, o, header.append_time_us)
                for o in range(header.base_offset, header.end_offset)
            ]
    return topic, found


def message_at(topic: Topic, place: FoundMessage) -> Message:
    (view,) = topic.partitions[place.partition].read(place.offset, messages_max=1).frames
    row = place.offset - view.header.base_offset
    (message,) = view.messages(row, row + 1)
    return message


def is_wanted(message: Message, time_us: int, wanted: MessageQuery) -> bool:
    if not wanted.matches_time(time_us):
        return False
    if wanted.key is not None:
        return message.key == wanted.key
    if wanted.dedup_id is not None:
        return message.dedup_id == wanted.dedup_id
    return wanted.header in message.headers


async def pages(
    finder: Finder, topic: Topic, wanted: MessageQuery, limit: int, pages_max: int = 1000
) -> list[FoundMessage]:
    """Return what all pages together have."""
    found: list[FoundMessage] = []
    cursor = None
    for _ in range(pages_max):
        page = await finder.find(topic, wanted, limit, cursor)
        assert len(page.found) <= limit
        assert_newest_first(page.found)
        found += page.found
        cursor = page.next
        if cursor is None:
            return found
    raise AssertionError("the search does not end")


def assert_newest_first(found: list[FoundMessage]) -> None:
    assert [f.time_us for f in found] == sorted((f.time_us for f in found), reverse=True)
    for number in {f.partition for f in found}:
        offsets = [f.offset for f in found if f.partition == number]
        assert offsets == sorted(offsets, reverse=True)


@pytest.mark.parametrize("seed", first_of(range(6), quick=1))
@pytest.mark.parametrize("budget", [None, 3])
def test_searches_find_what_a_look_at_every_message_finds(
    tmp_path: Path, seed: int, budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if budget is not None:
        monkeypatch.setattr(limits, "SEARCH_CANDIDATES_MAX", budget)
        monkeypatch.setattr(limits, "SEARCH_SCANNED_MESSAGES_MAX", budget)

    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic, places = await filled(broker, clock, seed)
            messages = {place: message_at(topic, place) for place in places}
            some_id = next(m.dedup_id for m in messages.values() if m.dedup_id)
            times = sorted(place.time_us for place in places)
            low_us, high_us = times[len(times) // 4], times[len(times) // 2]
            for wanted in (
                *(MessageQuery(key=key) for key in (b"", b"a", b"c")),
                MessageQuery(key=b"a", from_us=low_us, to_us=high_us),
                MessageQuery(dedup_id=some_id),
                *(MessageQuery(header=("h", value)) for value in (b"1", b"2", b"", b"3")),
                MessageQuery(header=("g", b"1"), from_us=low_us, to_us=high_us),
            ):
                for limit in (1, 4, 1000):
                    found = await pages(broker.finder, topic, wanted, limit)
                    if budget is None:
                        assert_newest_first(found)
                    assert sorted(found) == [
                        p for p in sorted(places) if is_wanted(messages[p], p.time_us, wanted)
                    ]

    run(main())


def test_keys_whose_hashes_are_the_same_are_told_apart(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            hashed = key_hash(b"wanted")
            keys: list[bytes | None] = [b"other", b"wanted", b"third", b"wanted"]
            frame = with_key_hashes(encode_frame(Columns([b""] * 4, keys=keys)), [hashed] * 4)
            await topic.publisher.publish_frames([(0, FrameView.parse(frame))])
            for _ in range(2):
                page = await broker.finder.find(topic, MessageQuery(key=b"wanted"), 10, None)
                assert [found.offset for found in page.found] == [3, 1]
                await topic.partitions[0].trimmer.roll()

    run(main())


def test_dedup_ids_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            ids = [b"the same" + bytes([number] * 8) for number in (1, 2, 3)]
            frame = encode_frame(Columns([b""] * 3, dedup_ids=ids))
            await topic.publisher.publish_frames([(0, FrameView.parse(frame))])
            for _ in range(2):
                page = await broker.finder.find(topic, MessageQuery(dedup_id=ids[1]), 10, None)
                assert [found.offset for found in page.found] == [1]
                await topic.partitions[0].trimmer.roll()

    run(main())


def test_a_page_counts_what_it_searched(tmp_path: Path) -> None:
    async def main() -> SearchPage:
        async with broker_on(tmp_path, partitions=2) as broker:
            topic = await broker.topic_admin.create("t")
            await publish_messages(topic, 1, [Message(b"v", b"k")] * 5)
            return await broker.finder.find(topic, MessageQuery(key=b"x"), 10, None)

    assert run(main()) == ([], None, 5, 2, 0, 0)


def test_a_message_that_cannot_be_read_is_counted_and_not_found(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            for value in (b"first", b"second"):
                await publish_messages(topic, 0, [Message(value * 10, b"k", (("h", b"1"),))])
            wanted = MessageQuery(key=b"k")
            assert len((await broker.finder.find(topic, wanted, 10, None)).found) == 2
            segment = message_log(topic.partitions[0]).active
            data = bytearray(segment.path.read_bytes())
            data[100] ^= 1
            segment.path.write_bytes(data)
            for asked in (wanted, MessageQuery(header=("h", b"1"))):
                page = await broker.finder.find(topic, asked, 10, None)
                assert [found.offset for found in page.found] == [1]
                assert page.unreadable == 1

    run(main())


def test_a_clock_that_was_set_back_hides_no_message(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with broker_on(tmp_path, clock=clock) as broker:
            topic = await broker.topic_admin.create("t")
            times = []
            for step_ms in (0, 1000, -900, 100, -150, 5000):
                clock.advance_ms(step_ms)
                times.append(clock.wall_us())
                await publish_messages(topic, 0, [Message(b"v", b"k")])
            for from_us in times:
                for to_us in times:
                    wanted = MessageQuery(key=b"k", from_us=from_us, to_us=to_us)
                    page = await broker.finder.find(topic, wanted, 10, None)
                    offsets = {o for o, t in enumerate(times) if from_us <= t < to_us}
                    assert {found.offset for found in page.found} == offsets

    run(main())


def test_no_search_pretends_to_know_a_partition_that_is_offline(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            disk.fail("sync", "messages", errno.EIO)
            with pytest.raises(GoqError):
                await publish_messages(topic, 0, [Message(b"v", b"k")])
            with pytest.raises(PartitionOffline, match="partition 0 of t"):
                await broker.finder.find(topic, MessageQuery(key=b"k"), 10, None)
            disk.heal()

    run(main())


def test_a_cursor_that_is_none_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            with pytest.raises(InvalidInput):
                await broker.finder.find(topic, MessageQuery(key=b"k"), 10, "nonsense")

    run(main())


def test_so_many_searches_wait_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEARCHES_WAITING_MAX", 4)

    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await publish_messages(topic, 0, [Message(b"v", b"k")])
            wanted = MessageQuery(key=b"k")
            for _ in range(2):
                disk.hold("messages", operation="read")
                waiting = [
                    asyncio.ensure_future(broker.finder.find(topic, wanted, 1, None))
                    for _ in range(4)
                ]
                await until(disk.holding.is_set)
                try:
                    with pytest.raises(TooManyRequests):
                        async with asyncio.timeout(10):
                            await broker.finder.find(topic, wanted, 1, None)
                finally:
                    disk.release()
                assert [len(page.found) for page in await asyncio.gather(*waiting)] == [1] * 4
            await broker.finder.find(topic, wanted, 1, None)

    run(main())


def test_a_search_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            for _ in range(50):
                await publish_messages(topic, 0, [Message(b"v", b"k", (("h", b"1"),))])
            disk.hold("messages", operation="read")
            search = asyncio.ensure_future(
                broker.finder.find(topic, MessageQuery(header=("h", b"1")), 1, None)
            )
            await until(disk.holding.is_set)
            search.cancel()
            with pytest.raises(asyncio.CancelledError):
                await search
            disk.release()

    run(main())


def keys_of(topic: Topic) -> list[Path]:
    return sorted(message_log(topic.partitions[0]).directory.glob("*.keys"))


def test_the_file_of_a_sealed_segment_is_made_without_a_lookup(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            for _ in range(3):
                await publish_messages(topic, 0, [Message(b"v", b"k")])
                await topic.partitions[0].trimmer.roll()
            await until(lambda: len(keys_of(topic)) == 3)
            page = await broker.finder.find(topic, MessageQuery(key=b"k"), 10, None)
            assert [found.offset for found in page.found] == [2, 1, 0]

    run(main())


def test_a_file_that_cannot_be_made_is_nobodys_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            disk.fail("open", ".keys", errno.ENOSPC)
            await publish_messages(topic, 0, [Message(b"v", b"k")])
            await topic.partitions[0].trimmer.roll()
            await until(lambda: disk.count("open", ".keys") > 0)
            await publish_messages(topic, 0, [Message(b"v", b"k")])
            page = await broker.finder.find(topic, MessageQuery(key=b"k"), 10, None)
            assert [found.offset for found in page.found] == [1, 0]
            disk.heal()

    run(main())
    assert [text for text in caplog.messages if not tells_of_load(text)] == []


def test_a_broker_that_closes_does_not_wait_for_files_to_be_made(tmp_path: Path) -> None:
    async def main() -> None:
        disk = BrokenDisk()
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            for _ in range(5):
                await publish_messages(topic, 0, [Message(b"v", b"k")])
            disk.hold(".keys", operation="open")
            for _ in range(3):
                await topic.partitions[0].trimmer.roll()
                await publish_messages(topic, 0, [Message(b"v", b"k")])
            await until(disk.holding.is_set)
            directory = message_log(topic.partitions[0]).directory
            closing = asyncio.ensure_future(broker.close())
            await until(lambda: broker.finder.is_stopped)
            disk.release()
            await closing
            assert len(list(directory.glob("*.keys"))) < 3

    run(main())


def test_a_topic_that_was_deleted_and_made_again_is_searched_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            for key in (b"first", b"second"):
                topic = await broker.topic_admin.create("t")
                await publish_messages(topic, 0, [Message(b"v", key)])
                for asked in (b"first", b"second"):
                    page = await broker.finder.find(topic, MessageQuery(key=asked), 10, None)
                    assert len(page.found) == (asked == key)
                await broker.topic_admin.delete("t")

    run(main())


def test_a_pace_rests_a_share_of_the_time_and_ends_when_told() -> None:
    now_s, rests = [0.0], list[float]()
    over = threading.Event()
    pace = ThreadThrottle(0.5, over.is_set, clock=lambda: now_s[0], sleep=rests.append)
    now_s[0] = 0.01
    pace()
    now_s[0] = 5.0
    pace()
    assert rests == [0.005, 0.05]
    over.set()
    with pytest.raises(ShuttingDown):
        pace()


def test_a_search_without_partitions_is_done() -> None:
    search = TopicSearch([], 10, SearchBudget(1, 1))
    assert search.run(1)
    assert search.bounds() == {}


def test_a_found_message_is_read_unless_it_or_its_partition_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t", 2)
            for number in range(3):
                await publish_messages(topic, 1, [Message(b"%d" % number)])
                await topic.partitions[1].trimmer.roll()
            found = [FoundMessage(1, offset, 0) for offset in range(4)]
            views = [await broker.finder.read(topic, each) for each in found]
            assert views[3] is None
            read = [(v.header.base_offset, *v.values(0, 1)) for v in views[:3] if v is not None]
            assert read == [(0, b"0"), (1, b"1"), (2, b"2")]
            await trim(topic.partitions[1], 1)
            assert await broker.finder.read(topic, found[0]) is None
            assert await broker.finder.read(topic, found[1]) is not None
            await topic.resign(1, PartitionOffline(""))
            assert await broker.finder.read(topic, found[1]) is None

    run(main())
