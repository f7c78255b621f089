"""What a follower stores of the pushes of a leader's node, and what ends their session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from goq.broker.partition.loader import PartitionLogs
from goq.cluster.replication.follower import FollowerReplica
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import LogUpdate, PartitionKey, PartitionUpdate
from goq.cluster.replication.push.protocol import Push, PushHead, encode_stored
from goq.cluster.replication.push.receiver import PushReceiver
from goq.errors import InvalidFrame
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from tests.support.storage.disk import SimulatedDisk

KEY, OTHER, THIRD = PartitionKey("t", 1, 0), PartitionKey("u", 2, 0), PartitionKey("u", 2, 1)
SESSION = 7


def frame(offset: int, removed: list[int] | None = None) -> bytes:
    view = FrameView.parse(encode_frame(Columns([b"x", b"y"]), removed=removed))
    header = view.header._replace(base_offset=offset, append_time_us=1, leader_epoch=3)
    return header.pack() + view.body


class _Inline:
    """An executor that works at once."""

    def submit(self, work: Callable[[], None]) -> None:
        work()


class Receiver:
    """A receiver of one partition, whose writes begin when the test says so."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(Random(1))
        messages, events = (Log.open(Path("/data") / name, self.disk) for name in ("m", "e"))
        self.follower = FollowerReplica(KEY, 3, PartitionLogs(messages, events), Log.open)
        self.writes: list[Any] = []
        self.sent: list[bytes] = []
        self.mismatches: list[str] = []
        self.failures: list[Exception] = []
        self.pushed = 0
        self.recorded: list[int] = []
        self.takes_others = True
        parts: tuple[Any, ...] = (self, _Inline(), self)
        self.pushes = PushReceiver({KEY: self.follower}, *parts)
        stream: Any = self
        self.pushes.attach(SESSION, stream)

    def follow(self, key: PartitionKey) -> FollowerReplica:
        """Follow another partition, too."""
        folder = Path("/other") / str(key.number)
        logs = PartitionLogs(*(Log.open(folder / name, self.disk) for name in ("m", "e")))
        followers: Any = self.pushes._followers
        followers[key] = FollowerReplica(key, 3, logs, Log.open)
        return followers[key]

    def join(self, write: Any) -> None:
        self.writes.append(write)

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def on_pushed(self, _follower: FollowerReplica) -> None:
        self.pushed += 1

    def on_mismatch(self, reason: str) -> None:
        self.mismatches.append(reason)

    def on_write_failure(self, _key: PartitionKey, error: Exception) -> None:
        self.failures.append(error)

    async def record_sealed(self, follower: FollowerReplica) -> None:
        self.recorded += [each.segment.base_offset for each in follower.sealed_segments]
        follower.sealed_segments.clear()

    async def turn(self) -> None:
        """Do all that waits for the commit turn."""
        writes, self.writes = self.writes, []
        for write in writes:
            write.start()
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def ends(self) -> LogOffsets:
        return self.follower.position.ends

    def push(
        self,
        number: int,
        frames: list[bytes],
        *,
        session: int = SESSION,
        epoch: int = 3,
        key: PartitionKey = KEY,
        base: int = 0,
        start: int = 0,
        safe: int = 0,
        is_event: bool = False,
        **changes: Any,
    ) -> None:
        joined = b"".join(frames)
        update = LogUpdate(base, start, len(joined), **changes)
        logs = (None, update) if is_event else (update, None)
        updates = [PartitionUpdate(key, epoch, LogOffsets(safe, 0), *logs)]
        head = PushHead(session, number, 0, updates, self.takes_others)
        self.pushes.receive(Push(head, memoryview(joined)))


Steps = Callable[[Receiver], Coroutine[Any, Any, None]]


def run(steps: Steps) -> Receiver:
    async def begin() -> Receiver:
        receiver = Receiver()
        await steps(receiver)
        return receiver

    return asyncio.run(begin())


def test_what_has_arrived_is_stored_and_reported_together() -> None:
    async def steps(at: Receiver) -> None:
        at.push(1, [frame(0)], safe=1)
        at.push(2, [frame(2), frame(4)], safe=5)
        at.push(3, [frame(0)], is_event=True)
        assert at.ends == LogOffsets(0, 0)
        await at.turn()
        assert at.sent == [encode_stored(SESSION, 1)]
        await at.turn()
        assert at.sent == [encode_stored(SESSION, 1), encode_stored(SESSION, 3)]
        assert at.ends == LogOffsets(6, 2)
        assert at.follower.high_watermark == LogOffsets(5, 0)
        assert (at.pushed, at.mismatches) == (2, [])

    run(steps)


def test_a_round_ends_where_the_leader_begins_a_segment_and_the_sealed_one_is_recorded() -> None:
    async def steps(at: Receiver) -> None:
        at.push(1, [frame(0)])
        at.push(2, [frame(2)])
        at.push(3, [frame(4)], base=4)
        at.push(4, [])
        for _ in range(3):
            await at.turn()
        assert at.sent == [encode_stored(SESSION, number) for number in (1, 2, 4)]
        assert at.recorded == [0]
        assert [each.base_offset for each in at.follower.logs.messages.segments] == [0, 4]

    run(steps)


def test_the_sealed_segment_of_one_of_several_partitions_is_recorded() -> None:
    async def steps(at: Receiver) -> None:
        other = at.follow(OTHER)
        at.push(1, [frame(0)])
        at.push(2, [frame(2)], base=2)
        at.push(3, [frame(0)], key=OTHER)
        for _ in range(2):
            await at.turn()
        assert at.sent == [encode_stored(SESSION, 1, [3]), encode_stored(SESSION, 3)]
        assert (at.recorded, other.position.ends.messages) == ([0], 2)

    run(steps)


def test_a_push_without_frames_moves_the_watermark_at_once() -> None:
    async def steps(at: Receiver) -> None:
        at.push(1, [], safe=0, start=0)
        assert at.sent == [encode_stored(SESSION, 1)]
        assert at.writes == []
        await at.pushes.idle()

    run(steps)


def test_a_push_of_another_session_is_dropped() -> None:
    async def steps(at: Receiver) -> None:
        at.push(1, [frame(0)], session=SESSION + 1)
        await at.turn()
        at.pushes.detach()
        at.push(2, [frame(0)])
        await at.turn()
        assert (at.sent, at.ends, at.mismatches) == ([], LogOffsets(0, 0), [])

    run(steps)


def test_what_is_being_written_when_a_session_ends_is_written_and_not_reported() -> None:
    async def steps(at: Receiver) -> None:
        at.push(1, [frame(0)])
        at.push(2, [frame(2)])
        at.pushes.detach()
        idle = asyncio.ensure_future(at.pushes.idle())
        await asyncio.sleep(0)
        assert not idle.done()
        await at.turn()
        await idle
        assert (at.sent, at.ends, at.writes) == ([], LogOffsets(2, 0), [])

    run(steps)


@pytest.mark.parametrize(
    ("frames", "changes"),
    [
        ([frame(0)], {"epoch": 4}),
        ([frame(0)], {"key": PartitionKey("t", 1, 1)}),
        ([frame(1)], {}),
        ([frame(0), frame(1)], {}),
        ([frame(0), frame(3)], {}),
        ([frame(0, removed=[0])], {}),
        ([frame(0)], {"start": 1}),
        ([], {"start": 1}),
        ([], {"diverges_at": 0}),
        ([], {"must_reset": True}),
        ([], {"lost": (0, 2)}),
    ],
)
def test_what_does_not_simply_continue_the_logs_ends_the_session(
    frames: list[bytes], changes: dict[str, Any]
) -> None:
    async def steps(at: Receiver) -> None:
        at.push(1, frames, **changes)
        assert len(at.mismatches) == 1
        await at.turn()
        assert (at.sent, at.ends, at.pushed) == ([], LogOffsets(0, 0), 0)

    run(steps)


def test_a_log_that_something_else_changes_ends_the_session() -> None:
    async def steps(at: Receiver) -> None:
        assert at.follower.log_lock.try_acquire()
        at.push(1, [frame(0)])
        assert len(at.mismatches) == 1
        assert at.writes == []

    run(steps)


def test_a_partition_that_cannot_be_stored_holds_up_no_other_but_their_common_push() -> None:
    async def steps(at: Receiver) -> None:
        busy = at.follow(OTHER)
        assert busy.log_lock.try_acquire()
        update = LogUpdate(0, 0, len(frame(0)))
        updates = [PartitionUpdate(key, 3, LogOffsets(0, 0), update, None) for key in (KEY, OTHER)]
        at.pushes.receive(Push(PushHead(SESSION, 1, 0, updates), memoryview(2 * frame(0))))
        assert len(at.mismatches) == 1
        await at.turn()
        assert (at.ends, at.sent) == (LogOffsets(2, 0), [])
        assert at.follower.log_lock.try_acquire()
        await at.pushes.idle()

    run(steps)


def test_a_push_is_reported_while_an_earlier_one_of_another_partition_is_not_stored() -> None:
    async def steps(at: Receiver) -> None:
        at.follow(OTHER)
        at.push(1, [frame(0)])
        at.push(2, [frame(0)], key=OTHER)
        at.push(3, [frame(2)], key=OTHER)
        slow, quick = at.writes
        at.writes = [quick]
        await at.turn()
        assert at.sent == [encode_stored(SESSION, 0, [2])]
        await at.turn()
        assert at.sent[1:] == [encode_stored(SESSION, 0, [3])]
        at.writes = [slow]
        await at.turn()
        assert at.sent[2:] == [encode_stored(SESSION, 3)]

    run(steps)


def test_a_leader_that_takes_no_others_is_told_only_of_all_up_to_a_push() -> None:
    async def steps(at: Receiver) -> None:
        at.follow(OTHER)
        at.takes_others = False
        at.push(1, [frame(0)])
        at.push(2, [frame(0)], key=OTHER)
        at.push(3, [frame(2)])
        slow, quick = at.writes
        at.writes = [quick]
        await at.turn()
        assert at.sent == []
        at.writes = [slow]
        await at.turn()
        assert at.sent == [encode_stored(SESSION, 2)]
        await at.turn()
        assert at.sent[1:] == [encode_stored(SESSION, 3)]

    run(steps)


def test_a_push_of_two_partitions_is_reported_when_both_have_stored_it() -> None:
    async def steps(at: Receiver) -> None:
        at.follow(OTHER)
        update = LogUpdate(0, 0, len(frame(0)))
        updates = [PartitionUpdate(key, 3, LogOffsets(0, 0), update, None) for key in (KEY, OTHER)]
        head = PushHead(SESSION, 1, 0, updates, takes_others=True)
        at.pushes.receive(Push(head, memoryview(2 * frame(0))))
        for writes in [[each] for each in at.writes]:
            assert at.sent == []
            at.writes = writes
            await at.turn()
        assert at.sent == [encode_stored(SESSION, 1)]

    run(steps)


def test_a_push_is_not_reported_before_both_logs_of_its_partition_have_it() -> None:
    async def steps(at: Receiver) -> None:
        update = LogUpdate(0, 0, len(frame(0)))
        updates = [PartitionUpdate(KEY, 3, LogOffsets(0, 0), update, update)]
        at.pushes.receive(Push(PushHead(SESSION, 1, 0, updates), memoryview(2 * frame(0))))
        messages, events = at.writes
        at.writes = [events]
        await at.turn()
        assert (at.sent, at.ends) == ([], LogOffsets(0, 2))
        at.writes = [messages]
        await at.turn()
        assert (at.sent, at.ends) == ([encode_stored(SESSION, 1)], LogOffsets(2, 2))

    run(steps)


def test_what_several_partitions_store_in_one_turn_is_one_report() -> None:
    async def steps(at: Receiver) -> None:
        at.follow(OTHER)
        at.follow(THIRD)
        at.push(1, [frame(0)])
        at.push(2, [frame(0)], key=OTHER)
        at.push(3, [frame(0)], key=THIRD)
        slow, *at.writes = at.writes
        await at.turn()
        assert at.sent == [encode_stored(SESSION, 0, [2, 3])]
        at.writes = [slow]
        await at.turn()
        assert at.sent[1:] == [encode_stored(SESSION, 3)]

    run(steps)


def test_what_is_stored_after_its_session_has_ended_is_not_reported() -> None:
    async def steps(at: Receiver) -> None:
        at.follow(OTHER)
        at.push(1, [frame(0)])
        at.push(2, [frame(0)], key=OTHER)
        at.writes.pop().start()
        at.pushes.detach()
        await at.turn()
        assert (at.sent, at.ends) == ([], LogOffsets(2, 0))

    run(steps)


def test_pushes_that_do_not_come_one_after_the_other_end_the_session() -> None:
    async def steps(at: Receiver) -> None:
        at.push(1, [frame(0)])
        for number in (1, 3):
            at.push(number, [frame(2)])
        assert len(at.mismatches) == 2
        await at.turn()
        assert at.ends == LogOffsets(2, 0)

    run(steps)


def test_frames_that_the_log_itself_refuses_end_the_session_and_not_the_partition() -> None:
    async def steps(at: Receiver) -> None:
        at.push(1, [frame(0)])

        def refuse(*_: object, **__: object) -> None:
            raise InvalidFrame("another log")

        log: Any = at.follower.logs.messages
        log.begin = refuse
        await at.turn()
        assert (at.mismatches, at.failures, at.sent) == (["another log"], [], [])

    run(steps)


def test_the_lock_of_the_logs_is_free_between_rounds() -> None:
    async def steps(at: Receiver) -> None:
        at.push(1, [frame(0)])
        assert not at.follower.log_lock.try_acquire()
        await at.turn()
        assert at.follower.log_lock.try_acquire()

    run(steps)


@pytest.mark.parametrize("step", ["begin", "write"])
def test_a_write_that_fails_is_told_and_not_reported_as_stored(step: str) -> None:
    async def steps(at: Receiver) -> None:
        at.push(1, [frame(0)], safe=2)
        failure = OSError("the disk is gone")

        def fail(*_: object, **__: object) -> None:
            raise failure

        setattr(at.follower.logs.messages, step, fail)
        await at.turn()
        assert at.failures == [failure]
        assert (at.sent, at.ends) == ([], LogOffsets(0, 0))
        assert at.follower.high_watermark == LogOffsets(0, 0)
        assert at.pushed == 1

    run(steps)


def test_pushes_of_an_earlier_session_that_still_wait_are_dropped_with_the_next() -> None:
    async def run() -> None:
        receiver = Receiver()
        receiver.push(1, [frame(0)])
        receiver.push(2, [frame(2)])
        stream: Any = receiver
        receiver.pushes.attach(SESSION + 1, stream)
        await receiver.turn()
        await receiver.turn()
        assert receiver.ends == LogOffsets(2, 0)
        receiver.push(1, [frame(2)], session=SESSION + 1)
        await receiver.turn()
        assert receiver.ends == LogOffsets(4, 0)
        assert receiver.mismatches == []

    asyncio.run(run())


def test_leases_do_not_follow_a_pushed_write_into_the_same_record() -> None:
    async def steps(at: Receiver) -> None:
        at.push(1, [frame(0), frame(2)])
        (write,) = at.writes
        assert write.stages is False
        assert write.queued_bytes == len(frame(0)) + len(frame(2))
        await at.turn()

    run(steps)
