"""A follower deletes what its leader has deleted: archived first, whole, until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goq.cluster.replication import follower_retention
from goq.cluster.replication.follower import SealedSegment
from goq.cluster.replication.follower_retention import FollowerRetention
from goq.cluster.replication.protocol import PartitionKey
from goq.errors import StorageFull
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.segment import Segment
from tests.support.broker.harness import run
from tests.support.eventually import until
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import append, frame_of

KEY = PartitionKey("t", 1, 0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_retention, "_PAUSE_S_MIN", 0.001)
    monkeypatch.setattr(follower_retention, "_PAUSE_S_MAX", 0.002)


class Lock:
    def __init__(self) -> None:
        self.is_held = False

    async def run(self, work: Callable[[], Any]) -> Any:
        self.is_held = True
        try:
            return await work()
        finally:
            self.is_held = False


class Node:
    """A follower of two logs, whose expired segments are given; its manifest and its archive."""

    def __init__(self, *, is_archived: bool = False, segments: int = 3) -> None:
        self.key = KEY
        self.logs = [self._log(name) for name in ("messages", "events")]
        self.expired = [
            SealedSegment(which, segment)
            for which in (0, 1)
            for segment in self.logs[which].segments[:segments]
        ]
        self.manifest_lock = asyncio.Lock()
        self.log_lock = Lock()
        self.steps: list[tuple[str, str, int]] = []
        self.faults: list[Exception] = []
        self.archiving: asyncio.Event | None = None
        self.needs_repair = set[int]()
        self.refusals: list[Exception] = []
        self.has_detached = False
        manifest: Any = SimpleNamespace(
            is_archived=lambda _key: is_archived, archive_segment=self._archive, remove=self._remove
        )
        follower: Any = self
        self.retention = FollowerRetention(
            follower, manifest, self._in_thread, lambda _key, each: self._is_bad(each)
        )

    @staticmethod
    def _log(name: str) -> Log:
        log = Log.open(Path("/t/0") / name, SimulatedDisk(), LogConfig(segment_bytes=1))
        for _ in range(5):
            append(log, [frame_of([b"v"])])
        return log

    def _is_bad(self, each: SealedSegment) -> bool:
        return each.segment.base_offset in self.needs_repair

    async def _in_thread(self, work: Callable[[], object]) -> object:
        return work()

    def expired_segment(self) -> SealedSegment | None:
        return self.expired[0] if self.expired else None

    async def _archive(self, key: PartitionKey, log: str, segment: Segment) -> None:
        assert key == KEY
        if self.faults:
            raise self.faults.pop()
        if self.archiving is not None:
            await self.archiving.wait()
        self.steps.append(("archive", log, segment.base_offset))

    async def _remove(self, key: PartitionKey, log: str, segments: list[Segment]) -> None:
        assert (key, self.manifest_lock.locked(), self.log_lock.is_held) == (KEY, True, False)
        self.steps += [("forget", log, each.base_offset) for each in segments]

    def delete_segment(self, which: int, segment: Segment) -> None:
        assert (self.manifest_lock.locked(), self.log_lock.is_held) == (True, True)
        assert self.expired.pop(0) == (which, segment)
        self.has_detached = bool(self.refusals)
        if self.refusals:
            raise self.refusals.pop()
        self.steps.append(("delete", ("messages", "events")[which], segment.base_offset))

    def remove_detached(self) -> None:
        assert self.log_lock.is_held
        if self.refusals:
            raise self.refusals.pop()
        self.has_detached = False
        self.steps.append(("remove", "", 0))


def steps_of(log: str, offset: int) -> list[tuple[str, str, int]]:
    return [(step, log, offset) for step in ("archive", "forget", "delete")]


def test_every_expired_segment_is_archived_forgotten_and_deleted_in_turn() -> None:
    async def test() -> None:
        node = Node()
        assert not node.retention.is_done
        await until(lambda: node.retention.is_done)
        assert node.steps == [
            step for log in ("messages", "events") for n in range(3) for step in steps_of(log, n)
        ]

    run(test())


@pytest.mark.parametrize("fault", [StorageFull("full"), OSError("broken")])
def test_what_cannot_be_archived_is_kept_and_tried_again(fault: Exception) -> None:
    async def test() -> None:
        node = Node(segments=1)
        node.faults = [fault, fault, fault]
        await until(lambda: node.retention.is_done)
        assert node.steps == [*steps_of("messages", 0), *steps_of("events", 0)]

    run(test())


def test_files_of_a_deleted_segment_that_could_not_be_removed_are_removed_by_the_next_try() -> None:
    async def test() -> None:
        node = Node(segments=1)
        node.expired = node.expired[:1]
        node.refusals = [OSError("no descriptors"), OSError("no descriptors")]
        await until(lambda: node.retention.is_done)
        archived = steps_of("messages", 0)[:2]
        assert node.steps == [*archived, ("remove", "", 0)]

    run(test())


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower_retention, "_PAUSE_S_MIN", 1.0)
    monkeypatch.setattr(follower_retention, "_PAUSE_S_MAX", 5.0)

    async def test() -> None:
        node = Node(segments=1)
        node.faults = [StorageFull("full")] * 5
        pauses_s: list[float] = []

        async def pause(_stopped: asyncio.Event, seconds: float) -> None:
            pauses_s.append(seconds)

        async def remove(_key: PartitionKey, log: str, _segments: list[Segment]) -> None:
            if log == "messages":
                node.faults = [StorageFull("full")] * 2

        monkeypatch.setattr(follower_retention, "wait_for_event", pause)
        monkeypatch.setattr(node.retention._manifest, "remove", remove)
        await until(lambda: node.retention.is_done)
        assert pauses_s == [1, 2, 4, 5, 5, 1, 2]

    run(test())


def test_a_segment_that_can_be_repaired_waits_for_that_before_it_is_archived() -> None:
    async def test() -> None:
        node = Node(is_archived=True, segments=2)
        node.needs_repair = {1}
        await until(lambda: len(node.steps) == 3)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert node.steps == steps_of("messages", 0)
        node.needs_repair.clear()
        await until(lambda: node.retention.is_done)
        assert len(node.steps) == 12

    run(test())


def test_without_an_archive_no_repair_is_waited_for() -> None:
    async def test() -> None:
        node = Node(segments=2)
        node.needs_repair = {0, 1}
        await until(lambda: node.retention.is_done)
        assert len(node.steps) == 12

    run(test())


def test_damage_that_is_found_after_it_was_archived_keeps_a_segment() -> None:
    async def test() -> None:
        node = Node(is_archived=True, segments=1)
        node.archiving = asyncio.Event()
        for _ in range(5):
            await asyncio.sleep(0)
        node.needs_repair = {0}
        node.archiving.set()
        await until(lambda: node.steps)
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert {step for step, _, _ in node.steps} == {"archive"}
        await node.retention.stop()

    run(test())


def test_damage_that_nobody_has_read_is_found_before_a_segment_is_archived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        node = Node(is_archived=True, segments=2)
        monkeypatch.setattr(node, "_is_bad", lambda each: bool(node.logs[each.which].damage))
        log, segment = node.logs[0], node.expired[0].segment
        disk: Any = log.reader.disk
        disk.flip(segment.path, segment.size_bytes - 1, 1)
        await until(lambda: log.damage)
        await node.retention.stop()
        assert node.steps == []

    run(test())


def test_who_stops_waits_for_no_archive_and_nothing_is_deleted_then() -> None:
    async def test() -> None:
        node = Node()
        node.archiving = asyncio.Event()
        await asyncio.sleep(0.001)
        await node.retention.stop()
        assert node.retention.is_done
        assert node.steps == []
        waiting = Node()
        waiting.faults = [StorageFull("full")] * 10_000
        await asyncio.sleep(0.001)
        await waiting.retention.stop()
        assert waiting.retention.is_done
        assert waiting.steps == []

    run(test())
