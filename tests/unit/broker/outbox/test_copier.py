"""Copies of dead letters and of redriven ones, against the messages they are copies of."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from goq import limits
from goq.broker.log.frame_cache import REDRIVE_GROUP_HEADER
from goq.broker.outbox.copier import RecordCopier
from goq.broker.outbox.dead_letter_headers import read_dead_letter
from goq.broker.partition_context import PartitionId
from goq.delivery.events.event import Cause, CopyQueued, Failure, Range, Span, token_of
from goq.delivery.outbox import LOST, FailureHistory, OutboxEntry
from goq.frame.encoder import Columns, ProducerMark, columns_from_messages, encode_frame
from goq.frame.header import HEADER_BYTES, Attribute, parse_header
from goq.model import Message
from goq.storage.log.log import Log, LogConfig
from goq.units import format_time_us
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, START_US, append

SOURCE = PartitionId("t", 2)
TIME_MS = 1_700_000_000_000
DEFAULT_LANE = 1
PRODUCER_ID = 7
ENTRY_EPOCH = 1


class Stored(NamedTuple):
    """A message of the source, and why it cannot be read any more."""

    message: Message
    client_time_ms: int
    append_us: int
    why: str = ""


class Source:
    """The log of a partition; its first segment is deleted, one frame damaged, one compacted."""

    def __init__(self, chance: Random) -> None:
        self.disk = SimulatedDisk()
        self.log = Log.open(DIRECTORY, self.disk, LogConfig(segment_bytes=1_000))
        self.stored: list[Stored] = []
        self.frames: list[tuple[int, int]] = []
        for number in range(14):
            self._append(chance, number, chance.randrange(1, 5))
        first = self.log.segments[1].base_offset
        self.log.remove(self.log.detach_before(first))
        self._lose(range(first), "deleted by retention")
        self.entries: list[OutboxEntry] = []
        self.histories: dict[int, tuple[Failure, ...]] = {}

    def _append(self, chance: Random, number: int, count: int) -> None:
        time_us = START_US + 1_000 * number
        has_times, is_compacted = chance.random() < 0.4, number % 6 == 3
        has_columns = chance.random() < 0.7
        messages = [random_message(chance, has_columns=has_columns) for _ in range(count)]
        times_ms = [chance.randrange(1, 99) if has_times else 0 for _ in messages]
        removed = [row for row in range(count) if is_compacted and chance.random() < 0.5]
        columns = columns_from_messages(messages, default_lane=DEFAULT_LANE)
        columns = Columns(
            **{name: getattr(columns, name) for name in columns.__struct_fields__}
            | {"client_time_ms": times_ms if has_times else None}
        )
        start = append(self.log, [encode_frame(columns, removed=removed or None)], time_us=time_us)
        self.frames.append((start, start + count))
        for row, message in enumerate(messages):
            why = "compacted away" if row in removed else ""
            self.stored.append(Stored(message, times_ms[row], time_us, why))

    def _lose(self, offsets: range, why: str) -> None:
        for offset in offsets:
            self.stored[offset] = self.stored[offset]._replace(why=why)

    def damage(self, frame: int) -> None:
        """Flip a bit of the body of a frame that is still there."""
        start, end = self.frames[frame]
        segment = next(s for s in self.log.segments if s.base_offset <= start < s.end_offset)
        data = self.disk.read_all(segment.path)
        position = 0
        while parse_header(data[position : position + HEADER_BYTES]).base_offset != start:
            position += parse_header(data[position : position + HEADER_BYTES]).frame_bytes
        self.disk.flip(segment.path, position + HEADER_BYTES, 1)
        self._lose(range(start, end), "damaged")

    def queue(
        self, group: str, *spans: Span, histories: list[FailureHistory] | None = None
    ) -> None:
        sequence = 0
        if self.entries:
            last = self.entries[-1]
            sequence = last.first_sequence + sum(end - start for start, end, _ in last.event.spans)
        cause = Cause.NACKED if group else Cause.REDRIVEN
        event = CopyQueued(group, 0, list(spans), cause, "why", TIME_MS, "target", 0, PRODUCER_ID)
        number = token_of(ENTRY_EPOCH, len(self.entries))
        self.entries.append(OutboxEntry(number, sequence, event, histories or []))

    def copies(self, sequence: int, frame_messages_max: int) -> list[Message]:
        """Return the copies of all entries from a sequence number on, over all their frames."""
        copier = RecordCopier(SOURCE, self.log.reader, DEFAULT_LANE, frame_messages_max)
        found = list[Message]()
        entries = list(self.entries)
        while entries:
            last = entries[0].first_sequence + sum(e - s for s, e, _ in entries[0].event.spans)
            if sequence >= last:
                del entries[0]
                continue
            mark = ProducerMark(PRODUCER_ID, 3, sequence)
            view = copier.frame(entries, mark)
            header = view.header
            assert (header.producer_id, header.producer_epoch) == (PRODUCER_ID, 3)
            assert header.first_sequence == sequence
            assert 1 <= header.message_count <= frame_messages_max
            assert header.attributes & Attribute.COPY
            times_ms = view.columns(0, header.message_count).client_time_ms
            for row, message in enumerate(view.messages(0, header.message_count)):
                time_ms = times_ms[row] if times_ms is not None else 0
                found.append(message)
                self.check_time(sequence + row, time_ms)
            sequence += header.message_count
        return found

    def offsets(self) -> list[tuple[OutboxEntry, int, int]]:
        """Return entry, offset and attempt by sequence number."""
        return [
            (entry, offset, attempt)
            for entry in self.entries
            for start, end, attempt in entry.event.spans
            for offset in range(start, end)
        ]

    def check_time(self, sequence: int, time_ms: int) -> None:
        _, offset, _ = self.offsets()[sequence]
        stored = self.stored[offset] if offset >= 0 else None
        expected = 0 if stored is None or stored.why else stored.client_time_ms
        assert time_ms == expected

    def check(self, copy: Message, entry: OutboxEntry, offset: int, attempt: int) -> None:
        stored = self.stored[offset] if offset >= 0 else None
        why = "damaged" if stored is None else stored.why
        own_id = f"t:2:{offset if offset >= 0 else offset + LOST}"
        told = read_dead_letter(copy.headers)
        names = dict(copy.headers)
        if why or stored is None:
            assert (copy.value, copy.key, copy.tenant, told.headers) == (b"", None, None, [])
            assert told.lost == why
        else:
            message = stored.message
            assert (copy.value, copy.key) == (message.value, message.key)
            assert (copy.tenant, told.headers) == (message.tenant, list(message.headers))
            lane = DEFAULT_LANE if message.lane is None else message.lane
            assert (DEFAULT_LANE if copy.lane is None else copy.lane) == lane
            assert not told.lost
        if not entry.event.group:
            if why:
                assert names[REDRIVE_GROUP_HEADER] == b""
                assert told.origin is not None
                assert told.origin.id == own_id
            else:
                assert (told.redrives, told.redriven_from) == (1, own_id)
            return
        origin = told.origin
        assert origin is not None
        assert (origin.id, origin.group, origin.attempts) == (own_id, "g", attempt)
        assert (origin.cause, origin.reason) == ("nacked", "why")
        assert origin.time == format_time_us(TIME_MS * 1000)
        assert origin.published == (
            "" if why or stored is None else format_time_us(stored.append_us)
        )
        failures = next((f for s, e, f in entry.histories if s <= offset < e), ())
        assert [(each.consumer, each.reason) for each in origin.failures] == [
            (each.consumer, each.reason) for each in failures
        ]


def random_message(chance: Random, *, has_columns: bool) -> Message:
    return Message(
        chance.choice((b"v", b"", None, bytes(50))),
        chance.choice((b"k", None)) if has_columns else None,
        chance.choice(([], [("h", b"1")])) if has_columns else [],
        tenant=chance.choice((None, "x")) if has_columns else None,
        lane=chance.choice((None, 0, 2)) if has_columns else None,
    )


def random_spans(chance: Random, end: int) -> list[Span]:
    bounds = sorted(chance.sample(range(end), 6))
    spans = [(s, e, chance.randrange(1, 4)) for s, e in zip(bounds[::2], bounds[1::2], strict=True)]
    if chance.random() < 0.4:
        spans.append((-3, -1, 2))
    return spans


def history(chance: Random, spans: list[Span]) -> list[FailureHistory]:
    failures = (Failure(TIME_MS, "one", "nacked", "a"), Failure(TIME_MS, "two", "expired", ""))
    runs: list[Range] = [(start, end) for start, end, _ in spans if start >= 0]
    return [(start, end, failures[: chance.randrange(3)]) for start, end in runs]


@pytest.mark.parametrize("seed", range(25))
def test_each_message_has_a_copy_of_itself_or_one_that_says_why_not(seed: int) -> None:
    chance = Random(seed)
    source = Source(chance)
    source.damage(10 + seed % 4)
    end = len(source.stored)
    for _ in range(3):
        spans = random_spans(chance, end)
        if seed % 3 == 0:
            source.queue("", *[span for span in spans if span[0] >= 0])
        else:
            source.queue("g", *spans, histories=history(chance, spans))
    expected = source.offsets()
    for frame_messages_max in (1, 4, 1_000):
        first = chance.randrange(len(expected))
        copies = source.copies(first, frame_messages_max)
        assert len(copies) == len(expected) - first
        for copy, (entry, offset, attempt) in zip(copies, expected[first:], strict=True):
            source.check(copy, entry, offset, attempt)


def test_a_frame_of_copies_is_bounded_in_bytes_and_has_one_at_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(Random(1))
    source.log = Log.open(DIRECTORY, SimulatedDisk())
    message = Message(bytes(300), b"key", [("name", bytes(100))])
    append(source.log, [encode_frame(columns_from_messages([message] * 20))])
    source.queue("g", (0, 20, 1))
    copier = RecordCopier(SOURCE, source.log.reader, DEFAULT_LANE, 100)

    def count(bytes_max: int, sequence: int = 0) -> int:
        monkeypatch.setattr(limits, "OUTBOX_FRAME_BYTES", bytes_max)
        mark = ProducerMark(PRODUCER_ID, 1, sequence)
        return copier.frame(source.entries, mark).header.message_count

    assert count(1) == 1
    assert count(1, 19) == 1
    assert 5 < count(6_000) < 15
    assert 0 <= count(12_000) - 2 * count(6_000) <= 1
    assert count(1 << 20) == 20
