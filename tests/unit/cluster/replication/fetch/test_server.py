"""What a leader believes of a follower's logs: only what it knows to be a part of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from goq import limits
from goq.broker.log.recent_batches import BATCH_BYTES
from goq.broker.partition.loader import PartitionLogs, open_logs
from goq.clock import ManualClock
from goq.cluster.replication.fetch.server import FetchServer
from goq.cluster.replication.leader import LeaderReplica, ReplicaBounds
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import FetchRequest, FetchResponse, PartitionKey, Position
from goq.cluster.replication.push.protocol import Push, decode_message
from goq.config.topic import TopicSettings
from goq.errors import InvalidFrame
from goq.frame.header import HEADER_BYTES, parse_header
from goq.storage.disk import RealDisk
from goq.storage.log.segment import WriteBatch
from tests.support.storage.disk import InlineExecutor, SimulatedDisk
from tests.support.storage.logs import append, frame_of

KEY = PartitionKey("t", 1, 0)
PATIENCE_S = 30.0


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[PartitionLogs]:
    logs = open_logs(tmp_path, RealDisk(), TopicSettings())
    append(logs.messages, [frame_of([b"v"] * 10)], epoch=1)
    yield logs
    for log in logs:
        log.close()


def leading_of(logs: PartitionLogs) -> LeaderReplica:
    """Return the leadership of ``a`` in epoch 2; it has written ten messages more than it found."""
    ends = LogOffsets(logs.messages.end_offset, 0)
    leading = LeaderReplica(
        KEY, 2, logs, ReplicaProgress("a", ends, in_sync=["a", "b"], min_insync=2)
    )
    leading.progress.set_replicas(["a", "b"], 0)
    append(logs.messages, [frame_of([b"w"] * 10)], epoch=2)
    leading.on_append(0, logs.messages.end_offset)
    return leading


class Follower:
    """Asks as ``b`` does."""

    def __init__(self, leading: LeaderReplica, executor: Executor | None = None) -> None:
        self.server = FetchServer(executor or ThreadPoolExecutor(1), ManualClock())
        self.server.add_leader(leading)
        leading.on_new_data = self.server.on_new_data
        leading.on_bounds_change = self.server.on_bounds_change
        self._is_new = True

    async def ask(self, end: int, epoch: int) -> FetchResponse:
        return await self._ask([self.position(end, epoch)])

    def position(self, end: int, epoch: int, leader_epoch: int = 2) -> Position:
        return Position(KEY, leader_epoch, LogOffsets(end, 0), LogOffsets(epoch, -1))

    async def fetch_again(self) -> tuple[FetchResponse, list[memoryview]]:
        """Ask from the same position; return the frames too."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.server.fetch(FetchRequest("b", 7, False, [], [], 10))

    async def ask_again(self) -> FetchResponse:
        """Ask from the same position."""
        return await self._ask([])

    async def _ask(self, positions: list[Position]) -> FetchResponse:
        request = FetchRequest("b", 7, self._is_new, positions, [], 10)
        self._is_new = False
        async with asyncio.timeout(PATIENCE_S):
            answer, _ = await self.server.fetch(request)
        return answer


class WritingExecutor(Executor):
    """Has a leader append messages after a read, before its result is seen."""

    def __init__(self, leading: LeaderReplica) -> None:
        self._leading = leading
        self.is_due = False

    def submit(self, work: Any, /, *arguments: Any, **named: Any) -> Any:
        done: Future[Any] = Future()
        done.set_result(work(*arguments, **named))
        if self.is_due:
            append(self._leading.logs.messages, [frame_of([b"late"])], epoch=2)
            self._leading.on_append(0, self._leading.logs.messages.end_offset)
        return done


def test_what_a_follower_has_of_another_leader_is_not_counted(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = Follower(leading)
        answer = await follower.ask(15, 1)  # five that only an earlier leader gave it
        assert answer.updates[0].messages is not None
        assert answer.updates[0].messages.diverges_at == 10
        assert leading.progress.high_watermark == LogOffsets(0, 0)
        assert leading.progress.follower_ends("b") is None
        await follower.ask(10, 1)
        assert leading.progress.high_watermark == LogOffsets(10, 0)

    asyncio.run(run())


def test_what_a_follower_was_given_is_counted_when_it_says_that_it_has_it(
    logs: PartitionLogs,
) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = Follower(leading)
        await follower.ask(10, 1)
        assert leading.progress.high_watermark == LogOffsets(10, 0)
        await follower.ask(20, 2)
        assert leading.progress.high_watermark == LogOffsets(20, 0)

    asyncio.run(run())


def test_who_is_where_no_answer_led_it_is_looked_at_again(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = Follower(leading)
        await follower.ask(10, 1)
        await follower.ask(15, 1)
        assert leading.progress.high_watermark == LogOffsets(10, 0)

    asyncio.run(run())


def test_who_has_cut_off_just_what_the_leader_lacks_is_counted(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = Follower(leading)
        await follower.ask(25, 1)
        await follower.ask(20, 2)
        assert leading.progress.high_watermark == LogOffsets(20, 0)

    asyncio.run(run())


def test_a_follower_hears_that_the_log_begins_later_though_nothing_was_written(
    logs: PartitionLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REST_CHECK_MS", 0)
    logs.messages.roll()
    leading = leading_of(logs)

    async def run() -> None:
        follower = Follower(leading)
        await follower.ask(20, 2)
        assert not (await follower.ask(20, 2)).updates
        assert (await follower.ask_again()).updates  # the high watermark
        assert not (await follower.ask_again()).updates
        logs.messages.remove(logs.messages.detach_before(10))
        answer = await follower.ask_again()
        assert answer.updates[0].messages is not None
        assert answer.updates[0].messages.start_offset == 10
        assert not (await follower.ask_again()).updates

    asyncio.run(run())


def test_a_follower_that_has_everything_hears_how_far_it_is_safe_when_it_asks_again(
    logs: PartitionLogs,
) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = Follower(leading)
        first = await follower.ask(10, 1)
        assert first.updates[0].high_watermark == LogOffsets(0, 0)
        assert not (await follower.ask(20, 2)).updates
        assert leading.progress.high_watermark == LogOffsets(20, 0)
        (update,) = (await follower.ask_again()).updates
        assert update.high_watermark == LogOffsets(20, 0)
        assert update.ends == LogOffsets(20, 0)
        assert not (await follower.ask_again()).updates

    asyncio.run(run())


def test_what_is_appended_while_an_answer_is_read_comes_with_the_next_one(
    logs: PartitionLogs,
) -> None:
    leading = leading_of(logs)
    executor = WritingExecutor(leading)

    async def run() -> None:
        follower = Follower(leading, executor)
        executor.is_due = True
        (update,) = (await follower.ask(20, 2)).updates  # it has everything, as of the read
        executor.is_due = False
        assert update.messages is not None
        assert update.messages.frame_bytes == 0
        (update,) = (await follower.ask_again()).updates
        assert update.messages is not None
        assert update.messages.frame_bytes > 0

    asyncio.run(run())


def test_a_follower_at_rest_is_counted_without_a_look_at_the_bounds_of_its_partition(
    logs: PartitionLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    leading = leading_of(logs)
    looks: list[LeaderReplica] = []
    bounds = LeaderReplica.bounds.fget
    assert bounds is not None

    def look(leader: LeaderReplica) -> ReplicaBounds:
        looks.append(leader)
        found: ReplicaBounds = bounds(leader)
        return found

    async def run() -> None:
        follower = Follower(leading)
        await follower.ask(20, 2)
        for _ in range(3):
            await follower.ask_again()
        monkeypatch.setattr(LeaderReplica, "bounds", property(look))
        before = leading.progress.caught_up_ms("b")
        await follower.ask_again()
        assert (leading.progress.caught_up_ms("b") or 0) > (before or 0)
        assert not looks
        leading.progress.set_replicas(["a", "b"], 0, [0, 5])  # it has restarted
        leading.set_in_sync(["a", "b"], 2, is_decided=True)
        assert leading.progress.follower_ends("b") is None
        await follower.ask_again()
        assert leading.progress.follower_ends("b") == LogOffsets(20, 0)

    asyncio.run(run())


def test_the_requests_of_a_follower_at_rest_confirm_that_it_follows(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = Follower(leading)
        await follower.ask(20, 2)
        for _ in range(3):
            await follower.ask_again()
        confirmed: list[bool] = []
        leading.confirm(lambda: confirmed.append(True))
        await follower.ask_again()
        assert not confirmed
        await follower.ask_again()
        assert confirmed

    asyncio.run(run())


class _NoExecutor(Executor):
    """Threads that a read from memory does not need."""

    def submit(self, work: Any, /, *arguments: Any, **named: Any) -> Any:
        raise AssertionError("the answer was to come from memory")


def _write_kept(leading: LeaderReplica, which: int, values: list[bytes]) -> None:
    """Have the leader write a frame and keep it in memory, as its writer does."""
    log, frame = leading.logs[which], frame_of(list(values))
    batch = log.begin(0)
    body = memoryview(frame)[HEADER_BYTES:]
    batch.add(parse_header(frame), body, append_time_us=0, leader_epoch=2)
    log.write(batch)
    log.commit(batch)
    quorum = leading.quorums[which]
    assert quorum is not None
    quorum.keep(batch)
    quorum.appended(batch.end_offset)


@pytest.mark.parametrize("which", [0, 1])
def test_what_was_just_written_comes_from_memory_as_it_would_from_the_file(
    logs: PartitionLogs, which: int
) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = Follower(leading)
        await follower.ask(10, 1)
        await follower.ask(20, 2)
        for number in range(3):
            _write_kept(leading, which, [b"%d" % number])
        position = follower.position(20, 2)
        read = leading.read_update(position, is_checked=True, bytes_max=2**20)
        follower.server._executor = _NoExecutor()
        answer, buffers = await follower.fetch_again()
        assert answer.updates == [read.head]
        assert b"".join(buffers) == b"".join(read.buffers)
        found = leading.recent_update(position, leading.progress.ends)
        assert found is not None
        assert found.end_offsets == read.end_offsets

    asyncio.run(run())


def test_what_is_not_in_memory_is_read_from_the_file(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = Follower(leading)
        _write_kept(leading, 0, [b"kept"])
        ends = leading.progress.ends
        assert leading.recent_update(follower.position(20, 2), ends) is not None
        assert leading.recent_update(follower.position(10, 1), ends) is None
        other = follower.position(20, 2, leader_epoch=1)
        assert leading.recent_update(other, ends) is None
        append(logs.messages, [frame_of([b"not kept"])], epoch=2)
        leading.on_append(0, logs.messages.end_offset)
        await follower.ask(10, 1)
        await follower.ask(20, 2)
        answer = await follower.ask(21, 2)
        assert answer.updates[0].messages is not None
        assert answer.updates[0].messages.frame_bytes

    asyncio.run(run())


class _Stream:
    """A stream that keeps what is sent over it."""

    def __init__(self) -> None:
        self.sent: list[Push] = []

    def send(self, *parts: bytes | memoryview) -> bool:
        message = decode_message(b"".join(parts))
        assert isinstance(message, Push)
        self.sent.append(message)
        return True

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)


class _Pushed(Follower):
    """A follower that has everything, and is pushed what the leader appends."""

    def __init__(self, leading: LeaderReplica) -> None:
        super().__init__(leading)
        leading.on_offer, leading.is_pushed = self.server.on_offer, self.server.is_pushed
        self.stream = _Stream()
        self.server.add_stream("b", self.stream)

    async def begin(self, session: int = 7) -> None:
        await self.ask(10, 1)
        await self.ask(20, 2)
        self.server.attach("b", session)
        await asyncio.sleep(0)

    @property
    def pushes(self) -> list[tuple[int, int]]:
        """The numbers of what was pushed, with the bytes of its frames."""
        return [(push.head.number, len(push.frames)) for push in self.stream.sent if push.frames]


def _begin_write(leading: LeaderReplica, value: bytes) -> WriteBatch:
    batch, frame = leading.logs.messages.begin(0), frame_of([value])
    body = memoryview(frame)[HEADER_BYTES:]
    batch.add(parse_header(frame), body, append_time_us=0, leader_epoch=2)
    return batch


def _end_write(leading: LeaderReplica, batch: WriteBatch) -> None:
    leading.logs.messages.write(batch)
    leading.logs.messages.commit(batch)
    leading.on_append(0, batch.end_offset)


def test_a_follower_is_pushed_what_the_leader_writes_meanwhile_and_neither_disk_is_enough(
    logs: PartitionLogs,
) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = _Pushed(leading)
        await follower.begin()
        batch = _begin_write(leading, b"at once")
        assert leading.offer(0, batch)
        follower.server.flush()
        ((number, size_bytes),) = follower.pushes
        assert size_bytes == batch.size_bytes
        assert leading.progress.ends == LogOffsets(20, 0)
        follower.server.on_stored("b", 7, number)
        assert leading.progress.follower_ends("b") == LogOffsets(21, 0)
        assert leading.progress.high_watermark == LogOffsets(20, 0)
        _end_write(leading, batch)
        assert leading.progress.high_watermark == LogOffsets(21, 0)
        await asyncio.sleep(0)
        assert len(follower.pushes) == 1
        again = _begin_write(leading, b"then here first")
        assert leading.offer(0, again)
        _end_write(leading, again)
        assert leading.progress.high_watermark == LogOffsets(21, 0)

    asyncio.run(run())


def test_a_renewal_counts_the_follower_as_a_fetch_does_and_a_waiting_fetch_stays(
    logs: PartitionLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REST_CHECK_MS", 0)
    logs.messages.roll()
    leading = leading_of(logs)

    async def run() -> None:
        follower = _Pushed(leading)
        await follower.begin()
        held = asyncio.ensure_future(
            follower.server.fetch(FetchRequest("b", 7, False, [], [], 60_000))
        )
        await asyncio.sleep(0)
        before = leading.progress.caught_up_ms("b") or 0
        await asyncio.sleep(0.005)
        follower.server.renew("b", 8)  # of another session
        assert leading.progress.caught_up_ms("b") == before
        follower.server.renew("b", 7)
        assert (leading.progress.caught_up_ms("b") or 0) > before
        logs.messages.remove(logs.messages.detach_before(10))
        follower.server.renew("b", 7)
        await asyncio.sleep(0)
        update = follower.stream.sent[-1].head.updates[0].messages
        assert update is not None
        assert update.start_offset == 10
        assert not held.done()
        held.cancel()

    asyncio.run(run())


def test_what_a_pushed_follower_asks_is_answered_at_once_while_its_leader_has_to_be_sure(
    logs: PartitionLogs,
) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower, sure = _Pushed(leading), list[bool]()
        await follower.begin()
        patient = FetchRequest("b", 7, False, [], [], 60_000)
        waiting = asyncio.ensure_future(follower.server.fetch(patient))
        await asyncio.sleep(0)
        leading.confirm(lambda: sure.append(True))
        for _ in range(2):
            for _ in range(3):
                await asyncio.sleep(0)
            assert waiting.done()
            assert not sure
            waiting = asyncio.ensure_future(follower.server.fetch(patient))
        for _ in range(3):
            await asyncio.sleep(0)
        assert sure
        assert not waiting.done()
        waiting.cancel()

    asyncio.run(run())


def test_a_pushed_partition_that_is_asked_for_again_ends_the_session(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = _Pushed(leading)
        await follower.begin()
        batch = _begin_write(leading, b"never stored")
        assert leading.offer(0, batch)
        follower.server.flush()
        answer = await follower.ask(20, 2)
        assert answer.is_unknown_session
        assert answer.updates == []
        assert (await follower.ask_again()).is_unknown_session

    asyncio.run(run())


def test_a_renewal_confirms_nothing_as_it_may_have_been_sent_before(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = _Pushed(leading)
        await follower.begin()
        confirmed: list[bool] = []
        leading.confirm(lambda: confirmed.append(True))
        for _ in range(3):
            follower.server.renew("b", 7)
        assert not confirmed
        for _ in range(2):
            await follower.ask_again()
        assert confirmed

    asyncio.run(run())


def test_a_follower_that_has_what_the_leader_still_writes_is_not_cut(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = _Pushed(leading)
        await follower.begin()
        batch = _begin_write(leading, b"at once")
        assert leading.offer(0, batch)
        again = Follower(leading)  # its stream has ended: it begins anew, and says where it is
        for end, epoch in ((21, 2), (22, 2), (21, 1)):
            answer = await again.ask(end, epoch)
            again._is_new = True
            assert answer.updates[0].messages is not None
            is_cut = answer.updates[0].messages.diverges_at is not None
            assert is_cut == ((end, epoch) != (21, 2)), (end, epoch)
        await again.ask(21, 2)
        assert leading.progress.high_watermark == LogOffsets(20, 0)
        assert (await again.ask_again()).updates == []
        _end_write(leading, batch)
        await again.ask_again()
        assert leading.progress.high_watermark == LogOffsets(21, 0)

    asyncio.run(run())


def test_the_largest_batch_that_is_pushed_fits_a_message_of_a_stream(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = _Pushed(leading)
        await follower.begin()
        beside_bytes = HEADER_BYTES + BATCH_BYTES + 100
        batch = _begin_write(leading, bytes(limits.RECENT_LOG_BYTES_MAX - beside_bytes))
        assert leading.offer(0, batch)
        follower.server.flush()
        sent = follower.stream.sent[-1]
        assert 2 * len(sent) < limits.RAFT_MESSAGE_BYTES_MAX
        assert limits.PUSH_BYTES_MAX + 1000 < limits.RAFT_MESSAGE_BYTES_MAX

    asyncio.run(run())


def test_what_no_follower_is_pushed_is_not_offered(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = _Pushed(leading)
        assert not leading.offer(0, _begin_write(leading, b"nobody"))
        await follower.begin()
        large = _begin_write(leading, b"x" * limits.RECENT_LOG_BYTES_MAX)
        assert not leading.offer(0, large)
        assert leading.pushable_ends == leading.progress.ends

    asyncio.run(run())


@pytest.mark.parametrize("why", ["another session", "no session", "no stream"])
def test_a_session_is_attached_only_to_a_stream_of_its_node_and_while_it_is_under_way(
    logs: PartitionLogs, why: str
) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = _Pushed(leading)
        await follower.ask(10, 1)
        await follower.ask(20, 2)
        if why == "no stream":
            follower.server.remove_stream("b")
        node = "c" if why == "no session" else "b"
        follower.server.add_stream("c", follower.stream)
        follower.server.attach(node, 8 if why == "another session" else 7)
        _write_kept(leading, 0, [b"not pushed"])
        await asyncio.sleep(0)
        assert follower.stream.sent == []
        (update,) = (await follower.ask_again()).updates
        assert update.messages is not None
        assert update.messages.frame_bytes > 0

    asyncio.run(run())


def test_a_report_of_another_session_counts_for_nothing(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = _Pushed(leading)
        await follower.begin()
        _write_kept(leading, 0, [b"pushed"])
        await asyncio.sleep(0)
        ((number, _),) = follower.pushes
        for session in (6, 8, 2**53):
            follower.server.on_stored("b", session, number)
        follower.server.on_stored("c", 7, number)
        assert leading.progress.high_watermark == LogOffsets(20, 0)
        follower.server.on_stored("b", 7, number)
        assert leading.progress.high_watermark == LogOffsets(21, 0)

    asyncio.run(run())


@pytest.mark.parametrize("number", [0, 9, 2**53])
def test_a_report_of_a_push_that_is_not_under_way_ends_the_session(
    logs: PartitionLogs, number: int
) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = _Pushed(leading)
        await follower.begin()
        _write_kept(leading, 0, [b"pushed"])
        await asyncio.sleep(0)
        with pytest.raises(InvalidFrame):
            follower.server.on_stored("b", 7, number)
        assert (await follower.ask_again()).is_unknown_session
        assert leading.progress.high_watermark == LogOffsets(20, 0)

    asyncio.run(run())


def test_a_follower_that_stores_nothing_is_pushed_no_more_than_the_bound_and_then_fetches(
    logs: PartitionLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PUSH_IN_FLIGHT_BYTES_MAX", 10_000)
    leading = leading_of(logs)

    async def run() -> None:
        follower = _Pushed(leading)
        await follower.begin()
        for _ in range(40):
            _write_kept(leading, 0, [b"x" * 1000])
            await asyncio.sleep(0)
        pushed = follower.pushes
        assert 5 < len(pushed) < 10
        last, _ = pushed[-1]
        assert (await follower.ask_again()).updates == []  # it has not stored what is under way
        follower.server.on_stored("b", 7, last)
        (update,) = (await follower.ask_again()).updates
        assert update.messages is not None
        assert update.messages.frame_bytes > 20_000
        assert follower.pushes == pushed

    asyncio.run(run())


def test_a_partition_that_is_led_no_more_keeps_nothing_in_memory(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = Follower(leading)
        _write_kept(leading, 0, [b"kept"])
        assert follower.server._recent.size_bytes
        follower.server.remove_leader(KEY)
        assert not follower.server._recent.size_bytes

    asyncio.run(run())


def test_a_follower_that_asked_before_the_leadership_began_hears_of_it_at_once(
    logs: PartitionLogs,
) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = Follower(leading)
        follower.server.remove_leader(KEY)
        refused = await follower.ask(10, 1)
        assert refused.updates[0].refusal
        patient = FetchRequest("b", 7, False, [], [], int(PATIENCE_S * 10_000))
        waiting = asyncio.ensure_future(follower.server.fetch(patient))
        await asyncio.sleep(0)
        assert not waiting.done()
        follower.server.add_leader(leading)
        async with asyncio.timeout(PATIENCE_S):
            answer, frames = await waiting
        assert not answer.updates[0].refusal
        assert [parse_header(bytes(each)).base_offset for each in frames] == [10]

    asyncio.run(run())


def test_a_leadership_of_what_no_follower_asked_for_is_told_to_nobody(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = Follower(leading)
        follower.server.remove_leader(KEY)
        async with asyncio.timeout(PATIENCE_S):
            await follower.server.fetch(FetchRequest("b", 7, True, [], [], 1))
            follower.server.add_leader(leading)
            answer, frames = await follower.server.fetch(FetchRequest("b", 7, False, [], [], 1))
        assert (answer.updates, frames) == ([], [])

    asyncio.run(run())


class Many:
    """A node that leads partitions of one frame each, and the follower ``b`` of all of them."""

    def __init__(self, count: int) -> None:
        self.keys = [PartitionKey("t", 1, number) for number in range(count)]
        self.server = FetchServer(InlineExecutor(), ManualClock())
        for key in self.keys:
            logs = open_logs(Path("/t/0"), SimulatedDisk(), TopicSettings())
            append(logs.messages, [frame_of([b"v"])], epoch=1)
            progress = ReplicaProgress("a", LogOffsets(1, 0), in_sync=["a", "b"], min_insync=2)
            progress.set_replicas(["a", "b"], 0)
            self.server.add_leader(LeaderReplica(key, 2, logs, progress))
        self._is_new = True

    def position(self, number: int, end: int) -> Position:
        key, epoch = PartitionKey("t", 1, number), 1 if end else -1
        return Position(key, 2, LogOffsets(end, 0), LogOffsets(epoch, -1))

    async def fetch(
        self, positions: list[Position], *, forgotten: tuple[int, ...] = ()
    ) -> list[tuple[int, bool]]:
        """Return of which partitions there are updates, and whether they have frames."""
        keys = [PartitionKey("t", 1, number) for number in forgotten]
        request = FetchRequest("b", 7, self._is_new, positions, keys, 10)
        self._is_new = False
        async with asyncio.timeout(PATIENCE_S):
            answer, buffers = await self.server.fetch(request)
        sizes = [each.messages.frame_bytes for each in answer.updates if each.messages]
        assert sum(sizes) == sum(map(len, buffers))
        return [
            (each.key.number, each.messages is not None and each.messages.frame_bytes > 0)
            for each in answer.updates
        ]


def test_an_answer_has_so_many_partitions_and_the_next_ones_have_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "FETCH_PARTITIONS_MAX", 3)

    async def run() -> None:
        node = Many(7)
        found = [await node.fetch([node.position(number, 0) for number in range(7)])]
        found += [await node.fetch([]) for _ in range(3)]
        assert found == [
            [(0, True), (1, True), (2, True)],
            [(3, True), (4, True), (5, True)],
            [(6, True)],
            [],
        ]

    asyncio.run(run())


@pytest.mark.parametrize(("frames", "counts"), [(0, [1] * 5), (1, [1] * 5), (1.5, [2, 2, 1])])
def test_an_answer_ends_when_it_is_full_and_has_at_least_one_frame(
    frames: float, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FETCH_BYTES_MAX", int(frames * len(frame_of([b"v"]))))

    async def run() -> None:
        node = Many(5)
        found = [await node.fetch([node.position(number, 0) for number in range(5)])]
        found += [await node.fetch([]) for _ in counts[1:]]
        assert [len(each) for each in found] == counts
        assert [number for each in found for number, _ in each] == list(range(5))

    asyncio.run(run())


def test_what_a_follower_does_not_ask_for_any_more_is_not_answered() -> None:
    async def run() -> None:
        node = Many(2)
        assert await node.fetch([node.position(0, 0)]) == [(0, True)]
        assert await node.fetch([node.position(0, 1), node.position(1, 0)], forgotten=(1,)) == [
            (1, True)
        ], "it asks again in the same request"
        assert await node.fetch([], forgotten=(0, 1)) == []
        node.server.on_new_data(node.keys[0])
        assert await node.fetch([]) == []
        assert await node.fetch([node.position(9, 0)]) == [(9, False)], "not led here"

    asyncio.run(run())


def test_a_request_of_a_session_that_is_not_known_is_told_so_and_a_new_one_ends_the_old() -> None:
    async def run() -> None:
        node = Many(1)
        unknown, _ = await node.server.fetch(FetchRequest("b", 9, False, [], [], 10))
        assert unknown.is_unknown_session
        await node.fetch([node.position(0, 1)])
        await node.fetch([])
        held = asyncio.ensure_future(node.server.fetch(FetchRequest("b", 7, False, [], [], 60_000)))
        await asyncio.sleep(0)
        answer, _ = await node.server.fetch(FetchRequest("b", 8, True, [], [], 10))
        assert not answer.is_unknown_session
        async with asyncio.timeout(PATIENCE_S):
            ended, _ = await held
        assert ended.is_unknown_session
        again, _ = await node.server.fetch(FetchRequest("b", 7, False, [], [], 10))
        assert again.is_unknown_session

    asyncio.run(run())
