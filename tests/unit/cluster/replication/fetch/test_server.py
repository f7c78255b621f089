"""What a leader believes of a follower's logs: only what it knows to be a part of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from goq import limits
from goq.broker.partition.loader import PartitionLogs, open_logs
from goq.clock import ManualClock
from goq.cluster.replication.fetch.server import FetchServer
from goq.cluster.replication.leader import LeaderReplica, ReplicaBounds
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import FetchRequest, PartitionKey, Position
from goq.config.topic import TopicSettings
from goq.frame.header import parse_header
from tests.support.cluster.replication.fetching import (
    KEY,
    PATIENCE_S,
    Follower,
    leading_of,
    write_kept,
)
from tests.support.storage.disk import InlineExecutor, SimulatedDisk
from tests.support.storage.logs import append, frame_of


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
            write_kept(leading, which, [b"%d" % number])
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
        write_kept(leading, 0, [b"kept"])
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


def test_a_partition_that_is_led_no_more_keeps_nothing_in_memory(logs: PartitionLogs) -> None:
    leading = leading_of(logs)

    async def run() -> None:
        follower = Follower(leading)
        write_kept(leading, 0, [b"kept"])
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
