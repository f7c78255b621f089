"""Appends from the disk of this node to the answer: in order, once, and with the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from goq.broker.log.pending_appends import (
    Appended,
    PendingAppends,
    WrittenFrame,
    reject,
    resolve,
    wait_for_all,
)
from goq.broker.log.quorum import Quorum
from goq.errors import NotLeader, OutOfOrderSequence, StorageFailed, TimedOut, TooManyRequests
from goq.frame.view import FrameView
from goq.model import Acks
from goq.storage.log.segment import Segment, WriteBatch
from tests.support.broker.harness import run
from tests.support.broker.held_quorum import HeldQuorum
from tests.support.storage.logs import frame_of

TIME_US = 5


class Writer:
    """The writer of a log whose disk takes everything at once."""

    def __init__(self, quorum: Quorum | None, end_offset: int = 0) -> None:
        self.segment = Segment(Path("/data"), end_offset)
        self.committed: list[int] = []
        self.pending = PendingAppends(end_offset, quorum, self._on_commit)

    def _on_commit(self, written: Sequence[WrittenFrame]) -> None:
        self.committed += [each.appended.offset for each in written]

    def write(
        self, *counts: int, acks: Acks = Acks.QUORUM, is_offered: bool = False
    ) -> list[asyncio.Future[Appended]]:
        """Write a batch of frames with so many messages."""
        batch = WriteBatch(self.segment, segment_bytes=1 << 30)
        written = []
        for count in counts:
            view = FrameView.parse(frame_of([b"v"] * count))
            offset = batch.add(view.header, view.body, append_time_us=TIME_US, leader_epoch=1)
            done = asyncio.get_running_loop().create_future()
            written.append(WrittenFrame(view, Appended(offset, TIME_US), done, acks))
        self.segment.end_offset = batch.end_offset
        self.pending.on_written(batch, written, is_offered=is_offered)
        return [each.done for each in written if isinstance(each.done, asyncio.Future)]

    def repeat(self, original: Appended) -> asyncio.Future[Appended]:
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.pending.answer_repetition(original, done)
        return done

    def refuse(self) -> asyncio.Future[Appended]:
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.pending.refuse(done, OutOfOrderSequence("a gap"))
        return done


def answers(futures: Sequence[asyncio.Future[Appended]]) -> list[int | None]:
    """Return the offset that each was answered with, None for those that wait."""
    return [each.result().offset if each.done() else None for each in futures]


def error_of(future: asyncio.Future[Appended]) -> BaseException | None:
    return future.exception() if future.done() else None


@pytest.mark.parametrize("seed", range(8))
def test_each_append_is_answered_when_the_high_watermark_is_past_it(seed: int) -> None:
    async def test() -> None:
        chance, quorum = Random(seed), HeldQuorum()
        writer = Writer(quorum, 3)
        ends: list[int] = []  # of the batch of each frame
        offsets: list[int] = []
        futures: list[asyncio.Future[Appended]] = []
        safe = 3
        for _ in range(30):
            counts = [chance.randrange(1, 4) for _ in range(chance.randrange(1, 3))]
            offset = writer.segment.end_offset
            futures += writer.write(*counts)
            assert quorum.appended_to == writer.segment.end_offset == offset + sum(counts)
            for place in range(len(counts)):
                offsets.append(offset + sum(counts[:place]))
                ends.append(offset + sum(counts))
            told = chance.randrange(quorum.appended_to + 1)
            safe = max(safe, told)
            quorum.reach(told)
            told_offsets = [o for o, end in zip(offsets, ends, strict=True) if end <= safe]
            assert writer.committed == told_offsets
            waiting = len(offsets) - len(told_offsets)
            assert answers(futures) == told_offsets + [None] * waiting
            assert writer.pending.high_watermark == safe
            assert writer.pending.is_quiet == (not waiting)

    run(test())


def test_without_other_nodes_the_disk_is_enough() -> None:
    async def test() -> None:
        writer = Writer(None)
        assert answers(writer.write(2, 1)) == [0, 2]
        assert (writer.committed, writer.pending.high_watermark) == ([0, 2], 3)
        assert writer.pending.replicated_to == 3
        assert writer.pending.is_quiet
        assert not writer.pending.holders(0)
        assert isinstance(error_of(writer.refuse()), OutOfOrderSequence)

    run(test())


def test_the_leader_alone_answers_at_once_and_shows_nothing() -> None:
    async def test() -> None:
        quorum = HeldQuorum()
        writer = Writer(quorum)
        assert answers(writer.write(1, acks=Acks.LEADER)) == [0]
        assert writer.committed == []
        quorum.reach_end()
        assert writer.committed == [0]

    run(test())


def test_a_batch_that_was_not_offered_is_kept_for_other_nodes() -> None:
    async def test() -> None:
        quorum = HeldQuorum()
        quorum.takes_offers = True
        writer = Writer(quorum)
        batch = WriteBatch(writer.segment, segment_bytes=1)
        assert writer.pending.offer(batch)
        quorum.takes_offers = False
        assert not writer.pending.offer(batch)
        assert not Writer(None).pending.offer(batch)
        writer.write(2, is_offered=True)
        writer.write(1)
        assert quorum.kept == [(2, 3)]

    run(test())


def test_bytes_that_wait_for_other_nodes_are_bounded_and_one_batch_is_always_taken() -> None:
    async def test() -> None:
        quorum = HeldQuorum()
        writer = Writer(quorum)
        frame_bytes = len(frame_of([b"v"]))
        writer.pending.check_room(1 << 20, 0)
        for _ in range(2):
            writer.write(1)
            writer.write(1)
            writer.pending.check_room(10, 2 * frame_bytes + 10)
            with pytest.raises(TooManyRequests) as caught:
                writer.pending.check_room(11, 2 * frame_bytes + 10)
            assert caught.value.retry_after_ms
            quorum.reach(writer.segment.end_offset - 1)
            writer.pending.check_room(10, frame_bytes + 10)
            quorum.reach_end()
        quorum.refusal = StorageFailed("no")
        with pytest.raises(StorageFailed):
            writer.pending.check_room(1, 1 << 20)

    run(test())


def test_a_repetition_is_answered_when_all_of_its_originals_are_safe() -> None:
    async def test() -> None:
        quorum = HeldQuorum()
        writer = Writer(quorum)
        writer.write(1)
        writer.write(1)
        writer.write(1)
        first = writer.repeat(Appended(0, TIME_US, True))
        scattered = Appended(0, TIME_US, True, ((0, 0, TIME_US), (1, 1, TIME_US), (2, 0, TIME_US)))
        all_of_it = writer.repeat(scattered)
        assert answers([first, all_of_it]) == [None, None]
        quorum.reach(1)
        assert answers([first, all_of_it]) == [0, None]
        quorum.reach(2)
        assert all_of_it.result() == scattered
        assert answers([writer.repeat(scattered)]) == [0]
        assert answers([writer.repeat(Appended(2, TIME_US, True))]) == [None]

    run(test())


def test_who_waits_for_everything_in_an_empty_log_waits_for_nothing() -> None:
    async def test() -> None:
        writer = Writer(None)
        assert answers([writer.repeat(Appended(-1, 0)), writer.repeat(Appended(0, 0))]) == [
            -1,
            None,
        ]

    run(test())


def test_a_refusal_waits_until_nobody_else_can_lead() -> None:
    async def test() -> None:
        quorum = HeldQuorum()
        quorum.is_sure = False
        writer = Writer(quorum)
        refused = writer.refuse()
        assert not refused.done()
        assert not writer.pending.is_quiet
        quorum.be_sure()
        assert isinstance(error_of(refused), OutOfOrderSequence)
        assert writer.pending.is_quiet

    run(test())


def test_at_the_end_of_a_leadership_only_what_was_not_stored_fails_for_certain() -> None:
    async def test() -> None:
        quorum = HeldQuorum()
        quorum.is_sure = False
        writer = Writer(quorum)
        stored = writer.write(1, 2)
        repeated = writer.repeat(Appended(0, TIME_US, True))
        refused = writer.refuse()
        writer.pending.forget(StorageFailed("led elsewhere"))
        for doubtful in (*stored, repeated):
            assert isinstance(error_of(doubtful), TimedOut)
        assert isinstance(error_of(refused), StorageFailed)
        assert writer.pending.is_quiet
        writer.pending.check_room(1, 1)
        quorum.reach_end()
        assert writer.committed == []

    run(test())


def test_what_other_nodes_do_not_confirm_in_time_is_unknown_and_may_be_committed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        loop, now_s = asyncio.get_running_loop(), [0.0]
        monkeypatch.setattr(loop, "time", lambda: now_s[0])

        async def pass_s(seconds: float) -> None:
            now_s[0] += seconds
            for _ in range(3):
                await asyncio.sleep(0)

        quorum = HeldQuorum()
        quorum.is_sure = False
        writer = Writer(quorum)
        early = [
            *writer.write(1, 1),
            writer.repeat(Appended(0, TIME_US, True)),
            writer.refuse(),
        ]
        await pass_s(6)
        late = [*writer.write(1), writer.repeat(Appended(2, TIME_US, True)), writer.refuse()]
        await pass_s(3.9)
        assert [error_of(each) for each in early + late] == [None] * 7
        await pass_s(0.2)
        assert [type(error_of(each)) for each in early] == [TimedOut] * 3 + [NotLeader]
        assert [error_of(each) for each in late] == [None] * 3
        assert writer.committed == []
        quorum.reach_end()
        assert writer.committed == [0, 1, 2]
        assert answers(late[:2]) == [2, 2]
        await pass_s(60)
        assert isinstance(error_of(late[2]), NotLeader)
        assert writer.pending.is_quiet
        (again,) = writer.write(1)
        await pass_s(10)
        assert isinstance(error_of(again), TimedOut)
        writer.pending.forget(StorageFailed("led elsewhere"))
        await pass_s(60)

    asyncio.run(test())


def test_the_log_is_replicated_as_far_as_every_follower_has_it() -> None:
    class Copied(HeldQuorum):
        def copied_to(self) -> int:
            return 2

        def holders(self, offset: int) -> tuple[str, ...]:
            return ("a", "b") if offset < 2 else ("a",)

    async def test() -> None:
        quorum = Copied()
        writer = Writer(quorum)
        writer.write(4)
        assert writer.pending.replicated_to == 0
        quorum.reach_end()
        assert writer.pending.replicated_to == 2
        assert writer.pending.holders(1) == ("a", "b")
        assert writer.pending.holders(3) == ("a",)

    run(test())


def test_who_gave_up_waiting_is_told_nothing() -> None:
    async def test() -> None:
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        done.cancel()
        resolve(done, Appended(1, TIME_US))
        reject(done, TimedOut("late"))
        assert done.cancelled()

    run(test())


def test_waiting_for_several_appends_waits_for_all_of_them() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        assert await wait_for_all([]) == []
        for count in (1, 3):
            futures = [loop.create_future() for _ in range(count)]
            waiting = asyncio.ensure_future(wait_for_all(futures))
            for number, future in enumerate(futures):
                await asyncio.sleep(0)
                assert not waiting.done()
                future.set_result(Appended(number, TIME_US))
            assert [each.offset for each in await waiting] == list(range(count))
        futures = [loop.create_future() for _ in range(2)]
        futures[0].set_exception(TimedOut("unknown"))
        futures[1].set_result(Appended(1, TIME_US))
        with pytest.raises(TimedOut):
            await wait_for_all(futures)

    run(test())
