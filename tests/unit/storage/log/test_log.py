"""The log against a Python list, with the process or the power gone at any operation.

Whatever happens: everything acknowledged is there, in order, once, byte for byte; nothing is read
that was not appended; and no crash is taken for damage.
"""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goq import limits
from goq.clock import ManualClock
from goq.config.topic import Fsync
from goq.errors import StorageFailed
from goq.frame.encoder import Columns, encode_frame
from goq.frame.header import HEADER_BYTES, FrameHeader, parse_header
from goq.frame.view import FrameView
from goq.storage.journal.journal import NodeJournal
from goq.storage.log.log import Log, LogConfig
from tests.support.storage.disk import InlineExecutor, SimulatedCrash, SimulatedDisk

ROOT = Path("/data/topics")
DIRECTORY = ROOT / "orders" / "0" / "messages"
JOURNAL = Path("/data/journal")


def no_fault(_operation: str, _path: Path) -> None:
    return None


class Stored(NamedTuple):
    offset: int
    count: int
    time_us: int
    body: bytes


def _frame(count: int, value_bytes: int, fill: int) -> tuple[FrameHeader, memoryview]:
    frame = encode_frame(Columns([bytes([fill]) * value_bytes] * count))
    return parse_header(frame), memoryview(frame)[HEADER_BYTES:]


class Case:
    """A log, the list that it should equal, and the step that may be under way."""

    def __init__(self, seed: int, config: LogConfig, *, has_journal: bool) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(self.random)
        self.config = config
        self.has_journal = has_journal
        self.journal: NodeJournal | None = None
        self.frames: list[Stored] = []
        self.unsure: list[Stored] = []
        self.start = self.end = self.durable = 0
        self.cut_from = 2**62
        self.starts = {0}
        self.open()

    def open(self) -> None:
        if self.has_journal:
            disk, clock = self.disk, ManualClock(self.random.randrange(1, 1000))
            self.journal = NodeJournal.open(disk, JOURNAL, ROOT, InlineExecutor(), clock)
        self.log = Log.open(DIRECTORY, self.disk, self.config, journal=self.journal)

    def run(self, steps: list[tuple[str, int]]) -> None:
        for name, number in steps:
            try:
                getattr(self, name)(number)
                self.check()
            except SimulatedCrash:
                self.recover(power=number % 2 == 0)
            except StorageFailed:
                if self.disk.is_crashing:  # within the journal, which has to tell all who wait
                    self.recover(power=number % 2 == 0)
                    continue
                if name != "reopen":  # which has no log to show for it
                    with pytest.raises(StorageFailed):
                        self.log.begin(0)
                self.recover(power=False)
        self.crash(0)
        self.reopen(0)

    # Steps: each takes a number that means what it needs

    def append(self, number: int) -> None:
        self.log_append(self.random.randint(1, 4), roll=number % 7 == 0)

    def log_append(self, count: int, *, roll: bool) -> None:
        now_us = 1000 + len(self.frames) * 10 + self.random.randint(-60, 60)
        batch = self.log.begin(now_us, roll=roll)
        self.unsure = []
        for _ in range(count):
            messages, value_bytes = self.random.randint(1, 3), self.random.choice([0, 5, 90, 700])
            header, body = _frame(messages, value_bytes, self.random.randint(0, 255))
            if not batch.has_room_for(HEADER_BYTES + len(body)):
                break
            offset = batch.add(header, body, append_time_us=now_us, leader_epoch=1)
            self.unsure.append(Stored(offset, messages, now_us, bytes(body)))
        self.log.write(batch)
        self.log.commit(batch)
        self.frames += self.unsure
        self.unsure = []
        self.end = self.log.end_offset
        if self.config.fsync is Fsync.ALWAYS:
            self.durable = self.end

    def roll(self, _number: int) -> None:
        if self.log.roll() is not None:
            self.durable = self.end

    def sync(self, _number: int) -> None:
        self.log.sync()
        self.durable = self.end

    def detach(self, number: int) -> None:
        self.starts = {s.base_offset for s in self.log.segments} | {self.end}
        offset = self.start + number % (self.end - self.start + 1)
        self.log.remove(self.log.detach_before(offset))
        assert self.start <= self.log.start_offset <= offset
        self.start = self.log.start_offset
        self.frames = [f for f in self.frames if f.offset >= self.start]

    def truncate(self, number: int) -> None:
        offset = self.start + number % (self.end - self.start + 1)
        cut = [f.offset for f in self.frames if f.offset + f.count > offset]
        self.cut_from = min(cut, default=self.end)
        assert self.log.truncate(offset) == self.cut_from
        if cut:
            self.frames = [f for f in self.frames if f.offset < self.cut_from]
            self.end = self.durable = self.cut_from
        self.cut_from = 2**62

    def reopen(self, _number: int) -> None:
        self.log.close()
        if self.journal is not None:
            self.journal.close()
        self.open()
        self.durable = self.end
        assert self.log.scanned_bytes == 0
        assert self.log.truncated_bytes == 0

    def crash(self, number: int) -> None:
        self.disk.crash(power=number % 2 == 0)
        self.recover(power=number % 2 == 0)

    def crash_soon(self, number: int) -> None:
        self.disk.crash_at = self.disk.operations + 1 + number % 12

    def fail_sync(self, number: int) -> None:
        failing = self.disk.operations + 1 + number % 6

        def fault(operation: str, _path: Path) -> int | None:
            fails = operation == "sync" and self.disk.operations >= failing
            return errno.EIO if fails else None

        self.disk.fault = fault

    # Checks

    def check(self) -> None:
        assert self.log.end_offset == self.end
        assert self.log.start_offset == self.start
        assert self._read_all() == self.frames
        offset = self.random.randint(self.start, self.end)
        expected = [f for f in self.frames if f.offset + f.count > offset]
        reading = self.log.reader.read(offset, self.end, messages_max=1)
        assert [f.header.base_offset for f in reading.frames] == [f.offset for f in expected[:1]]
        time_us = 1000 + self.random.randint(-100, 10 * len(self.frames) + 100)
        later = [f.offset for f in self.frames if f.time_us >= time_us]
        assert self.log.reader.offset_for_time(time_us, self.end) == min(later, default=self.end)
        assert self.log.damage == []

    def _read_all(self) -> list[Stored]:
        found: list[Stored] = []
        offset = self.log.start_offset
        while offset < self.log.end_offset:
            reading = self.log.reader.read(offset, self.log.end_offset, bytes_max=3000)
            assert reading.damage == []
            assert reading.next_offset > offset
            found += [_stored(view) for view in reading.frames]
            offset = reading.next_offset
        return found

    def recover(self, *, power: bool) -> None:
        self.disk.fault = no_fault
        while True:
            self.disk.crash(power=power)
            if self.random.random() < 0.2:
                self.disk.crash_at = self.disk.operations + self.random.randint(1, 6)
            try:
                self.open()
                break
            except SimulatedCrash:
                continue
        self.disk.crash_at = None
        found, known = self._read_all(), self.frames + self.unsure
        start, end = self.log.start_offset, self.log.end_offset
        assert found == [f for f in known if start <= f.offset < end]
        assert start == self.start or start in self.starts
        least = min(self.durable if power else self.end, self.cut_from)
        assert end >= least
        assert end in {start, *(f.offset + f.count for f in known)}
        assert self.log.damage == []
        self.frames, self.unsure = found, []
        self.start, self.end, self.durable = start, end, end
        self.cut_from = 2**62
        self.starts = {start}


def _stored(view: FrameView) -> Stored:
    header = view.header
    return Stored(header.base_offset, header.message_count, header.append_time_us, bytes(view.body))


_STEPS = ["append"] * 6 + ["crash_soon"] * 2 + [
    "roll", "sync", "detach", "truncate", "reopen", "crash", "fail_sync"
]  # fmt: skip

steps = st.lists(st.tuples(st.sampled_from(_STEPS), st.integers(0, 2**20)), max_size=40)
configs = st.builds(
    LogConfig,
    segment_bytes=st.sampled_from([300, 3000, 30_000]),
    segment_age_ms=st.sampled_from([86_400_000, 0]),
    fsync=st.sampled_from([Fsync.ALWAYS, Fsync.ALWAYS, Fsync.NEVER]),
)


@pytest.fixture(autouse=True)
def small_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INDEX_INTERVAL_BYTES", 500)
    monkeypatch.setattr(limits, "CHECKPOINT_INTERVAL_BYTES", 9000)
    monkeypatch.setattr(limits, "JOURNAL_ENTRY_BYTES_MAX", 2000)
    monkeypatch.setattr(limits, "JOURNAL_PIECE_BYTES_MIN", 3000)
    monkeypatch.setattr(limits, "JOURNAL_PIECE_BYTES_MAX", 6000)
    monkeypatch.setattr(limits, "JOURNAL_PIECES_MAX", 3)


_suppressed = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(deadline=None, suppress_health_check=_suppressed)
@given(seed=st.integers(0, 2**32), config=configs, steps=steps, has_journal=st.booleans())
def test_the_log_is_the_list_whatever_ends_the_process(
    seed: int, config: LogConfig, steps: list[tuple[str, int]], has_journal: bool
) -> None:
    Case(seed, config, has_journal=has_journal).run(steps)


def live(seed: int, length: int, *, has_journal: bool) -> None:
    random = Random(seed)
    config = LogConfig(
        random.choice([300, 3000, 30_000]),
        random.choice([86_400_000, 0]),
        random.choice([Fsync.ALWAYS, Fsync.NEVER]),
    )
    steps = [(random.choice(_STEPS), random.randrange(2**20)) for _ in range(length)]
    try:
        Case(seed, config, has_journal=has_journal).run(steps)
    except Exception as error:
        raise AssertionError(f"seed {seed}, {length} steps") from error


@pytest.mark.parametrize("has_journal", [False, True])
def test_the_log_is_the_list_in_long_lives(has_journal: bool) -> None:
    for seed in range(40):
        live(seed, 60, has_journal=has_journal)


@pytest.mark.long
@pytest.mark.parametrize("first_seed", range(1000, 11_000, 1000))
def test_the_log_is_the_list_in_many_longer_lives(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 1000):
        live(seed, 120, has_journal=seed % 2 == 1)
