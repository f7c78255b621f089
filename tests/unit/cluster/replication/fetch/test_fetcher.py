"""When a follower's node asks again, and what becomes of each answer, on a clock of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import structs

from goq import limits
from goq.broker.partition.loader import PartitionLogs
from goq.cluster.replication.fetch.fetcher import Fetcher
from goq.cluster.replication.follower import FollowerReplica, parse_frames
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import (
    FetchRequest,
    FetchResponse,
    LogUpdate,
    PartitionKey,
    PartitionUpdate,
)
from goq.cluster.replication.push.protocol import encode_begin, encode_renew
from goq.errors import NotLeader
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from goq.storage.log.replicated import append_replicated
from goq.storage.log.segment import Segment
from tests.support.cluster.replication.loop import SimExecutor, SimLoop
from tests.support.storage.disk import SimulatedDisk

EPOCH = 3
Answer = tuple[list[PartitionUpdate], bytes]


def key_of(number: int) -> PartitionKey:
    return PartitionKey("t", 1, number)


def frame(offset: int, text: bytes = b"x") -> bytes:
    view = FrameView.parse(encode_frame(Columns([text, text])))
    header = view.header._replace(base_offset=offset, append_time_us=1, leader_epoch=EPOCH)
    return header.pack() + view.body


def update_of(number: int, frames: bytes = b"", *, start: int = 0, end: int = 0) -> PartitionUpdate:
    """Return an update of the messages; ``end`` is where the leader's log ends."""
    ends = LogOffsets(end, 0)
    log = LogUpdate(0, start, len(frames))
    return PartitionUpdate(key_of(number), EPOCH, LogOffsets(0, 0), log, None, "", ends)


def refusal_of(number: int) -> PartitionUpdate:
    return PartitionUpdate(key_of(number), -1, LogOffsets(0, 0), None, None, "not led here")


class Case:
    """A fetcher, and the leader's node that answers it as a test says."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.asked: list[tuple[float, FetchRequest]] = []
        self.failures: list[tuple[PartitionKey, Exception]] = []
        self.expired: list[FollowerReplica] = []
        self.sent: list[bytes] = []
        self.answer: Callable[[FetchRequest], Answer] = lambda _request: ([], b"")
        self.recorded: list[tuple[str, int]] = []
        self.held_s = 0.001  # by a leader without news
        self.disks: list[SimulatedDisk] = []  # of the followers
        manifest: Any = self
        self.fetcher = Fetcher(
            "b",
            "a",
            self._fetch,
            SimExecutor(loop, Random(1), lambda: False),
            manifest,
            on_failure=lambda key, error: self.failures.append((key, error)),
            on_expired_segment=self.expired.append,
        )

    async def _fetch(self, request: FetchRequest) -> tuple[FetchResponse, memoryview]:
        self.asked.append((self.loop.time(), request))
        updates, frames = self.answer(request)
        if not updates:
            await asyncio.sleep(self.held_s)
        return FetchResponse(updates), memoryview(frames)

    async def add(self, _key: PartitionKey, log: str, segments: list[Segment]) -> None:
        self.recorded += [(log, segment.base_offset) for segment in segments]

    async def remove(self, _key: PartitionKey, log: str) -> None:
        self.recorded.append((f"no {log}", -1))

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def follower(self, number: int) -> FollowerReplica:
        disk = SimulatedDisk(Random(1))
        self.disks.append(disk)
        logs = PartitionLogs(*(Log.open(Path("/data") / name, disk) for name in ("m", "e")))
        follower = FollowerReplica(key_of(number), EPOCH, logs, lambda log, _offset: log)
        self.fetcher.add(follower)
        return follower

    def times_asked(self, number: int) -> list[float]:
        """Return when the position of a partition was in a request."""
        return [
            time_s
            for time_s, request in self.asked
            if key_of(number) in [position.key for position in request.positions]
        ]


def run(steps: Callable[[Case], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=SimLoop) as runner:

        async def main() -> None:
            loop: Any = asyncio.get_running_loop()
            case = Case(loop)
            await steps(case)
            await case.fetcher.stop()
            assert loop.unexpected == []

        runner.run(main())


def pauses_s(times_s: list[float]) -> list[float]:
    return [round(after - before, 2) for before, after in pairwise(times_s)]


GROWING_S = [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]


def test_a_node_that_cannot_be_reached_is_asked_less_and_less_often_and_anew_each_time() -> None:
    async def steps(case: Case) -> None:
        is_down = True

        def answer(_request: FetchRequest) -> Answer:
            if is_down:
                raise NotLeader("nobody answers")
            return [], b""

        case.answer = answer
        case.follower(0)
        await asyncio.sleep(3.5)
        assert pauses_s([time_s for time_s, _ in case.asked]) == GROWING_S
        assert len({request.session for _, request in case.asked}) == len(case.asked)
        assert all(request.is_new for _, request in case.asked)
        is_down = False
        await asyncio.sleep(1)
        is_down = True
        case.asked.clear()
        await asyncio.sleep(0.05)
        assert pauses_s([time_s for time_s, _ in case.asked]) == GROWING_S[:1]

    run(steps)


def test_a_partition_that_is_refused_is_asked_for_less_and_less_often_and_holds_up_no_other() -> (
    None
):
    async def steps(case: Case) -> None:
        is_refusing = True
        case.answer = lambda request: (
            [refusal_of(p.key.number) for p in request.positions if is_refusing],
            b"",
        )
        case.follower(0)
        await asyncio.sleep(3.5)
        assert pauses_s(case.times_asked(0)) == GROWING_S
        assert len(case.asked) > 1000
        assert len({request.session for _, request in case.asked}) == 1
        is_refusing = False
        await asyncio.sleep(2)
        asked = len(case.times_asked(0))
        assert asked == 1 + len(GROWING_S) + 1, "what is not refused any more is asked for once"
        is_refusing = True
        case.follower(1)  # begins another session, with all partitions
        await asyncio.sleep(0.05)
        assert pauses_s(case.times_asked(0)[asked:]) == GROWING_S[:1]

    run(steps)


def test_partitions_that_are_added_together_begin_one_session() -> None:
    async def steps(case: Case) -> None:
        case.follower(0)
        await asyncio.sleep(0.1)
        case.asked.clear()
        for number in range(1, 4):
            case.follower(number)
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.1)
        (begun,) = [request for _, request in case.asked if request.is_new]
        assert {position.key.number for position in begun.positions} == {0, 1, 2, 3}
        assert not begun.forgotten
        case.asked.clear()
        await case.fetcher.remove(key_of(1))
        case.follower(4)
        await asyncio.sleep(0.1)
        (begun,) = [request for _, request in case.asked if request.is_new]
        assert {position.key.number for position in begun.positions} == {0, 2, 3, 4}
        assert not begun.forgotten

    run(steps)


def test_partitions_are_asked_for_in_an_order_that_no_hash_decides() -> None:
    numbers = Random(1).sample(range(50), 50)

    async def steps(case: Case) -> None:
        for number in numbers:
            case.follower(number)
        await asyncio.sleep(0.05)
        (_, request), *_ = case.asked
        assert [position.key.number for position in request.positions] == sorted(numbers)

    run(steps)


def test_a_follower_asks_on_at_once_as_long_as_it_gets_something() -> None:
    async def steps(case: Case) -> None:
        frames = [frame(offset) for offset in range(0, 10, 2)]
        follower = case.follower(0)

        def answer(request: FetchRequest) -> Answer:
            if not request.positions:
                return [], b""
            (position,) = request.positions
            data = b"".join(frames[position.ends.messages // 2 :][:1])
            return [update_of(0, data, end=10)], data

        case.answer = answer
        await asyncio.sleep(1)
        assert follower.position.ends == LogOffsets(10, 0)
        ends = [p.ends.messages for _, request in case.asked for p in request.positions]
        assert ends == [0, 2, 4, 6, 8, 10]
        assert case.failures == []

    run(steps)


@pytest.mark.parametrize("end", [0, 10])
def test_a_follower_that_gets_nothing_asks_again_later_unless_there_is_nothing(end: int) -> None:
    async def steps(case: Case) -> None:
        case.answer = lambda request: ([update_of(0, end=end) for _ in request.positions], b"")
        case.follower(0)
        await asyncio.sleep(3.5)
        assert pauses_s(case.times_asked(0)) == (GROWING_S if end else [])

    run(steps)


def test_each_partition_gets_its_own_frames_of_an_answer() -> None:
    async def steps(case: Case) -> None:
        data = [frame(0, text) for text in (b"first", b"second, longer", b"third")]
        updates = [update_of(n, each, end=2) for n, each in zip((0, 7, 1), data, strict=True)]
        followers = [case.follower(number) for number in (0, 1)]
        case.answer = lambda request: (updates, b"".join(data)) if request.is_new else ([], b"")
        await asyncio.sleep(1)
        for follower, expected in zip(followers, (data[0], data[2]), strict=True):
            reading = follower.logs.messages.reader.read(0, 2)
            assert [bytes(view.buffer) for view in reading.frames] == [expected]

    run(steps)


@pytest.mark.parametrize("are_large", [False, True])
def test_large_pieces_are_stored_one_after_the_other(
    are_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [frame(0, b"x" * 100) for _ in range(3)]
    monkeypatch.setattr(limits, "FETCH_TOGETHER_BYTES_MAX", len(data[0]) - are_large)
    under_way = at_most = 0

    def counted(executor: SimExecutor, work: Callable[[], object]) -> Future[object]:
        nonlocal under_way, at_most
        under_way += 1
        at_most = max(at_most, under_way)

        def count_down(_done: Future[object]) -> None:
            nonlocal under_way
            under_way -= 1

        done = submit(executor, work)
        done.add_done_callback(count_down)
        return done

    submit = SimExecutor.submit
    monkeypatch.setattr(SimExecutor, "submit", counted)

    async def steps(case: Case) -> None:
        updates = [update_of(number, each, end=2) for number, each in enumerate(data)]
        followers = [case.follower(number) for number in range(3)]
        case.answer = lambda request: (updates, b"".join(data)) if request.is_new else ([], b"")
        await asyncio.sleep(1)
        assert [follower.position.ends.messages for follower in followers] == [2, 2, 2]
        assert at_most == (1 if are_large else 3)

    run(steps)


def test_frames_that_cannot_be_stored_are_asked_for_again_later() -> None:
    async def steps(case: Case) -> None:
        sound, damaged = frame(0), frame(0)[:-1] + b"?"
        case.answer = lambda request: (
            [update_of(0, sound, end=2) for _ in request.positions],
            damaged if len(case.times_asked(0)) < 4 else sound,
        )
        follower = case.follower(0)
        await asyncio.sleep(0.2)
        assert pauses_s(case.times_asked(0))[:3] == GROWING_S[:3]
        assert follower.position.ends.messages == 2
        assert case.failures == []

    run(steps)


def test_a_partition_that_cannot_be_written_is_told_and_asked_for_no_more() -> None:
    async def steps(case: Case) -> None:
        failing, other = case.follower(0), case.follower(1)
        error = OSError("the disk failed")

        def apply(update: PartitionUpdate, frames: memoryview) -> None:
            raise error

        failing.apply = apply
        both = [update_of(number, frame(0), end=2) for number in (0, 1)]
        case.answer = lambda request: (both, 2 * frame(0)) if request.is_new else ([], b"")
        await asyncio.sleep(3)
        assert case.failures == [(failing.key, error)]
        assert other.position.ends.messages == 2
        assert case.times_asked(0) == case.times_asked(1)[:1]
        assert [request.forgotten for _, request in case.asked if request.forgotten] == [
            [failing.key]
        ]

    run(steps)


def test_segments_that_the_leader_has_deleted_are_told() -> None:
    async def steps(case: Case) -> None:
        follower = case.follower(0)

        def answer(request: FetchRequest) -> Answer:
            if not request.positions:
                return [], b""
            end = request.positions[0].ends.messages
            if end < 4:
                segment = LogUpdate(end, 0, len(frame(end)))  # each frame is a segment
                update = PartitionUpdate(follower.key, EPOCH, LogOffsets(0, 0), segment, None)
                return [update], frame(end)
            return [update_of(0, start=2, end=4)], b""

        case.answer = answer
        await asyncio.sleep(1)
        assert [segment.base_offset for segment in follower.logs.messages.segments] == [0, 2]
        assert case.recorded == [("messages", 0)]
        assert case.expired == [follower]

    run(steps)


def test_a_follower_on_a_full_disk_deletes_what_its_leader_has_deleted_and_goes_on() -> None:
    async def steps(case: Case) -> None:
        follower = case.follower(0)
        (disk,) = case.disks

        def answer(request: FetchRequest) -> Answer:
            if not request.positions:
                return [], b""
            end = request.positions[0].ends.messages
            if end >= 6:
                return [update_of(0, start=2, end=6)], b""
            if end == 4 and disk.capacity_bytes is None:
                disk.capacity_bytes = disk.used_bytes
            base, start = (end, 0) if end < 4 else (2, 2)  # the first two frames are segments
            update = LogUpdate(base, start, len(frame(end)))
            return [PartitionUpdate(follower.key, EPOCH, LogOffsets(0, 0), update, None)], frame(
                end
            )

        case.answer = answer
        await asyncio.sleep(0.5)
        assert follower.position.ends.messages == 4
        assert follower in case.expired
        expired = follower.expired_segment()
        assert expired is not None
        follower.delete_segment(*expired)
        await asyncio.sleep(2)
        assert follower.position.ends.messages == 6
        assert case.failures == []

    run(steps)


def test_a_session_is_pushed_from_its_first_answer_on_and_another_a_second_after_a_mismatch() -> (
    None
):
    async def steps(case: Case) -> None:
        stream: Any = case
        case.fetcher.set_stream(stream)
        case.follower(0)
        assert case.fetcher.renewal() == b""
        await asyncio.sleep(0.5)
        first = case.asked[0][1].session
        assert case.sent == [encode_begin(first)], "once"
        assert case.fetcher.renewal() == encode_renew(first)
        case.fetcher.on_mismatch("a gap")
        ended_s = case.loop.time()
        assert case.fetcher.renewal() == b""
        await asyncio.sleep(0.9)
        second = case.asked[-1][1].session
        assert second != first, "what the leader knows of the positions is uncertain"
        assert case.sent == [encode_begin(first)]
        await asyncio.sleep(ended_s + 1.1 - case.loop.time())
        assert case.sent == [encode_begin(first), encode_begin(second)]
        case.fetcher.set_stream(None)
        await asyncio.sleep(0.1)
        assert case.asked[-1][1].session != second
        assert case.fetcher.renewal() == b""

    run(steps)


def test_the_requests_of_a_session_that_is_renewed_are_held_for_long() -> None:
    async def steps(case: Case) -> None:
        stream: Any = case
        case.fetcher.set_stream(stream)
        case.follower(0)
        await asyncio.sleep(0.5)
        assert {request.wait_ms for _, request in case.asked} == {limits.FETCH_WAIT_MS}
        case.fetcher.renewal()
        case.asked.clear()
        await asyncio.sleep(limits.PUSH_STREAM_IDLE_S - 0.01)
        assert {request.wait_ms for _, request in case.asked[1:]} == {limits.FETCH_WAIT_RENEWED_MS}
        await asyncio.sleep(0.02)
        assert case.asked[-1][1].wait_ms == limits.FETCH_WAIT_MS

    run(steps)


def test_what_was_pushed_is_not_told_again_by_a_fetch() -> None:
    async def steps(case: Case) -> None:
        case.answer = lambda request: ([refusal_of(0) for _ in request.positions], b"")
        follower = case.follower(0)
        await asyncio.sleep(0.01)
        case.fetcher.on_pushed(follower)
        await asyncio.sleep(3)
        assert len(case.times_asked(0)) == 1

    run(steps)


def test_segments_that_the_leader_has_deleted_are_told_with_a_push_too() -> None:
    async def steps(case: Case) -> None:
        follower = case.follower(0)
        for offset in (0, 2):
            append_replicated(
                follower.logs.messages, parse_frames(memoryview(frame(offset))), offset
            )
        case.fetcher.on_pushed(follower)
        assert case.expired == []
        follower.note_bounds(update_of(0, start=2))
        case.fetcher.on_pushed(follower)
        assert case.expired == [follower]

    run(steps)


def test_the_manifest_forgets_a_log_before_it_is_truncated_and_has_what_is_left_of_it() -> None:
    async def steps(case: Case) -> None:
        follower = case.follower(0)
        log = follower.logs.messages
        for offset in (0, 2, 4):
            append_replicated(log, parse_frames(memoryview(frame(offset))), offset)
        ends = list[int]()

        def diverge(request: FetchRequest) -> Answer:
            if not request.positions or ends:
                return [], b""
            ends.append(request.positions[0].ends.messages)
            differs = LogUpdate(0, 0, 0, diverges_at=4, epoch=EPOCH)
            return [structs.replace(update_of(0), messages=differs)], b""

        case.answer = diverge
        while not case.recorded[1:]:
            await asyncio.sleep(0.001)
        assert ends == [6]
        assert follower.position.ends == LogOffsets(4, 0)
        sealed = [("messages", each.base_offset) for each in log.segments[:-1]]
        assert case.recorded == [("no messages", -1), *sealed]
        assert sealed[0] == ("messages", 0)

    run(steps)


def test_a_fetcher_that_is_stopped_ends_the_request_under_way() -> None:
    async def steps(case: Case) -> None:
        case.held_s = 3_600.0
        case.follower(0)
        await asyncio.sleep(1)
        assert len(case.asked) == 1
        before_s = case.loop.time()
        await case.fetcher.stop()
        assert case.loop.time() - before_s < 1

    run(steps)


def test_a_partition_that_is_added_to_a_pushed_session_begins_another() -> None:
    async def steps(case: Case) -> None:
        stream: Any = case
        case.fetcher.set_stream(stream)
        case.follower(0)
        await asyncio.sleep(0.5)
        first = case.asked[-1][1]
        case.asked.clear()
        case.follower(1)
        assert case.fetcher.renewal() == b""
        await asyncio.sleep(0.1)
        begun = case.asked[0][1]
        assert begun.is_new
        assert begun.session not in (0, 1, first.session)
        assert {position.key.number for position in begun.positions} == {0, 1}

    run(steps)
