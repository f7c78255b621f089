"""The index of events sends to every event about a message, whatever became of its files."""

from __future__ import annotations

import random
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goq import limits
from goq.broker.events.index import EventIndex
from goq.broker.events.live_index import LiveEventIndex
from goq.broker.events.search import IndexedEventLog, timeline_of
from goq.broker.log.pending_appends import Appended, Waiter
from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cancelled,
    Cause,
    CopyQueued,
    CopyStored,
    Corrupted,
    Dropped,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Matured,
    Moved,
    Nacked,
    Range,
    Rescheduled,
    Reset,
    Skipped,
    SnapshotEnded,
    SnapshotOutboxEntry,
    SnapshotStarted,
    Span,
    Trimmed,
    Truncated,
    token_of,
)
from goq.delivery.events.frame_codec import StoredEvent, encode_event_frame
from goq.delivery.outbox import Outbox
from goq.delivery.trace.steps import PublishRecord
from goq.delivery.trace.timeline import Timeline
from goq.index_cache import IndexCache
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.segment import SPANS_SUFFIX
from tests.support.storage.disk import SimulatedDisk

FOLDER = Path("/events")
OFFSETS = 3000
EPOCH = 3
CACHE_BYTES = 5_000  # of a few segments
NEVER = LogConfig(2**62, 2**62)
DELAYED_MS = 5, 40


class AtOnce(Executor):
    """Runs what it is given before it returns."""

    def submit(self, work: Any, /, *args: Any, **_known: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args))
        return done


class History:
    """Random events in a log that is indexed as a partition does it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = SimulatedDisk()
        self.stored: list[StoredEvent] = []
        self.leaving: dict[int, CopyQueued] = {}
        self.log = Log.open(FOLDER, self.disk, NEVER)
        self.cache = IndexCache(CACHE_BYTES)
        self.committed: int | None = None
        """The end of what is committed; None if all that is written is."""
        self._index()

    def _index(self) -> None:
        outbox = Outbox()
        for number, event in self.leaving.items():
            outbox.restore_entry(SnapshotOutboxEntry(number, 0, event, []))
        self.live = LiveEventIndex(self.log, self, outbox, EPOCH, self.disk, AtOnce(), self.cache)

    @property
    def high_watermark(self) -> int:
        """The end of what is committed."""
        return self.log.end_offset if self.committed is None else self.committed

    def complete_when_committed(self, _end_offset: int, done: Waiter[Appended]) -> None:
        """Nothing waits: what is recorded here is written at once."""
        done.set_result(Appended(0, 0))

    def reopen(self) -> None:
        self.log.close()
        self.log = Log.open(FOLDER, self.disk, NEVER)
        self._index()

    def record(self) -> None:
        events = [self._event() for _ in range(self.chance.randint(1, 5))]
        sequence = self.log.end_offset
        for number, event in enumerate(events, sequence):
            if isinstance(event, CopyQueued):
                self.leaving[token_of(EPOCH, number)] = event
        view = encode_event_frame(events)
        self.live.on_record(events, view.header.frame_bytes)
        self._append(events, roll=False)

    def roll(self) -> None:
        """Begin a segment with a snapshot; of one that a crash cut short, only the beginning."""
        events: list[AnyEvent] = [SnapshotStarted(0, 0, [])]
        if self.chance.random() < 0.8:
            for number, event in self.leaving.items():
                events.append(SnapshotOutboxEntry(number, 0, event, []))
            events.append(SnapshotEnded())
        self.live.on_snapshot(len(events), begins_segment=bool(self.log.active.size_bytes))
        self._append(events, roll=True)

    def _append(self, events: list[AnyEvent], *, roll: bool) -> None:
        time_us = 1_000_000 + 10 * len(self.stored)
        batch = self.log.begin(time_us, roll=roll)
        view = encode_event_frame(events)
        first = batch.add(view.header, view.body, append_time_us=time_us, leader_epoch=EPOCH)
        self.log.write(batch)
        sealed = self.log.commit(batch)
        if sealed is not None:
            self.live.on_seal(sealed)
        self.stored += [
            StoredEvent(sequence, EPOCH, time_us, event)
            for sequence, event in enumerate(events, first)
        ]

    def _range(self) -> Range:
        start = self.chance.randrange(OFFSETS)
        return start, start + self.chance.choice((1, 1, 10, 200))

    def _spans(self) -> list[Span]:
        count = self.chance.choice((1, 1, 2, 30))
        return [(*self._range(), self.chance.randint(1, 3)) for _ in range(count)]

    def _ranges(self) -> list[Range]:
        return [(start, end) for start, end, _ in self._spans()]

    def _event(self) -> AnyEvent:
        group, token = self.chance.choice("gh"), token_of(EPOCH, self.chance.randrange(100))
        offset, time_ms = self.chance.randrange(OFFSETS), self.chance.randint(1, 50)
        spans, ranges = self._spans(), self._ranges()
        some: list[AnyEvent] = [
            Leased(group, "c", 99, spans),
            Acked(group, token, ranges),
            Nacked(group, token, spans, 3, "busy", 2),
            Expired(group, token, spans, 3, "", 2),
            Extended(group, token, ranges, 5),
            Dropped(group, token, spans, Cause.REJECTED),
            Skipped(group, ranges, Cause.TTL),
            Cancelled(ranges, "why"),
            Corrupted(offset, offset + 3, "bad"),
            Moved(offset, 2),
            Moved(offset, 1) if self._may_have_matured(offset) else Rescheduled(offset, time_ms),
            CopyQueued(group, 0, spans, Cause.REJECTED, "", 1, "t.dlq", 0, 7),
        ]
        if self.chance.random() < 0.1:
            some = [
                Reset(group, offset),
                GroupDeleted(group),
                Trimmed(offset // 10),
                Truncated(OFFSETS - offset // 10),
                Matured(time_ms, offset),
            ]
        if self.leaving and self.chance.random() < 0.2:
            number = self.chance.choice(list(self.leaving))
            del self.leaving[number]
            return CopyStored(number, self.chance.randrange(OFFSETS))
        return self.chance.choice(some)

    def _may_have_matured(self, offset: int) -> bool:
        """Return whether a message may have matured: such a message is never rescheduled."""
        least_ms = DELAYED_MS[0]
        for each in self.stored:
            event = each.event
            if isinstance(event, Rescheduled) and event.offset == offset:
                least_ms = min(least_ms, event.due_ms)
            elif (
                isinstance(event, Matured)
                and offset < event.end_offset
                and least_ms <= event.up_to_ms
            ):
                return True
        return False

    def check(self, spans: EventIndex, live: Any) -> None:
        events = IndexedEventLog(self.log.reader, spans, live)
        for _ in range(25):
            offset = self.chance.randrange(OFFSETS)
            due_ms = self.chance.choice((0, *DELAYED_MS))
            published = PublishRecord(offset, 0, due_ms) if self.chance.random() < 0.8 else None
            all_of_it = Timeline(offset, published)
            for each in self.stored:
                if published is not None and isinstance(each.event, Trimmed):
                    continue  # what is there was not deleted
                if each.sequence >= self.high_watermark:
                    continue  # another leader may never have it
                all_of_it.add(each)
            found = timeline_of([events], offset, published, is_trimmed=published is None)
            assert found.steps == all_of_it.steps
            assert found.incomplete == all_of_it.incomplete


def damaged(data: bytes, chance: random.Random, other: bytes) -> bytes | None:
    """Return what may become of a file: nothing, a part, other bytes, another segment's."""
    kind = chance.randrange(5)
    at = chance.randrange(len(data))
    flipped = data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
    return (None, data[:at], flipped, other, data)[kind]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_INDEX_BLOCK_BYTES", 500)


@pytest.mark.usefixtures("small_blocks")
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32))
def test_what_the_index_finds_is_what_looking_at_every_event_finds(seed: int) -> None:
    history = History(seed)
    chance = history.chance
    for _ in range(chance.randint(1, 120)):
        if chance.random() < 0.1:
            history.roll()
        elif chance.random() < 0.03:
            history.reopen()
        else:
            history.record()
    history.check(history.live.index, history.live.live_blocks())
    paths = [s.path.with_suffix(SPANS_SUFFIX) for s in history.log.segments[:-1]]
    files = {path: history.disk.read_all(path) for path in paths if path in history.disk.paths()}
    for path, data in files.items():
        changed = damaged(data, chance, chance.choice(list(files.values())))
        history.disk.delete(path)
        if changed is not None:
            history.disk.put(path, changed)
    history.check(
        EventIndex(history.disk, history.log.reader, history.cache), history.live.live_blocks()
    )
    history.reopen()
    history.check(history.live.index, history.live.live_blocks())
    history.check(EventIndex(history.disk, history.log.reader, history.cache), {})


@pytest.mark.usefixtures("small_blocks")
def test_events_that_are_not_committed_are_not_found() -> None:
    history = History(7)
    for _ in range(60):
        history.record()
    history.committed = history.log.end_offset
    for _ in range(60):
        history.record()
    history.check(history.live.index, history.live.live_blocks())
    history.roll()
    history.record()
    history.check(history.live.index, history.live.live_blocks())


def test_the_file_is_written_when_a_segment_is_sealed_and_goes_with_it() -> None:
    history = History(1)
    history.record()
    history.roll()
    (sealed, _) = history.log.segments
    path = sealed.path.with_suffix(SPANS_SUFFIX)
    assert path in history.disk.paths()
    history.log.remove(history.log.detach_before(sealed.end_offset))
    assert path not in history.disk.paths()


def test_the_file_of_a_segment_that_is_cut_is_not_that_of_the_events_written_there_since() -> None:
    """A follower is cut by its leader, gets events of the same sizes, and leads in the end."""
    log = Log.open(FOLDER, disk := SimulatedDisk(), NEVER)
    sizes = []
    for offset in (1000, 2000):
        log.truncate(0)
        for roll in (False, True):
            batch, view = log.begin(1, roll=roll), encode_event_frame([Moved(offset, 1)])
            batch.add(view.header, view.body, append_time_us=1, leader_epoch=offset)
            log.write(batch)
            sealed = log.commit(batch)
        assert sealed is not None
        sizes.append((sealed.end_offset, sealed.size_bytes))
        if offset == 1000:
            EventIndex(disk, log.reader, IndexCache()).seal(sealed, None)
    assert sizes[0] == sizes[1]
    found = EventIndex(disk, log.reader, IndexCache()).message_ranges(2000, {})
    assert found == [(0, 1), (1, 2)]


def test_a_file_that_cannot_be_written_is_nobodys_failure() -> None:
    history = History(2)
    for _ in range(20):
        history.record()
    replace = history.disk.replace

    def full(path: Path, data: bytes) -> None:
        if path.suffix == SPANS_SUFFIX:
            raise OSError(28, "no room")
        replace(path, data)

    history.disk.replace = full
    history.roll()
    history.record()
    history.check(history.live.index, history.live.live_blocks())
    assert not [path for path in history.disk.paths() if path.suffix == SPANS_SUFFIX]


def test_a_segment_deleted_while_its_index_is_written_leaves_no_file() -> None:
    history = History(3)
    history.record()
    history.roll()
    sealed = history.log.segments[0]
    history.log.remove(history.log.detach_before(sealed.end_offset))
    history.live.index.seal(sealed, None)
    assert sealed.path.with_suffix(SPANS_SUFFIX) not in history.disk.paths()
