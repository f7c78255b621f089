"""A log under compaction, beside the list that it should equal; a pass as the broker makes it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple

from goq.errors import CorruptData
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.view import FrameView
from goq.storage.compaction.checkpoint import (
    CleanerCheckpoint,
    read_checkpoint,
    write_checkpoint,
)
from goq.storage.compaction.cleaner import OffsetMap, build_offset_map
from goq.storage.compaction.segment_merger import merge_segments, mergeable, remove_merged
from goq.storage.compaction.segment_rewriter import (
    CleanerParameters,
    install_generation,
    plan_rewrite,
    rewrite_segment,
)
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.segment import Segment
from goq.storage.verification import verify_log
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, START_US, append, read_all

SECRET = b"of no account in a test"
CONFIG = LogConfig(segment_bytes=1500, columns=True)
TOMBSTONE_AGE_US = 50


class Put(NamedTuple):
    """A message as it was published; ``due_ms`` 0 for one without delay."""

    key: bytes | None
    value: bytes | None
    time_us: int
    due_ms: int = 0


def nothing() -> None:
    return None


def pass_over(
    disk: SimulatedDisk,
    log: Log,
    progress: CleanerCheckpoint,
    now_us: int,
    *,
    keys_max: int = 1000,
) -> CleanerCheckpoint:
    """Make one pass, as the broker does."""
    newest = OffsetMap(progress.compacted_to, secret=SECRET, keys_max=keys_max)
    log.sync()
    build_offset_map(log.reader, newest, log.end_offset, nothing)
    assert len(newest) <= keys_max
    terms = CleanerParameters(newest, now_us - TOMBSTONE_AGE_US, 0, nothing)
    tombstone_us = reached = 0

    for segment in list(log.segments[:-1]):
        if segment.base_offset >= newest.end:
            break
        found = plan_rewrite(disk, segment, terms)
        if found.removed_count:
            time_before_us = log.reader.max_time_us_before(segment)
            new = rewrite_segment(disk, segment, found, terms, time_before_us=time_before_us)
            install_generation(disk, new)
            assert log.replace_segments([segment], new)
            segment.remove(disk)
        if found.tombstone_us:
            tombstone_us = min(tombstone_us or found.tombstone_us, found.tombstone_us)
        reached = segment.end_offset
    progress = CleanerCheckpoint(min(newest.end, reached), tombstone_us)
    write_checkpoint(disk, log.directory, progress)
    cleaned = [segment for segment in log.segments[:-1] if segment.end_offset <= reached]
    for segments in mergeable(cleaned, log.config.segment_bytes):
        if len(segments) > 1:
            with suppress(CorruptData):
                merge(disk, log, segments)
    return progress


def merge(disk: SimulatedDisk, log: Log, segments: Sequence[Segment]) -> None:
    """Make one segment of neighbours, as the broker does."""
    time_before_us = log.reader.max_time_us_before(segments[0])
    new = merge_segments(disk, segments, nothing, time_before_us=time_before_us)
    assert log.replace_segments(segments, new)
    remove_merged(disk, segments, new)


def naive(
    present: dict[int, Put], sealed_end: int, start: int, end: int, until_us: int
) -> dict[int, Put]:
    """Return what one pass leaves, whose map reaches from ``start`` up to ``end``."""
    newest = {m.key: o for o, m in sorted(present.items()) if start <= o < end}
    kept: dict[int, Put] = {}
    for offset, put in present.items():
        is_judged = offset < end and offset < sealed_end and put.key is not None
        is_over = put.value is None and put.time_us <= until_us
        if not is_judged or not (newest.get(put.key, -1) > offset or is_over):
            kept[offset] = put
    return kept


def served(log: Log) -> dict[int, Put]:
    """Return everything that the log has, with what its columns say of delays."""
    held, found = read_all(log), dict[int, Put]()
    assert not held.damage
    due = {
        int(offset): int(due_ms)
        for rows in log.reader.rows(0, log.end_offset)
        for offset, due_ms in zip(rows.offsets, rows.deliver_at_ms, strict=True)
    }
    expected = 0
    for base, frame in sorted(held.frames.items()):
        view = FrameView.parse(frame)
        count = view.header.message_count
        assert base == expected, "offsets go on without a gap"
        expected = base + count
        messages = zip(view.messages(0, count), view.kept(0, count), strict=True)
        for offset, (message, is_kept) in enumerate(messages, start=base):
            if is_kept:
                time_us = view.header.append_time_us
                due_ms = due.pop(offset, 0)
                found[offset] = Put(message.key, message.value, time_us, due_ms)
    assert expected == log.end_offset
    assert not any(due.values()), "what is gone is not scheduled"
    return found


class Case:
    """A log under compaction, and the list that it should equal."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(self.random)
        self.log = Log.open(DIRECTORY, self.disk, CONFIG)
        self.present: dict[int, Put] = {}
        self.progress = CleanerCheckpoint()
        self.now_us = START_US

    def publish(self) -> None:
        self.now_us += self.random.randint(0, 20)
        random, count = self.random, self.random.choice([1, 2, 3, 12])
        keys = [random.choice([None, *(b"key-%d" % n for n in range(8))]) for _ in range(count)]
        values = [random.choice([None, b"", b"value" * random.randint(1, 8)]) for _ in keys]
        due_ms = [random.choice([0, 0, self.now_us // 1000 + 5]) for _ in keys]
        columns = Columns(values, keys if any(keys) else None)
        if random.random() < 0.3:
            columns = Columns(values, columns.keys, deliver_at_ms=due_ms)
        else:
            due_ms = [0] * count
        mark = ProducerMark(random.randint(0, 2), 1, 0)
        frame = encode_frame(columns, producer=mark, compress=random.random() < 0.3)
        first = append(self.log, [frame], time_us=self.now_us)
        for row in range(count):
            key = None if columns.keys is None else keys[row]
            self.present[first + row] = Put(key, values[row], self.now_us, due_ms[row])

    def compact(self) -> None:
        self.now_us += self.random.choice([0, 10, 100])
        start, sealed_end = self.progress.compacted_to, self.log.active.base_offset
        keys_max = self.random.choice([1, 3, 1000])
        self.progress = pass_over(
            self.disk, self.log, self.progress, self.now_us, keys_max=keys_max
        )
        end, known = start, set[bytes]()
        while end < self.log.end_offset:
            put = self.present.get(end)
            if put is not None and put.key is not None:
                if put.key not in known and len(known) == keys_max:
                    break
                known.add(put.key)
            end += 1
        until_us = self.now_us - TOMBSTONE_AGE_US
        self.present = naive(self.present, sealed_end, start, end, until_us)

    def roll(self) -> None:
        self.log.roll()

    def reopen(self) -> None:
        self.log.close()
        self.log = Log.open(DIRECTORY, self.disk, CONFIG)
        assert self.log.scanned_bytes == 0
        if self.random.random() < 0.3:
            self.disk.put(DIRECTORY / "compacted", b"nonsense")
        self.progress = read_checkpoint(self.disk, DIRECTORY)

    def check(self) -> None:
        assert served(self.log) == self.present


def filled(seed: int, frames: int = 24) -> Case:
    case = Case(seed)
    for _ in range(frames):
        case.publish()
    case.log.roll()
    return case


def check_nothing_comes_back(before: dict[int, Put], found: dict[int, Put]) -> None:
    """Of a key of which a message is gone, a newer one is there, or no older one."""
    for offset in before.keys() - found.keys():
        of_key = [o for o, put in found.items() if put.key == before[offset].key]
        assert any(o > offset for o in of_key) or not of_key


def check_files(case: Case) -> None:
    """Nothing lies there but one generation of each segment, and all of it is sound."""
    stems = {segment.path.name.removesuffix(".log") for segment in case.log.segments}
    for path in case.disk.paths():
        if path.name[0].isdigit() and not path.name.endswith(".new"):
            assert path.name.rpartition(".")[0] in stems, path
        assert not path.name.endswith(".log.new")
        assert ".merged-" not in path.name
    assert not verify_log(case.disk, DIRECTORY).damage
