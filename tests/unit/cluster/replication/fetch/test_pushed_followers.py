"""Followers that are pushed what the leader writes, and what their reports count for."""

from __future__ import annotations

import asyncio

import pytest

from goq import limits
from goq.broker.log.recent_batches import BATCH_BYTES
from goq.broker.partition.loader import PartitionLogs
from goq.cluster.replication.leader import LeaderReplica
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import FetchRequest
from goq.cluster.replication.push.protocol import Push, decode_message
from goq.errors import InvalidFrame
from goq.frame.header import HEADER_BYTES, parse_header
from goq.storage.log.segment import WriteBatch
from tests.support.cluster.replication.fetching import Follower, leading_of, write_kept
from tests.support.storage.logs import frame_of


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
        write_kept(leading, 0, [b"not pushed"])
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
        write_kept(leading, 0, [b"pushed"])
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
        write_kept(leading, 0, [b"pushed"])
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
            write_kept(leading, 0, [b"x" * 1000])
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
