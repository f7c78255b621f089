"""Messages that are queued at once, with a waiter of the caller, and where that takes more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from goq import limits
from goq.broker.log.pending_appends import Appended
from goq.broker.topic.publisher import ANY_PARTITION, RoutedMessage, mark_of
from goq.broker.topic.topic import Topic
from goq.config.topic import TopicSettings
from goq.errors import NotLeader, PartitionOffline, TooLarge, TopicReadOnly
from goq.frame.encoder import NO_PRODUCER, Columns, ProducerMark, encode_frame
from goq.frame.view import FrameView
from goq.model import Acks, Message
from tests.support.broker.harness import (
    broker_on,
    frame,
    leased,
    options,
    quick_broker_on,
    quiet,
    run,
)
from tests.support.broker.partition_internals import message_log, state_of

NAMED = mark_of("me")
PARTITION, SEQUENCED = 1, ProducerMark(7, 1, 0)


class _Case:
    """A topic of two partitions, and what is queued in it at once."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

    def message(self, value: bytes, client_id: str | None = None, lane: int | None = None) -> bool:
        """Queue a message; return whether that was possible at once."""
        producer = NO_PRODUCER if client_id is None else mark_of(client_id)
        self.done = asyncio.get_running_loop().create_future()
        placed = RoutedMessage(PARTITION, Message(value, lane=lane))
        publisher = self.topic.publisher
        number = publisher.publish_at_once(placed, producer, client_id, Acks.QUORUM, self.done)
        assert number in (None, PARTITION)
        return number is not None

    def frame(self, view: FrameView, client_id: str | None = None) -> bool:
        """Queue a frame; return whether that was possible at once."""
        self.done = asyncio.get_running_loop().create_future()
        publisher = self.topic.publisher
        placed = (PARTITION, view)
        number = publisher.publish_frame_at_once(placed, client_id, Acks.QUORUM, self.done)
        assert number in (None, PARTITION)
        return number is not None

    async def offset(self) -> int:
        """Return where the last one was stored."""
        return (await self.done).offset

    def producers(self) -> list[int]:
        """Return the producers of the stored frames, in their order."""
        log = message_log(self.topic.partitions[PARTITION])
        return [view.header.producer_id for view in log.reader.read(0, log.end_offset).frames]


def test_a_message_is_queued_at_once_and_its_waiter_gets_its_position(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            case = _Case(await broker.topic_admin.create("t", 2))
            for number, value in enumerate((b"a", b"b")):
                assert case.message(value)
                assert await case.offset() == number
            placed = RoutedMessage(None, Message(b"c", b"key"))
            publisher = case.topic.publisher
            answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            number = publisher.publish_at_once(placed, NO_PRODUCER, None, Acks.QUORUM, answer)
            await answer
            assert number == (await publisher.publish_messages([placed]))[0].partition
            found = await case.topic.receiver.receive("g", options())
            assert sorted(value for _, _, value in leased(found)) == [b"a", b"b", b"c", b"c"]
            assert case.producers()[:2] == [0, 0]

    run(main())


def test_the_first_message_under_a_name_takes_more_and_later_ones_are_queued_at_once(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            case = _Case(await broker.topic_admin.create("t", 2))
            partition = case.topic.partitions[PARTITION]
            two = frame(b"a", b"b")
            assert not case.message(b"v", "me")
            assert not case.frame(two, "me")
            assert partition.end_offset == 0
            await case.topic.publisher.publish_frames([(PARTITION, two)], "me")
            await quiet(partition)
            assert state_of(partition).producer_names == {NAMED.producer_id: "me"}
            assert case.message(b"v", "me")
            assert await case.offset() == 2
            assert case.frame(two, "me")
            assert await case.offset() == 3
            assert case.frame(frame(b"one value"), "me")
            assert await case.offset() == 5
            assert case.producers() == [NAMED.producer_id] * 4
            assert not case.message(b"v", "other")

    run(main())


def test_a_frame_is_queued_at_once_and_one_that_was_stored_before_is_not_stored_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            case = _Case(await broker.topic_admin.create("t", 2))
            assert case.frame(frame(b"a", b"b"))
            assert await case.offset() == 0
            for _ in range(2):
                assert case.frame(frame(b"once", mark=SEQUENCED))
                assert await case.offset() == 2
            assert (await case.done).duplicate
            keyless = (ANY_PARTITION, frame(b"c", b"d"))
            answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
            publisher = case.topic.publisher
            assert publisher.publish_frame_at_once(keyless, None, Acks.QUORUM, answer) in (0, 1)
            await answer
            assert case.producers()[:2] == [0, SEQUENCED.producer_id]

    run(main())


def test_a_value_that_is_queued_as_a_frame_has_the_lane_of_the_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            case = _Case(await broker.topic_admin.create("t", 2))
            urgent = FrameView.parse(encode_frame(Columns([b"urgent"], lanes=[0])))
            for queued in (case.frame(frame(b"plain")), case.message(b"low", lane=3)):
                assert queued
                await case.done
            assert case.frame(urgent)
            await case.done
            found = await case.topic.receiver.receive("g", options())
            assert [value for _, _, value in leased(found)] == [b"urgent", b"plain", b"low"]
            assert 0 < TopicSettings().default_lane < 3

    run(main())


def test_what_cannot_be_accepted_is_refused_and_what_is_elsewhere_takes_more(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            case = _Case(await broker.topic_admin.create("t", 2))
            partition = case.topic.partitions[PARTITION]
            both: list[Callable[[], object]] = [
                lambda: case.message(b"v"),
                lambda: case.frame(frame(b"a", b"b")),
            ]
            publisher = case.topic.publisher

            def anywhere() -> list[int | None]:
                """Queue a message and a frame in no partition of their own."""
                message, keyless = Message(b"v", b"key"), (ANY_PARTITION, frame(b"v"))
                placed = RoutedMessage(None, message)
                done = case.done
                return [
                    publisher.publish_at_once(placed, NO_PRODUCER, None, Acks.QUORUM, done),
                    publisher.publish_frame_at_once(keyless, None, Acks.QUORUM, done),
                ]

            publisher.refusal = TopicReadOnly("kept as it is")
            for queue in (*both, anywhere):
                with pytest.raises(TopicReadOnly):
                    queue()
            publisher.refusal = None
            partition.availability.take_offline("is damaged", retry_after_ms=1000)
            for queue in both:
                with pytest.raises(PartitionOffline):
                    queue()
            assert partition.end_offset == 0
            for number in (0, 1):
                await case.topic.resign(number, NotLeader("another node leads"))
            assert anywhere() == [None, None]

    run(main())


def test_a_request_with_a_frame_too_large_stores_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FRAME_BYTES_MAX", 1000)

    async def main() -> None:
        async with quick_broker_on(tmp_path, partitions=2) as broker:
            topic = await broker.topic_admin.create("t")
            placed = [RoutedMessage(0, Message(b"a")), RoutedMessage(1, Message(b"b" * 1000))]
            with pytest.raises(TooLarge):
                await topic.publisher.publish_messages(placed)
            assert [p.end_offset for p in topic.partitions] == [0, 0]
            assert not topic.partitions[0].appender.commit._busy

    run(main())
