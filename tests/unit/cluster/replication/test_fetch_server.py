"""What a leader believes of a follower's logs: only what it knows to be a part of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from goq import limits
from goq.broker.partition.loader import PartitionLogs, open_logs
from goq.clock import ManualClock
from goq.cluster.replication.fetch_server import FetchServer
from goq.cluster.replication.leader import LeaderReplica, ReplicaBounds
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import FetchRequest, FetchResponse, PartitionKey, Position
from goq.config.topic import TopicSettings
from goq.storage.disk import RealDisk
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
        self._server = FetchServer(executor or ThreadPoolExecutor(1), ManualClock())
        self._server.add_leader(leading)
        leading.on_new_data = self._server.on_new_data
        leading.on_bounds_change = self._server.on_bounds_change
        self._is_new = True

    async def ask(self, end: int, epoch: int) -> FetchResponse:
        return await self._ask([Position(KEY, 2, LogOffsets(end, 0), LogOffsets(epoch, -1))])

    async def ask_again(self) -> FetchResponse:
        """Ask from the same position."""
        return await self._ask([])

    async def _ask(self, positions: list[Position]) -> FetchResponse:
        request = FetchRequest("b", 7, self._is_new, positions, [], 10)
        self._is_new = False
        async with asyncio.timeout(PATIENCE_S):
            answer, _ = await self._server.fetch(request)
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
        leading.set_in_sync(["a", "b"], 2)
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
