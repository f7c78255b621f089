"""The loader of partitions: what it refuses, what it remembers of the logs, and what it closes."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from goq.broker.partition.loader import (
    PartitionLogs,
    load_partition,
    open_logs,
    open_partition,
    restore_dedup,
)
from goq.config.topic import Fsync, TopicSettings
from goq.delivery.dedup.producer_table import ProducerBatch
from goq.delivery.events.event import Acked, AnyEvent, Leased, token_of
from goq.delivery.events.frame_codec import encode_event_frame
from goq.errors import StorageFailed
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import parse_header
from goq.storage.catalog.rows import LOG_NAMES, PartitionManifest, SegmentRow
from goq.storage.disk import RealDisk
from tests.support.broker.context import context_on
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import START_US, append, frame_of

FOLDER = Path("/data/t/0")
SETTINGS = TopicSettings()
KNOWN = PartitionManifest(has_existed=True)


class OpenFiles(SimulatedDisk):
    """A disk that knows which files are open."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[Path] = []

    def open(self, path: Path) -> Any:
        file: Any = super().open(path)
        self.opened.append(path)
        file.close = lambda: self.opened.remove(path)
        return file


def stored(disk: SimulatedDisk, *frames: bytes, events: tuple[AnyEvent, ...] = ()) -> None:
    """Let a partition have frames of messages, a second apart, and events."""
    logs = open_logs(FOLDER, disk, SETTINGS)
    for number, frame in enumerate(frames):
        append(logs.messages, [frame], time_us=START_US + number * 1_000_000)
    if events:
        view = encode_event_frame(events, logs.messages.end_offset)
        append(logs.events, [bytes(view.buffer)])
    close(logs)


def close(logs: PartitionLogs) -> None:
    for log in logs:
        log.close()


@pytest.mark.parametrize("gone", LOG_NAMES)
def test_a_log_that_has_existed_and_is_gone_is_told_and_not_begun_anew(
    gone: str, tmp_path: Path
) -> None:
    disk = RealDisk()
    close(open_logs(tmp_path, disk, SETTINGS))
    close(open_logs(tmp_path, disk, SETTINGS, KNOWN))
    shutil.rmtree(tmp_path / gone)
    with pytest.raises(StorageFailed, match=f"/{gone} is gone"):
        open_logs(tmp_path, disk, SETTINGS, KNOWN)
    assert not (tmp_path / gone).exists()


def test_sealed_segments_that_are_gone_are_damage_of_their_own_log() -> None:
    disk = SimulatedDisk()
    logs = open_logs(FOLDER, disk, SETTINGS)
    for _ in range(3):
        append(logs.messages, [frame_of([b"a", b"b"])])
        logs.messages.roll()
    disk.delete(logs.messages.segments[0].path)
    close(logs)
    rows = [
        SegmentRow("t", 0, name, start, start + 2, 1, 1)
        for name, start in (("messages", 0), ("messages", 2), ("events", 4))
    ]
    messages, events = open_logs(FOLDER, disk, SETTINGS, PartitionManifest(True, rows))
    assert [(d.start_offset, d.end_offset) for d in messages.damage] == [(0, 2)]
    assert [(d.start_offset, d.end_offset) for d in events.damage] == [(4, 6)]


def test_nothing_stays_open_of_a_partition_whose_second_log_cannot_be_opened() -> None:
    disk = OpenFiles()
    disk.fault = lambda operation, path: (
        errno.EIO if operation == "open" and path.parent.name == "events" else None
    )
    with pytest.raises(StorageFailed):
        open_logs(FOLDER, disk, SETTINGS)
    assert disk.opened == []


def test_nothing_stays_open_of_a_partition_whose_state_cannot_be_made() -> None:
    disk = OpenFiles()
    stored(disk, frame_of([b"a"]))
    logs = open_logs(FOLDER, disk, SETTINGS)
    assert disk.opened != []
    nothing: Any = None
    with pytest.raises(AttributeError):
        load_partition(logs, nothing, SETTINGS)
    assert disk.opened == []


def test_the_dedup_window_has_the_ids_of_its_time_and_no_older_ones() -> None:
    disk = SimulatedDisk()
    ids = [bytes([number]) * 16 for number in range(1, 6)]
    stored(disk, *(encode_frame(Columns([b""], dedup_ids=[each])) for each in ids))
    log = open_logs(FOLDER, disk, SETTINGS).messages
    for window_ms, now_s, held in ((2500, 4, 3), (2000, 4, 2), (60_000, 4, 5), (2000, 60, 0)):
        settings = TopicSettings(dedup_window_ms=window_ms)
        window = restore_dedup(log, settings, START_US + now_s * 1_000_000)
        assert len(window) == held
    assert len(restore_dedup(log, TopicSettings(dedup_window_ms=None), START_US)) == 0


def test_the_producers_of_the_messages_are_known_behind_the_last_event() -> None:
    disk = SimulatedDisk()
    frames = [
        encode_frame(Columns([b"x", b"y"]), producer=ProducerMark(7, 1, first)) for first in (0, 2)
    ]
    stored(disk, *frames)
    producers = open_partition(FOLDER, context_on(disk), SETTINGS, KNOWN).state.producers
    for number, frame in enumerate(frames):
        batch = producers.find(parse_header(frame))
        assert batch == ProducerBatch(2 * number, 2, 2 * number, START_US + number * 1_000_000)


def test_a_partition_goes_on_where_its_events_end() -> None:
    disk = OpenFiles()
    token = token_of(1, 0)
    leased = Leased("g", "c", 5_000, [(0, 2, 1), (3, 4, 1)])
    stored(disk, *[frame_of([b"m"])] * 5, events=(leased, Acked("g", token, [(1, 2)])))
    loaded = open_partition(FOLDER, context_on(disk), SETTINGS, KNOWN)
    assert loaded.messages.end_offset == 5
    assert loaded.last_event_us == START_US
    assert loaded.snapshot_sequence == 0
    group = loaded.state.group("g")
    assert group.leased_count == 2
    assert [(part.start, part.end) for part in group.outstanding()] == [(0, 1), (3, 4)]
    assert {path.parent.name for path in disk.opened} == set(LOG_NAMES)


@pytest.mark.parametrize("seed", range(4))
def test_events_of_messages_that_are_lost_are_taken_back_durably(seed: int) -> None:
    disk = SimulatedDisk(Random(seed))
    stored(disk, *[frame_of([b"m"])] * 2)
    events = open_logs(FOLDER, disk, SETTINGS).events
    leased = Leased("g", "c", 5_000, [(0, 4, 1)])
    append(events, [bytes(encode_event_frame((leased,), 4).buffer)])
    close(PartitionLogs(events, events))
    settings = TopicSettings(fsync=Fsync.NEVER)
    loaded = open_partition(FOLDER, context_on(disk), settings, KNOWN)
    assert [(p.start, p.end) for p in loaded.state.group("g").outstanding()] == [(0, 2)]
    append(loaded.messages, [frame_of([b"in their place"] * 2)])
    loaded.messages.sync()
    disk.crash(power=True)
    again = open_partition(FOLDER, context_on(disk), SETTINGS, KNOWN)
    assert again.messages.end_offset == 4
    assert [(p.start, p.end) for p in again.state.group("g").outstanding()] == [(0, 2)]


def test_leased_messages_without_key_and_tenant_hold_back_no_others_after_a_start() -> None:
    disk = SimulatedDisk()
    stored(disk, frame_of([b"v"] * 3), events=(Leased("g", "c", 10**15, [(0, 3, 1)]),))
    logs = open_logs(FOLDER, disk, SETTINGS)
    loaded = load_partition(logs, context_on(disk), SETTINGS)
    assert loaded.state.group("g").attributes == {}
    close(logs)


def test_groups_whose_leases_overlap_know_the_keys_of_all_their_messages() -> None:
    keys = [b"%d" % number for number in range(6)]
    disk = SimulatedDisk()
    events = (
        Leased("long", "c", 10**15, [(0, 5, 1)]),
        Leased("short", "c", 10**15, [(1, 2, 1)]),
        Leased("other", "c", 10**15, [(4, 6, 1)]),
    )
    stored(disk, encode_frame(Columns([b"v"] * 6, keys)), events=events)
    logs = open_logs(FOLDER, disk, SETTINGS)
    loaded = load_partition(logs, context_on(disk), SETTINGS)
    known = {name: sorted(group.attributes) for name, group in loaded.state.groups.items()}
    assert known == {"long": [0, 1, 2, 3, 4], "short": [1], "other": [4, 5]}
    close(logs)
