"""What retention removes of the two logs, and where the first message is that compaction left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.partition.trimmer import Trimmer, first_kept_offset
from goq.broker.partition_context import PartitionId
from goq.clock import ManualClock
from goq.delivery.events.event import Trimmed
from goq.errors import StorageFull
from goq.frame.encoder import Columns, encode_frame
from goq.storage.compaction.cleaner import OffsetMap, build_offset_map
from goq.storage.compaction.segment_rewriter import (
    CleanerParameters,
    install_generation,
    plan_rewrite,
    rewrite_segment,
)
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.segment import Segment
from tests.support.broker.context import context_on
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, append, frame_of


class _Case:
    """A log of keys, a frame for each word, and its compaction."""

    def __init__(self, *segments: str) -> None:
        self.disk = SimulatedDisk()
        self.log = Log.open(DIRECTORY, self.disk)
        for number, words in enumerate(segments):
            if number:
                self.log.roll()
            for word in words.split():
                keys = [letter.encode() for letter in word]
                append(self.log, [encode_frame(Columns([b"v"] * len(keys), keys))])

    def compact(self) -> None:
        """Remove from the first segment what later messages replace."""
        newest = OffsetMap(0, secret=bytes(16), keys_max=100)
        build_offset_map(self.log.reader, newest, self.log.end_offset, lambda: None)
        terms, segment = CleanerParameters(newest, 0, 0, lambda: None), self.log.segments[0]
        found = plan_rewrite(self.disk, segment, terms)
        new = rewrite_segment(self.disk, segment, found, terms, time_before_us=0)
        install_generation(self.disk, new)
        assert self.log.replace_segments([segment], new)

    def damage(self, place: int) -> None:
        """Damage a byte of the first segment, counted from its end."""
        first = self.log.segments[0]
        self.disk.flip(first.path, first.size_bytes - place, 1)


def test_the_first_message_is_behind_those_that_compaction_removed() -> None:
    for segments, first in (
        (("aab", "c"), 1),
        (("ab ab", "c"), 2),
        (("ab", "ab"), 2),
        (("ab cd", "ab"), 2),
        (("abc", "ab"), 2),
        (("ab", "c"), 0),
    ):
        case = _Case(*segments)
        assert first_kept_offset(case.log) == 0
        if first:
            case.compact()
        assert first_kept_offset(case.log) == first, segments


def test_the_search_goes_on_from_an_earlier_result() -> None:
    case = _Case("abc", "ab")
    assert first_kept_offset(case.log, 1) == 1
    case.compact()
    assert [first_kept_offset(case.log, known) for known in (1, 2)] == [2, 2]


def test_messages_that_are_damaged_count_as_there() -> None:
    case = _Case("ab ab abc", "abc")
    case.compact()
    assert first_kept_offset(case.log) == 7
    case.damage(1)
    assert first_kept_offset(case.log) < 7


NOW_US = 1_700_000_000_000_000
AGE_US = 1_000_000


class Writer:
    """The writer of a log, whose exclusive work is done at once."""

    def __init__(self, log: Log) -> None:
        self.log = log

    async def run_exclusive(self, work: Callable[[], None]) -> None:
        work()


class Case:
    """A trimmer of both logs of a partition: three sealed segments of a message, and the active."""

    def __init__(self, *, is_empty: bool = False) -> None:
        self.steps: list[Any] = []
        config = LogConfig(segment_bytes=1)
        self.disk = SimulatedDisk()
        self.messages = Log.open(Path("/t/0/messages"), self.disk, config)
        for number in range(0 if is_empty else 4):
            append(self.messages, [frame_of([b"v"])], time_us=NOW_US + number)
        self.clock = ManualClock(NOW_US)
        context = context_on(
            self.disk,
            clock=self.clock,
            on_seal=lambda *given: self.steps.append(("sealed", *given[1:])),
        )
        events: Any = SimpleNamespace(record=self._record, commit=Writer(self.messages))
        writer: Any = Writer(self.messages)
        self.trimmer = Trimmer(PartitionId("t", 0), context, writer, events)

    async def _record(self, events: list[Any], *, is_vital: bool) -> None:
        assert is_vital, "it makes room on a full disk"
        self.steps.append(*events)

    async def forget(self, segments: Sequence[Segment]) -> None:
        there = [each.path.name in self.disk.names(each.path.parent) for each in segments]
        assert all(there), "files go after the manifest has forgotten them"
        self.steps.append([each.base_offset for each in segments])


@pytest.mark.parametrize(("offset", "end"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (100, 3)])
def test_sealed_segments_are_deleted_as_far_as_they_end_before_an_offset(
    offset: int, end: int
) -> None:
    case = Case()
    assert case.trimmer.trimmed_end(offset) == end
    deleted = asyncio.run(case.trimmer.trim(offset, case.forget))
    assert [each.base_offset for each in deleted] == list(range(end))
    assert case.messages.start_offset == end
    assert case.steps == ([Trimmed(end), list(range(end))] if end else [])
    assert not any(each.path.name in case.disk.names(each.path.parent) for each in deleted)


def test_what_could_not_be_removed_is_removed_by_the_next_try() -> None:
    case, is_full = Case(), True

    async def forget(_segments: Sequence[Segment]) -> None:
        if is_full:
            raise StorageFull("no room")
        case.steps.append("forgotten")

    async def run() -> None:
        nonlocal is_full
        with pytest.raises(StorageFull):
            await case.trimmer.trim(2, forget)
        assert case.messages.start_offset == 2
        first = case.disk.names(case.messages.directory)
        is_full = False
        await case.trimmer.finish()
        await case.trimmer.finish()
        assert len(case.disk.names(case.messages.directory)) < len(first)

    asyncio.run(run())
    assert case.steps == [Trimmed(2), "forgotten"]


def test_two_trims_at_once_remove_each_file_once() -> None:
    case = Case()

    async def forget(segments: Sequence[Segment]) -> None:
        await case.forget(segments)
        await asyncio.sleep(0)

    async def run() -> None:
        await asyncio.gather(case.trimmer.trim(1, forget), case.trimmer.trim(3, forget))

    asyncio.run(run())
    assert case.steps == [Trimmed(1), [0], Trimmed(3), [1, 2]]
    assert [each.base_offset for each in case.messages.segments] == [3]


@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize(("passed_us", "is_rolled"), [(AGE_US + 2, False), (AGE_US + 3, True)])
def test_the_active_segment_is_sealed_when_its_first_message_has_the_age(
    is_loaded: bool, passed_us: int, is_rolled: bool
) -> None:
    case = Case()
    active = case.messages.active
    assert active.first_time_us == NOW_US + 3
    if not is_loaded:
        active.first_time_us = None
    case.clock.now_us = NOW_US + passed_us
    again_us = asyncio.run(case.trimmer.roll_if_old(AGE_US))
    assert (case.messages.active is not active) is is_rolled
    assert case.steps == [("sealed", "messages", active)] * is_rolled
    assert again_us == (case.clock.now_us if is_rolled else NOW_US + 3) + AGE_US


def test_an_empty_segment_is_not_sealed_however_old_it_is() -> None:
    case = Case(is_empty=True)
    case.clock.now_us = NOW_US + 10 * AGE_US
    assert asyncio.run(case.trimmer.roll_if_old(AGE_US)) == NOW_US + 11 * AGE_US
    asyncio.run(case.trimmer.roll())
    assert case.steps == []
    assert len(case.trimmer.segments) == 1


def test_only_the_damage_of_a_segment_itself_is_found_in_it() -> None:
    case = Case()
    for number in (0, 1, 2):
        segment = case.messages.segments[number]
        case.disk.flip(segment.path, segment.size_bytes - 1, 1)
    for number in (0, 2, 1):
        (found,) = asyncio.run(case.trimmer.find_damage(case.messages.segments[number]))
        assert (found.start_offset, found.end_offset) == (number, number + 1)
    assert asyncio.run(case.trimmer.find_damage(case.messages.active)) == []
