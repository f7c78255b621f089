"""The table of producers against a naive twin: exact retries, gaps, fencing, bounds."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from goq import limits
from goq.delivery.dedup.producer_table import ProducerTable
from goq.delivery.events.event import SnapshotProducers, decode_events, encode_events
from goq.errors import OutOfOrderSequence, ProducerFenced
from goq.frame.encoder import Columns, ProducerMark, encode_frame, named_producer
from goq.frame.header import FrameHeader, parse_header


def _header(producer: int, epoch: int, first: int, count: int, left_out: int = 0) -> FrameHeader:
    frame = encode_frame(Columns([b"x"]), producer=ProducerMark(producer, epoch, first))
    return parse_header(frame)._replace(message_count=count - left_out, left_out=left_out)


class _Known(NamedTuple):
    epoch: int
    batches: list[tuple[int, int, int, int, int]]
    last_use: int


class _Twin:
    def __init__(self, producers_max: int) -> None:
        self.producers_max = producers_max
        self.known: dict[int, _Known] = {}
        self.uses = 0

    def find(self, producer: int, epoch: int, first: int, count: int) -> object:
        if producer == 0 or producer not in self.known:
            return None
        known = self.known[producer]
        if epoch != known.epoch:
            return None if epoch > known.epoch else ProducerFenced
        for batch in known.batches[-limits.PRODUCER_BATCHES_REMEMBERED :]:
            if batch[:2] == (first, count):
                return batch
        last = known.batches[-1]
        return None if first == last[0] + last[1] else OutOfOrderSequence

    def add(self, producer: int, epoch: int, batch: tuple[int, int, int, int, int]) -> None:
        if producer == 0:
            return
        self.uses += 1
        known = self.known.get(producer)
        batches = known.batches if known and known.epoch == epoch else []
        self.known[producer] = _Known(epoch, [*batches, batch], self.uses)
        if len(self.known) > self.producers_max:
            del self.known[min(self.known, key=lambda p: self.known[p].last_use)]

    def truncate(self, end: int) -> None:
        for producer, known in list(self.known.items()):
            kept = list(known.batches[-limits.PRODUCER_BATCHES_REMEMBERED :])
            while kept and kept[-1][2] + kept[-1][1] - kept[-1][4] > end:
                kept.pop()
            if kept:
                self.known[producer] = known._replace(batches=kept)
            else:
                del self.known[producer]


def _answer(table: ProducerTable, header: FrameHeader) -> object:
    try:
        found = table.find(header)
    except (ProducerFenced, OutOfOrderSequence) as error:
        return type(error)
    return None if found is None else tuple(found)


def _restored(
    table: ProducerTable, producers_max: int = limits.PRODUCERS_PER_PARTITION_MAX
) -> ProducerTable:
    (event,) = decode_events(encode_events([table.snapshot()]))
    assert isinstance(event, SnapshotProducers)
    fresh = ProducerTable(producers_max)
    fresh.restore(event)
    assert fresh.snapshot() == table.snapshot()
    return fresh


@pytest.mark.parametrize("seed", range(60))
def test_every_answer_is_the_twins(seed: int) -> None:
    rng = random.Random(seed)
    table, twin, offset = ProducerTable(4), _Twin(4), 0
    for time_us in range(300):
        producer = rng.randrange(7)
        known = twin.known.get(producer)
        epoch = (known.epoch if known else 1) + rng.choice([0, 0, 0, 0, -1, 1])
        count = rng.randint(1, 3)
        first = rng.choice([0, 5])
        if known and rng.random() < 0.9:
            near = rng.choice(known.batches[-7:])
            last = known.batches[-1]
            first, count = rng.choice([(last[0] + last[1], count), near[:2], (near[0], count)])
        header = _header(producer, max(0, epoch), first, count)
        answer = _answer(table, header)
        assert answer == twin.find(producer, max(0, epoch), first, count)
        if answer is None:
            left_out = rng.randrange(count)
            stored = _header(producer, max(0, epoch), first, count, left_out)
            table.add(stored, offset, time_us)
            twin.add(producer, max(0, epoch), (first, count, offset, time_us, left_out))
            offset += count - left_out
        if rng.random() < 0.05:
            table = _restored(table, 4)
        if rng.random() < 0.02:
            offset = max(0, offset - rng.randint(0, 6))
            table.truncate(offset)
            twin.truncate(offset)
        assert len(table.snapshot().producers) == len(twin.known) <= 4
        assert table.end_offset() <= offset


def test_the_table_holds_so_many_producers_and_forgets_the_one_that_wrote_longest_ago() -> None:
    table = ProducerTable()
    bound = limits.PRODUCERS_PER_PARTITION_MAX
    for producer in range(1, bound + 1):
        table.add(_header(producer, 0, 0, 1), producer, 0)
    assert _answer(table, _header(1, 0, 0, 1)) == (0, 1, 1, 0, 0)
    table.add(_header(bound + 1, 0, 0, 1), bound + 1, 0)
    assert len(table.snapshot().producers) == bound
    assert _answer(table, _header(1, 0, 0, 1)) is None  # forgotten: taken as a first one
    assert _answer(table, _header(2, 0, 0, 1)) == (0, 1, 2, 0, 0)


def test_a_new_epoch_begins_where_it_likes_and_fences_the_old_one() -> None:
    table = ProducerTable()
    table.add(_header(9, 1, 0, 10), 0, 0)
    assert _answer(table, _header(9, 2, 700, 1)) is None
    table.add(_header(9, 2, 700, 1), 10, 0)
    assert _answer(table, _header(9, 1, 10, 1)) is ProducerFenced
    assert _answer(table, _header(9, 1, 0, 10)) is ProducerFenced
    assert _answer(table, _header(9, 2, 701, 1)) is None
    assert _answer(table, _header(9, 2, 702, 1)) is OutOfOrderSequence


def test_batches_that_were_lost_with_their_messages_are_taken_again() -> None:
    table = ProducerTable()
    table.add(_header(9, 1, 0, 10), 0, 0)
    table.add(_header(9, 1, 10, 10), 10, 0)
    table.truncate(15)
    assert _answer(table, _header(9, 1, 0, 10)) == (0, 10, 0, 0, 0)
    assert _answer(table, _header(9, 1, 10, 10)) is None
    table.truncate(0)
    assert table.snapshot().producers == []


def test_a_producer_that_is_only_named_repeats_nothing_and_leaves_no_gap() -> None:
    table, mark = ProducerTable(), named_producer("shop")
    for _ in range(3):
        header = parse_header(encode_frame(Columns([b"x"]), producer=mark))
        assert table.find(header) is None
        table.add(header, 0, 0)
    assert table.snapshot().producers == []
