"""When a compaction pass is due, how it rests, and what an exchange of segments is told to."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.partition import compactor as compactor_module
from goq.broker.partition.compactor import CompactionResources, CompactionStopped, Compactor
from goq.clock import ManualClock
from goq.config.topic import TopicSettings
from goq.delivery.events.event import Compacted
from goq.errors import PartitionOffline
from goq.storage.compaction.checkpoint import CleanerCheckpoint, write_checkpoint
from goq.storage.log.segment import Segment
from tests.support.broker.context import context_on
from tests.support.storage.disk import InlineExecutor, SimulatedDisk

NOW_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000
MEANS = CompactionResources(InlineExecutor(), b"secret", 100, NOW_US)
SETTINGS = TopicSettings(tombstone_age_ms=3_600_000, segment_age_ms=1_000)
FOLDER = Path("/t/0/messages")


def segment(base: int, *, size_bytes: int = 100, first_us: int = NOW_US) -> Segment:
    made = Segment(FOLDER, base)
    made.end_offset, made.size_bytes, made.first_time_us = base + 10, size_bytes, first_us
    return made


class Case:
    """A compactor of a log of two sealed segments and the active one."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.disk = SimulatedDisk()
        self.disk.make_dir(FOLDER)
        self.loop = SimpleNamespace(time=lambda: self.now_s)
        self.now_s = 0.0
        self.failed = ""
        self.directory = FOLDER
        self.segments = [segment(0), segment(10), segment(20)]
        self.is_there, self.offline = True, False
        self.reader = SimpleNamespace(max_time_us_before=lambda _segment: 5)
        made: Any = Compactor.__new__(Compactor)
        self.compactor = made
        made.progress, made._dirty_us = None, None
        made._identity = "t:0"
        made._context = context_on(
            self.disk,
            clock=ManualClock(NOW_US),
            on_seal=lambda *given: self.steps.append(("sealed", *given)),
        )
        made._messages = SimpleNamespace(log=self)
        made._cached = SimpleNamespace(clear=lambda: self.steps.append("cache cleared"))
        made._record = self._record
        made._stopping, made._idle, made._rested_s = threading.Event(), asyncio.Event(), 0.0
        made._idle.set()

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    def replace_segments(self, old: list[Segment], new: Segment) -> bool:
        self.steps.append(("replace", [each.base_offset for each in old], new.base_offset))
        return self.is_there

    def _record(self, events: Any) -> None:
        self.steps.append(("record", *events))
        if self.offline:
            raise PartitionOffline("partition 0 is offline")

    def is_due(self, settings: TopicSettings = SETTINGS) -> bool:
        async def run() -> bool:
            self.compactor._loop = asyncio.get_running_loop()
            found: bool = await self.compactor.is_due(settings, MEANS)
            return found

        return asyncio.run(run())


def test_a_pass_is_due_when_half_of_what_is_sealed_was_read_by_none() -> None:
    case = Case()
    assert case.is_due()
    assert case.compactor.progress == CleanerCheckpoint()
    for compacted_to, is_due in ((10, True), (11, False), (20, False)):
        case.compactor.progress = CleanerCheckpoint(compacted_to)
        assert case.is_due() is is_due


def test_progress_is_read_once_and_that_of_another_log_counts_for_nothing() -> None:
    case = Case()
    write_checkpoint(case.disk, FOLDER, CleanerCheckpoint(20, 7))
    assert not Case().failed
    case.is_due()
    assert case.compactor.progress == CleanerCheckpoint(20, 7)
    write_checkpoint(case.disk, FOLDER, CleanerCheckpoint(10, 7))
    case.is_due()
    assert case.compactor.progress == CleanerCheckpoint(20, 7)
    case.compactor.progress = CleanerCheckpoint(21, 7)
    assert case.is_due()
    assert case.compactor.progress == CleanerCheckpoint()


def test_a_pass_is_due_when_a_tombstone_or_a_segment_that_none_has_read_is_old_enough() -> None:
    case = Case()
    for tombstone_us, is_due in ((NOW_US - HOUR_US + 1, False), (NOW_US - HOUR_US, True)):
        case.compactor.progress = CleanerCheckpoint(20, tombstone_us)
        assert case.is_due() is is_due
        assert case.compactor.due_us(SETTINGS) == tombstone_us + HOUR_US
    case.compactor.progress = CleanerCheckpoint(15)
    for first_us, is_due in ((NOW_US - HOUR_US + 1, False), (NOW_US - HOUR_US, True)):
        case.segments[1].first_time_us = first_us
        assert case.is_due() is is_due
        assert case.compactor.due_us(SETTINGS) == first_us + HOUR_US
    lazy = TopicSettings(tombstone_age_ms=1_000, segment_age_ms=7_200_000)
    assert case.compactor.due_us(lazy) == case.segments[1].first_time_us + 2 * HOUR_US
    case.compactor.progress = CleanerCheckpoint(20)
    assert not case.is_due()
    assert case.compactor.due_us(SETTINGS) is None
    case.compactor.progress = None
    assert case.compactor.due_us(SETTINGS) is None


def test_no_pass_is_due_for_a_log_that_failed_or_is_closing() -> None:
    failed, closing = Case(), Case()
    failed.failed = "its disk failed"
    closing.compactor._stopping.set()
    assert not failed.is_due()
    assert not closing.is_due()


@pytest.mark.parametrize("outcome", [3, CompactionStopped(), OSError("bad")])
def test_a_pass_is_over_whatever_ends_it_and_who_stops_it_waits_for_that(
    outcome: int | Exception,
) -> None:
    async def run() -> None:
        case = Case()
        go_on = asyncio.Event()

        async def work(*_: object) -> int:
            await go_on.wait()
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        case.compactor._run = work
        running = asyncio.ensure_future(case.compactor.run(SETTINGS, MEANS))
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(case.compactor.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        go_on.set()
        await stopping
        (found,) = await asyncio.gather(running, return_exceptions=True)
        assert found == (0 if isinstance(outcome, CompactionStopped) else outcome)
        assert await case.compactor.run(SETTINGS, MEANS) == 0

    asyncio.run(run())


def test_a_pass_rests_for_as_long_as_it_has_worked() -> None:
    case, waits = Case(), list[float]()
    compactor = case.compactor
    compactor._loop = case.loop
    is_stopping = False

    def wait(seconds: float) -> bool:
        waits.append(round(seconds, 6))
        case.now_s += seconds
        return is_stopping

    compactor._stopping = SimpleNamespace(wait=wait)
    for worked_s in (0.0005, 0.001, 0.0005, 0.004):
        case.now_s += worked_s
        compactor._pause()
    assert waits == [0.002, 0.004]
    is_stopping = True
    case.now_s += 0.5
    with pytest.raises(CompactionStopped):
        compactor._pause()


@pytest.mark.parametrize(("is_there", "offline"), [(True, False), (True, True), (False, False)])
def test_a_new_segment_takes_the_place_of_the_old_one_unless_retention_was_faster(
    monkeypatch: pytest.MonkeyPatch, is_there: bool, offline: bool
) -> None:
    case = Case()
    case.is_there, case.offline = is_there, offline
    old, new = case.segments[0], segment(0)
    monkeypatch.setattr(compactor_module, "rewrite_segment", lambda *_, **__: new)
    monkeypatch.setattr(compactor_module, "install_generation", lambda *_: None)
    for name, each in (("old", old), ("new", new)):
        each.remove = lambda _disk, name=name: case.steps.append(f"{name} removed")
    unused: Any = None

    async def run() -> bool:
        case.compactor._loop = asyncio.get_running_loop()
        found: bool = await case.compactor._rewrite(old, unused, unused, InlineExecutor())
        return found

    assert asyncio.run(run()) is is_there
    told = [
        "cache cleared",
        ("sealed", "t:0", "messages", new),
        ("record", Compacted(0, 10)),
        "old removed",
    ]
    assert case.steps == [("replace", [0], 0), *(told if is_there else ["new removed"])]
