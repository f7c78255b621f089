"""When damaged replicas are repaired, how long a failed repair rests, and what is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from goq import limits
from goq.broker.partition.loader import PartitionLogs, open_logs
from goq.cluster.replication.follower import FollowerReplica
from goq.cluster.replication.leader import LeaderReplica
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.repair.manager import DamageReport, RepairManager
from goq.cluster.replication.repair.protocol import RepairRequest, RepairResponse, answer_repair
from goq.cluster.replication.replica import Replica, ReplicaAssignment, ReplicaLogs
from goq.config.topic import TopicSettings
from goq.errors import Unavailable
from goq.storage.compaction.checkpoint import (
    CleanerCheckpoint,
    read_checkpoint,
    write_checkpoint,
)
from goq.storage.log.log import Log
from goq.storage.log.repair import Gap, scan_segment
from goq.storage.log.rewrite_history import RewriteHistory
from goq.storage.log.segment import Segment
from tests.support.eventually import until
from tests.support.storage.disk import InlineExecutor, SimulatedDisk
from tests.support.storage.logs import append, frame_of, messages_of

KEY = PartitionKey("t", 1, 0)
THIS = (KEY.topic_id, KEY.number)
NODES = ("a", "b")


def logs_of(disk: SimulatedDisk, count: int) -> PartitionLogs:
    """Return logs with a sealed segment of some messages, each in its own frame."""
    logs = open_logs(Path("/t/0"), disk, TopicSettings())
    for number in range(count):
        append(logs.messages, [frame_of([b"%d" % number])])
    logs.messages.roll()
    return logs


class Node:
    """A node that holds one replica, and what its repair manager sees of it."""

    name = "a"

    def __init__(self, count: int = 3, *, others: int = 3) -> None:
        self.disk = SimulatedDisk(Random(1))
        self.executor: Executor = InlineExecutor()
        self.time_ms = 0
        self.asked = 0
        self.answers = True
        self.on_call: Callable[[], None] = lambda: None
        self.recorded = 0
        self.merged: list[int] = []
        self.has_compaction = False
        host: Any = self
        self.replica = Replica(KEY, Path("/t/0"), host)
        self.logs = self.replica.idle_logs = logs_of(self.disk, count)
        self.replicas = {KEY: self.replica}
        self.assign(damaged=())
        self._other = logs_of(SimulatedDisk(Random(2)), others)
        manager: Any = self
        self.repairs = RepairManager(manager, self._call)

    def assign(self, *, damaged: tuple[str, ...]) -> None:
        self.replica.assignment = ReplicaAssignment(None, 1, NODES, NODES, 1, 1, damaged)

    def damage(self, *offsets: int, is_known: bool = True) -> None:
        for offset in offsets:
            segment = next(s for s in self.logs.messages.segments if s.end_offset > offset)
            frame_bytes = segment.size_bytes // segment.message_count
            end = (offset + 1 - segment.base_offset) * frame_bytes
            self.disk.flip(segment.path, end - 10, 1)
            if is_known:
                scan_segment(self.logs.messages, segment)

    async def check(self) -> None:
        """Start the repairs that are due, and wait for them."""
        self.repairs.start_due_repairs()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)

    async def rest_ms(self) -> int:
        """Let time pass until the next repair has ended; return how much passed."""
        began_ms, asked = self.time_ms, self.asked
        while self.asked == asked:
            self.time_ms += 250
            await self.check()
        return self.time_ms - began_ms

    @staticmethod
    def fail_to_read(*_: object, **_options: object) -> memoryview:
        raise OSError("a bad sector")

    def offsets(self) -> list[int]:
        log = self.logs.messages
        return [v.header.base_offset for v in log.reader.read(0, log.end_offset).frames]

    def values(self) -> list[bytes | None]:
        log = self.logs.messages
        frames = log.reader.read(0, log.end_offset).frames
        return [message.value for view in frames for message in messages_of(bytes(view.buffer))]

    def add_segment(self, there: bytes = b"there", *, others: int = 3) -> None:
        """Add a sealed segment of three messages here, and one of others at the other node."""
        for logs, value, count in ((self.logs, b"here", 3), (self._other, there, others)):
            for _ in range(count):
                append(logs.messages, [frame_of([value])])
            logs.messages.roll()

    def report(self) -> DamageReport:
        (report,) = self.repairs.damage_reports()
        return report

    async def _call(self, _node: str, request: RepairRequest) -> tuple[RepairResponse, memoryview]:
        self.asked += 1
        self.on_call()
        if not self.answers:
            raise Unavailable("it is down")
        replica = ReplicaLogs(self._other, LogOffsets(self._other.messages.end_offset, 0))
        answer, data = answer_repair(request, replica, self.tiered_reader)
        return answer, memoryview(b"".join(data))

    # What a manager asks of the replicas of its node

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas.values())

    def get(self, key: PartitionKey) -> Replica | None:
        return self.replicas.get(key)

    async def in_thread(self, work: Callable[[], object]) -> object:
        return work()

    def now_ms(self) -> int:
        return self.time_ms

    def is_compacted(self, _key: PartitionKey) -> bool:
        return self.has_compaction

    async def record_segments(
        self, _key: PartitionKey, _logs: PartitionLogs, merged: Sequence[Segment] = ()
    ) -> None:
        self.recorded += 1
        self.merged += [segment.base_offset for segment in merged]

    @staticmethod
    def tiered_reader(_key: PartitionKey, _which: int, log: Log) -> Any:
        return log.reader


def test_damage_is_repaired_from_another_replica_and_told_before_and_after() -> None:
    async def run() -> None:
        node = Node()
        node.damage(1)
        assert node.offsets() == [0, 2]
        assert node.report() == DamageReport("t", 1, 0, 0)
        await node.check()
        assert node.repairs.damaged == frozenset()
        assert node.offsets() == [0, 1, 2]
        assert node.report() == DamageReport("t", 0, 0, 1)
        assert node.repairs.repaired_frames == 1
        assert node.recorded == 1

    asyncio.run(run())


def test_of_a_compacted_log_all_segments_up_to_the_damaged_one_are_those_of_another_replica() -> (
    None
):
    async def run() -> None:
        node = Node()
        node.has_compaction = True
        for _ in range(3):
            node.add_segment()
        node.damage(7)
        node.answers = False
        await node.check()
        assert node.values() == [b"0", b"1", b"2", *[b"here"] * 8]
        assert node.recorded == 0
        node.answers = True
        node.time_ms += 1000
        await node.check()
        assert node.values() == [b"0", b"1", b"2", *[b"there"] * 6, *[b"here"] * 3]
        assert node.report() == DamageReport("t", 0, 0, 9)
        assert node.recorded == 3  # segments

    asyncio.run(run())


def test_segments_of_another_replica_do_not_count_as_seen_by_compaction() -> None:
    async def run() -> None:
        node = Node()
        node.has_compaction = True
        for _ in range(3):
            node.add_segment()
        directory = node.logs.messages.directory
        write_checkpoint(node.disk, directory, CleanerCheckpoint(12, 0))
        node.damage(7)
        await node.check()
        assert node.report().damaged_gaps == 0
        assert read_checkpoint(node.disk, directory) == CleanerCheckpoint()

    asyncio.run(run())


def test_damage_in_the_active_segment_of_a_compacted_log_is_repaired_once_it_is_sealed() -> None:
    async def run() -> None:
        node = Node()
        node.has_compaction = True
        node.add_segment(b"other")
        for logs in (node.logs, node._other):
            for _ in range(2):
                append(logs.messages, [frame_of([b"last"])])
        node.damage(4)
        node.damage(6, is_known=False)
        await node.check()
        assert node.values() == [b"0", b"1", b"2", *[b"other"] * 3, b"last", b"last"]
        assert node.repairs.damaged == frozenset()
        assert node.logs.messages.active.base_offset == 8
        assert node.recorded == 3  # each segment was copied once

    asyncio.run(run())


def test_a_compacted_segment_that_no_other_replica_has_whole_is_not_copied(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        node = Node()
        node.has_compaction = True
        node.add_segment(others=1)
        node.damage(3)
        await node.check()
        assert node.offsets() == [0, 1, 2, 4, 5]
        assert node.repairs.damaged == {THIS}
        assert "b: it has no frames of offsets" in caplog.text
        assert await node.rest_ms() == 500

    asyncio.run(run())


def test_segments_that_another_replica_has_merged_are_one_segment_here_too() -> None:
    async def run() -> None:
        node = Node(others=0)
        node.has_compaction = True
        for _ in range(3):
            node.add_segment(others=0)
        for values in ([b"p"] * 2, [b"q"] * 2, [b"r"] * 2, [b"s"] * 6):  # 0, 2, 4 and 6
            append(node._other.messages, [frame_of(values)])
        node._other.messages.roll()
        node.damage(4)
        assert node.repairs.damaged == frozenset()
        await node.check()
        log = node.logs.messages
        assert [each.base_offset for each in log.segments] == [0, 6, 9, 12]
        assert node.values() == [b"p", b"p", b"q", b"q", b"r", b"r", *[b"here"] * 6]
        assert node.merged == [3]
        assert node.repairs.damaged == frozenset()
        assert node.report().damaged_gaps == 0
        log.close()
        reopened = Log.open(log.directory, node.disk)
        assert [each.base_offset for each in reopened.segments] == [0, 6, 9, 12]
        assert not reopened.damage

    asyncio.run(run())


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_replica_is_not_copied_in_part_before_a_rewrite_and_in_part_after_it(
    *, is_reopened: bool
) -> None:
    async def run() -> None:
        node = Node()
        node.has_compaction = True
        node.add_segment()
        node.damage(4)
        other = node._other.messages

        def rewrite() -> None:
            if node.asked == 3 and is_reopened:  # after a rewrite, which it counts no more
                other.rewrites = RewriteHistory(other.segments)
            elif node.asked == 3:
                other.rewrites.record(other.segments[0])

        node.on_call = rewrite
        await node.check()
        assert node.values() == [b"0", b"1", b"2", b"here", b"here"]
        assert node.repairs.damaged == {THIS}
        await node.rest_ms()
        assert node.values()[-3:] == [b"there"] * 3
        assert node.repairs.damaged == frozenset()

    asyncio.run(run())


def test_damage_in_the_active_segment_is_repaired_and_the_log_goes_on_in_another() -> None:
    async def run() -> None:
        node = Node()
        for logs in (node.logs, node._other):
            append(logs.messages, [frame_of([b"last"])])
        node.damage(3)
        await node.check()
        assert node.repairs.damaged == frozenset()
        append(node.logs.messages, [frame_of([b"new"])])
        assert node.values() == [b"0", b"1", b"2", b"last", b"new"]
        assert node.logs.messages.active.base_offset == 4

    asyncio.run(run())


def test_of_a_gap_that_another_replica_has_in_part_the_rest_is_still_known_as_damage() -> None:
    async def run() -> None:
        node = Node(4, others=2)
        (segment, _) = node.logs.messages.segments
        frame_bytes = segment.size_bytes // 4
        for number in (1, 2):  # their headers: nothing says where the one ends
            node.disk.flip(segment.path, number * frame_bytes, 1)
        scan_segment(node.logs.messages, segment)
        (damage,) = node.logs.messages.damage
        assert (damage.start_offset, damage.end_offset) == (1, 3)
        await node.check()
        assert node.report() == DamageReport("t", 1, 1, 1)
        (left,) = node.logs.messages.damage
        assert (left.start_offset, left.end_offset) == (2, 3)
        assert node.offsets() == [0, 1, 3]
        assert node.repairs.damaged == frozenset()

    asyncio.run(run())


def test_damage_that_a_repair_leaves_as_it_is_rests_until_the_next_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        node = Node()
        node.damage(1)
        repaired: list[int] = []

        async def change_nothing(*_: object) -> None:
            repaired.append(node.time_ms)
            assert len(repaired) < 10, "without a rest"

        cast(Any, node.repairs)._repair._repair_segment = change_nothing
        for _ in range(6):
            await node.check()
            node.time_ms += 250
        assert repaired == [0, 500]
        assert node.repairs.damaged == {THIS}
        assert "is damaged and not repaired yet: /t/0/messages" in caplog.text

    asyncio.run(run())


def test_a_follower_is_repaired_while_it_stores_nothing() -> None:
    async def run() -> None:
        node = Node()
        node.damage(1)
        follower = FollowerReplica(KEY, 1, node.logs, lambda log, _offset: log)
        node.replica.idle_logs, node.replica.as_follower = None, follower
        storing = asyncio.Event()
        held = asyncio.ensure_future(follower.log_lock.run(storing.wait))
        await asyncio.sleep(0)
        node.repairs.start_due_repairs()
        for _ in range(20):
            await asyncio.sleep(0)
        assert node.offsets() == [0, 2]
        storing.set()
        await held
        await node.check()
        assert node.offsets() == [0, 1, 2]
        assert node.repairs.repaired_frames == 1

    asyncio.run(run())


@pytest.mark.parametrize("has_compaction", [False, True])
def test_a_replica_that_leads_while_another_is_asked_is_left_alone(has_compaction: bool) -> None:
    """It has the same logs open as before, and writes them itself."""

    async def run() -> None:
        node = Node()
        node.has_compaction = has_compaction
        node.damage(1)
        asked = node._call

        async def call(*request: Any) -> tuple[RepairResponse, memoryview]:
            answer = await asked(*request)
            progress = ReplicaProgress("a", LogOffsets(3, 0), in_sync=NODES, min_insync=1)
            node.replica.as_leader = LeaderReplica(KEY, 1, node.logs, progress)
            return answer

        node.repairs = RepairManager(cast(Any, node), call)
        await node.check()
        assert node.offsets() == [0, 2]
        assert (node.recorded, node.repairs.repaired_frames) == (0, 0)

    asyncio.run(run())


@pytest.mark.parametrize("has_compaction", [False, True])
def test_a_replica_that_is_closed_while_another_is_asked_is_left_alone(
    has_compaction: bool,
) -> None:
    async def run() -> None:
        node = Node()
        node.has_compaction = has_compaction
        node.damage(1)
        asked = node._call

        async def call(*request: Any) -> tuple[RepairResponse, memoryview]:
            answer = await asked(*request)
            node.replica.idle_logs = None
            return answer

        node.repairs = RepairManager(cast(Any, node), call)
        await node.check()
        assert node.offsets() == [0, 2]
        assert (node.recorded, node.repairs.repaired_frames) == (0, 0)
        node.replica.idle_logs = node.logs
        assert await node.rest_ms() == 500

    asyncio.run(run())


def test_a_replica_without_damage_asks_nobody_and_is_told_of_as_neither() -> None:
    async def run() -> None:
        node = Node()
        await node.check()
        assert (node.asked, node.repairs.damaged, node.repairs.repaired) == (0, set(), set())

    asyncio.run(run())


def test_a_damaged_leader_is_told_and_repaired_only_when_it_leads_no_more() -> None:
    async def run() -> None:
        node = Node()
        node.damage(1)
        progress = ReplicaProgress("a", LogOffsets(3, 0), in_sync=NODES, min_insync=1)
        node.replica.as_leader = LeaderReplica(KEY, 1, node.logs, progress)
        await node.check()
        assert node.repairs.damaged == {THIS}
        assert node.asked == 0
        node.replica.as_leader = None
        await node.check()
        assert node.offsets() == [0, 1, 2]

    asyncio.run(run())


def test_a_repair_that_fails_rests_twice_as_long_each_time_up_to_a_bound() -> None:
    async def run() -> None:
        node = Node()
        node.damage(1)
        node.answers = False
        await node.check()
        assert [await node.rest_ms() for _ in range(8)] == [
            *(500 * 2**n for n in range(6)),
            30_000,
            30_000,
        ]
        node.answers = True
        await node.rest_ms()
        assert node.offsets() == [0, 1, 2]
        node.damage(2)
        node.answers = False
        await node.check()
        assert await node.rest_ms() == 500

    asyncio.run(run())


def test_what_no_replica_has_is_lost_and_the_replica_counts_as_whole_as_it_can_be() -> None:
    async def run() -> None:
        node = Node(others=1)
        node.damage(1)
        node.assign(damaged=("a",))
        await node.check()
        assert node.offsets() == [0, 2]
        assert node.report() == DamageReport("t", 1, 1, 0)
        assert node.replica.lost_gaps.cover(0, *Gap(1, 2))
        await node.check()
        assert (node.repairs.damaged, node.repairs.repaired) == (set(), {THIS})
        assert node.asked == 1

    asyncio.run(run())


def test_a_gap_that_others_have_in_part_is_repaired_in_part_and_the_rest_is_lost() -> None:
    async def run() -> None:
        node = Node(5, others=2)
        node.damage(1, 2)
        await node.check()
        assert node.offsets() == [0, 1, 3, 4]
        assert node.report() == DamageReport("t", 1, 1, 1)
        await node.check()
        assert node.asked == 2

    asyncio.run(run())


def test_a_replica_that_the_cluster_counts_as_damaged_is_read_whole_and_repaired() -> None:
    """Its damage was found in an earlier run, which this one knows nothing of."""

    async def run() -> None:
        node = Node()
        node.damage(2, is_known=False)
        node.assign(damaged=("b",))
        await node.check()
        assert node.report() == DamageReport("t", 0, 0, 0)
        node.assign(damaged=("a",))
        assert node.repairs.repaired == frozenset()
        await node.check()
        assert node.report() == DamageReport("t", 0, 0, 1)
        assert node.repairs.repaired == {THIS}
        node.assign(damaged=())
        await node.check()
        assert node.repairs.repaired == frozenset()

    asyncio.run(run())


def test_damage_of_a_replica_that_was_whole_is_repaired_too() -> None:
    async def run() -> None:
        node = Node()
        node.assign(damaged=("a",))
        await node.check()
        assert node.repairs.repaired == {THIS}
        node.damage(0)
        await node.check()
        assert node.offsets() == [0, 1, 2]

    asyncio.run(run())


def test_the_repair_of_a_replica_that_is_removed_ends_and_so_do_all_at_the_end() -> None:
    async def run() -> None:
        for is_removed in (True, False):
            node = Node()
            node.damage(1)
            hung = asyncio.Event()
            cancelled = asyncio.Event()

            async def hang(
                _work: object, hung: asyncio.Event = hung, cancelled: asyncio.Event = cancelled
            ) -> object:
                hung.set()
                try:
                    return await asyncio.Event().wait()
                finally:
                    cancelled.set()

            node.repairs._repair._in_thread = hang
            node.repairs.start_due_repairs()
            await hung.wait()
            if is_removed:
                node.replicas.clear()
                node.repairs.start_due_repairs()
                await cancelled.wait()
            else:
                await node.repairs.close()
                assert cancelled.is_set()
            assert node.repairs.damaged == (frozenset() if is_removed else {THIS})

    asyncio.run(run())


def test_what_nobody_reads_is_scrubbed_again_and_again_and_a_bad_disk_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "SCRUB_PAUSE_S", 0)
    monkeypatch.setattr(limits, "SCRUB_BYTES_PER_S", 2**60)

    async def run() -> None:
        node = Node()
        scrubbing = asyncio.ensure_future(node.repairs.scrub())
        node.damage(1, is_known=False)
        await until(lambda: node.report().damaged_gaps)
        read = node.disk.read
        monkeypatch.setattr(node.disk, "read", node.fail_to_read)
        await until(lambda: "cannot be read" in caplog.text)
        monkeypatch.setattr(node.disk, "read", read)
        node.damage(2, is_known=False)
        await until(lambda: not node.offsets()[1:])
        scrubbing.cancel()

    asyncio.run(run())
