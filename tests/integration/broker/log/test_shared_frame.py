"""Single messages that wait for the same write share a frame; each keeps an answer of its own."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from goq import limits
from goq.broker.topic.publisher import PublishedMessage, RoutedMessage
from goq.broker.topic.topic import Topic
from goq.errors import TimedOut
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.view import FrameView
from goq.model import Acks, Message
from tests.support.broker.harness import BrokenDisk, broker_on, frame, run


async def _one(
    topic: Topic, message: Message, client_id: str | None = None, acks: Acks = Acks.QUORUM
) -> PublishedMessage:
    placed = [RoutedMessage(0, message)]
    (stored,) = await topic.publisher.publish_messages(placed, client_id, acks=acks)
    return stored


def _frames(topic: Topic) -> list[FrameView]:
    return list(topic.partitions[0].read(0, messages_max=10_000).frames)


def _values(topic: Topic) -> list[bytes | None]:
    return [v for f in _frames(topic) for v in f.values(0, f.header.message_count)]


def test_all_kinds_of_messages_of_a_turn_share_a_frame_and_are_stored_as_they_were_sent(
    tmp_path: Path,
) -> None:
    sent = [
        Message(b"plain"),
        Message(None, b"key"),
        Message(b"", b"", (("name", b"header"), ("name", b"again"))),
        Message(b"late", deliver_at_ms=-60_000, expires_at_ms=-90_000),
        Message(b"tenant", tenant="t"),
        Message(b"lane", lane=2),
        Message(b"id", dedup_id=b"1" * 16),
    ]

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            stored = await asyncio.gather(*[_one(topic, each) for each in sent])
            assert [each.offset for each in stored] == list(range(len(sent)))
            (view,) = _frames(topic)
            now_ms = -(-stored[0].time_us // 1000)
            default = topic.settings.default_lane
            found = list(view.messages(0, len(sent)))
            for message, one in zip(sent, found, strict=True):
                assert (one.value, one.key, list(one.headers)) == (
                    message.value,
                    message.key,
                    list(message.headers),
                )
                assert one.deliver_at_ms == (message.deliver_at_ms and now_ms + 60_000)
                assert one.expires_at_ms == (message.expires_at_ms and now_ms + 150_000)
                assert (one.tenant, one.dedup_id) == (message.tenant, message.dedup_id)
                assert one.lane == (default if message.lane is None else message.lane)

    run(main())


def test_a_repeated_dedup_id_within_the_frame_is_answered_with_its_original(
    tmp_path: Path,
) -> None:
    one, other = Message(b"a", dedup_id=b"1" * 16), Message(b"b", dedup_id=b"2" * 16)

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            before = await _one(topic, one)
            sent = [Message(b"x"), one, other, Message(b"y"), other]
            stored = await asyncio.gather(*[_one(topic, each) for each in sent])
            assert [each.offset for each in stored] == [1, 0, 2, 3, 2]
            assert [each.is_repetition for each in stored] == [False, True, False, False, True]
            assert stored[1].time_us == before.time_us
            assert _values(topic) == [b"a", b"x", b"b", b"y"]
            again = await asyncio.gather(*[_one(topic, each) for each in (one, other)])
            assert [each.offset for each in again] == [0, 2]
            assert all(each.is_repetition for each in again)

    run(main())


def test_producers_and_acks_are_not_mixed_in_a_frame(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            partition = topic.partitions[0]
            senders = ["shop", "till", None, "shop", None, "till"]
            await asyncio.gather(*[_one(topic, Message(b"m"), each) for each in senders])
            names = [
                partition.producers.name(view.header) or "-"
                for view in _frames(topic)
                for _ in range(view.header.message_count)
            ]
            assert names == ["shop", "shop", "till", "till", "-", "-"]
            before = len(_frames(topic))
            kinds = (Acks.QUORUM, Acks.LEADER, Acks.QUORUM)
            await asyncio.gather(*[_one(topic, Message(b"m"), acks=acks) for acks in kinds])
            counts = [view.header.message_count for view in _frames(topic)[before:]]
            assert counts == [2, 1]

    run(main())


def test_a_message_after_a_frame_stays_behind_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            appender = topic.partitions[0].appender
            await asyncio.gather(
                _one(topic, Message(b"1")),
                _one(topic, Message(b"2")),
                _publish(appender.publish, frame(b"3", b"4")),
                _one(topic, Message(b"5")),
            )
            assert _values(topic) == [b"1", b"2", b"3", b"4", b"5"]

    run(main())


async def _publish(publish: object, view: FrameView) -> None:
    await publish(view)


def test_a_shared_frame_has_at_most_so_many_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = limits.SHARED_FRAME_MESSAGES_MAX
    monkeypatch.setattr(limits, "SHARED_FRAME_BYTES_MAX", limits.MIB)

    async def main(count: int, expected: list[int]) -> None:
        async with broker_on(tmp_path / str(count)) as broker:
            topic = await broker.topic_admin.create("t")
            await asyncio.gather(*[_one(topic, Message(b"")) for _ in range(count)])
            assert [view.header.message_count for view in _frames(topic)] == expected

    run(main(most, [most]))
    run(main(most + 1, [most, 1]))


@pytest.mark.parametrize("size_bytes", [30 * limits.KIB, 40 * limits.KIB])
def test_a_shared_frame_has_at_most_so_many_bytes(tmp_path: Path, size_bytes: int) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            await asyncio.gather(*[_one(topic, Message(bytes(size_bytes))) for _ in range(4)])
            frames = _frames(topic)
            assert [view.header.message_count for view in frames] == (
                [2, 2] if 2 * size_bytes < limits.SHARED_FRAME_BYTES_MAX else [1, 1, 1, 1]
            )
            assert all(view.header.frame_bytes <= limits.SHARED_FRAME_BYTES_MAX for view in frames)

    run(main())


def test_after_a_failed_sync_each_message_of_the_frame_is_in_doubt(tmp_path: Path) -> None:
    disk = BrokenDisk()

    async def main() -> None:
        async with broker_on(tmp_path, disk=disk) as broker:
            topic = await broker.topic_admin.create("t")
            await _one(topic, Message(b"kept"))
            disk.fail("sync", "", errno.EIO)
            results = await asyncio.gather(
                *[_one(topic, Message(b"%d" % n)) for n in range(5)], return_exceptions=True
            )
            disk.heal()
            assert [type(each) for each in results] == [TimedOut] * 5

    run(main())


def test_a_sender_that_gives_up_takes_no_answer_from_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            sending = [asyncio.ensure_future(_one(topic, Message(b"%d" % n))) for n in range(3)]
            await asyncio.sleep(0)
            sending[1].cancel()
            results = await asyncio.gather(*sending, return_exceptions=True)
            offsets = [each.offset for each in (results[0], results[2])]
            assert offsets == [0, 2]
            assert isinstance(results[1], asyncio.CancelledError)

    run(main())


def test_frames_of_one_bare_value_share_a_frame_and_others_are_stored_as_they_are(
    tmp_path: Path,
) -> None:
    numbered = frame(b"numbered", mark=ProducerMark(9, 1, 0))
    keyed = FrameView.parse(encode_frame(Columns([b"keyed"], [b"k"])))

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            topic = await broker.topic_admin.create("t")
            views = [frame(b"1"), frame(b"2"), numbered, keyed, frame(b"3"), frame(b"4", b"5")]
            stored = await asyncio.gather(
                *[topic.publisher.publish_frames([(0, view)]) for view in views]
            )
            assert [one.offset for (one,) in stored] == list(range(6))
            assert [one.message_count for (one,) in stored] == [1, 1, 1, 1, 1, 2]
            assert [view.header.message_count for view in _frames(topic)] == [2, 1, 1, 1, 2]
            (again,) = await topic.publisher.publish_frames([(0, numbered)])
            assert (again.duplicate, again.offset) == (True, 2)

    run(main())
