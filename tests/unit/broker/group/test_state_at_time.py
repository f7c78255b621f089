"""The parts of a look into the past: where history begins, what is damaged, and what was ready."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.group import state_at_time
from goq.broker.group.state_at_time import (
    IncompleteHistory,
    _damaged_after,
    _first_ready,
    _scheduled,
    _sound_before,
    _time_of,
    earliest_us,
    group_at,
)
from goq.delivery.partition_state import PartitionState
from goq.errors import HistoryNotRetained
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.repair import scan_segment
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import append, frame_of

TIMES_US = [1_000, 2_000, 3_000, 4_000]


def log_of(name: str, *, roll: bool = True) -> Log:
    """Return a log of four frames of two messages; with ``roll`` each is a segment."""
    config = LogConfig(segment_bytes=1 if roll else 2**20)
    log = Log.open(Path("/t/0") / name, SimulatedDisk(), config)
    for time_us in TIMES_US:
        append(log, [frame_of([b"v", b"w"])], time_us=time_us)
    return log


def trimmed(log: Log, offset: int) -> Log:
    log.remove(log.detach_before(offset))
    return log


def damaged(log: Log, frame: int) -> Log:
    """Break one of the frames of a log that has one segment."""
    (segment,) = log.segments
    disk: Any = log.reader.disk
    disk.flip(segment.path, (frame + 1) * (segment.size_bytes // 4) - 3, 1)
    scan_segment(log, segment)
    return log


@pytest.mark.parametrize(
    ("messages", "events", "begins_us"),
    [(0, 0, 0), (2, 0, 2_000), (0, 4, 3_000), (6, 2, 4_000), (2, 6, 4_000)],
)
def test_history_begins_where_the_later_one_of_both_logs_was_trimmed(
    messages: int, events: int, begins_us: int
) -> None:
    readers = trimmed(log_of("m"), messages).reader, trimmed(log_of("e"), events).reader
    assert earliest_us(*readers) == begins_us
    if begins_us:
        with pytest.raises(HistoryNotRetained):
            group_at(*readers, "g", begins_us - 1)


def test_what_is_damaged_at_an_offset_is_told_up_to_the_next_sound_frame() -> None:
    reader = damaged(log_of("m", roll=False), 1).reader
    assert [_damaged_after(reader, offset) for offset in (0, 2, 4, 6, 8)] == [0, 4, 4, 6, 8]
    last = damaged(log_of("m", roll=False), 3).reader
    assert [_damaged_after(last, offset) for offset in (4, 6, 8)] == [4, 8, 8]


def test_the_last_sound_frame_before_an_offset_is_found() -> None:
    reader = damaged(log_of("m", roll=False), 1).reader
    assert [_sound_before(reader, offset) for offset in (0, 2, 4, 6, 8)] == [0, 2, 2, 6, 8]


def test_the_time_of_a_message_is_known_if_it_is_there_and_sound() -> None:
    incomplete: list[IncompleteHistory] = []
    reader = trimmed(log_of("m"), 2).reader
    assert _time_of(reader, None, incomplete) is None
    assert _time_of(reader, 1, incomplete) is None
    assert [_time_of(reader, offset, incomplete) for offset in (2, 3, 4)] == [2_000, 2_000, 3_000]
    assert incomplete == []
    broken = damaged(log_of("m", roll=False), 1).reader
    assert _time_of(broken, 2, incomplete) is None
    assert len(incomplete) == 1


class Waiting:
    """Delayed messages; the runs that were asked for are noted."""

    def __init__(self, *delayed: tuple[int, int]) -> None:
        self.delayed = list(delayed)
        self.asked: list[tuple[int, int]] = []

    def runs(self, start: int, end: int) -> list[tuple[int, int]]:
        self.asked.append((start, end))
        return [(max(a, start), min(b, end)) for a, b in self.delayed if a < end and start < b]

    def count(self) -> int:
        return sum(end - start for start, end in self.delayed)


def group(cursor: int, due: int | None, fresh: list[int], end: int | None = None) -> Any:
    """Return a group that has these messages before it, and a retry that is due."""

    def fresh_runs(runs: list[tuple[int, int]], start: int, stop: int) -> Any:
        waits = {offset for run in runs for offset in range(*run)}
        return iter([(o, o + 1) for o in fresh if start <= o < stop and o not in waits])

    def untaken(start: int, end: int) -> Any:
        return iter([SimpleNamespace(start=start, end=end)])

    return SimpleNamespace(
        cursor=cursor,
        end_offset=end,
        first_due_retry=lambda _now_ms: due,
        fresh_runs=fresh_runs,
        untaken=untaken,
    )


@pytest.mark.parametrize(
    ("cursor", "due", "fresh", "start", "expected"),
    [
        (0, None, [], 0, None),
        (0, 7, [], 0, 7),
        (0, None, [3, 9], 0, 3),
        (0, None, [3, 9], 4, 9),
        (4, None, [3, 9], 0, 9),
        (0, 5, [9], 0, 5),
        (0, 5, [3], 0, 3),
        (6, 5, [7], 0, 5),
        (0, None, [12, 29], 0, 29),  # 12 is delayed
        (0, 29, [28], 0, 28),
    ],
)
def test_the_first_message_that_was_ready_is_a_retry_or_one_that_nobody_had(
    monkeypatch: pytest.MonkeyPatch,
    cursor: int,
    due: int | None,
    fresh: list[int],
    start: int,
    expected: int | None,
) -> None:
    monkeypatch.setattr(state_at_time, "_WINDOW", 4)
    state = PartitionState()
    state.extend_to(30)
    waiting: Any = Waiting((10, 15))
    found = _first_ready(state, group(cursor, due, fresh), waiting, start, 0)
    assert found == expected
    assert all(end - begin <= 4 and end <= 30 for begin, end in waiting.asked)
    if due is not None and cursor > due:
        assert waiting.asked == [], "what comes before the cursor is not new"


def test_of_a_group_with_an_end_only_delayed_messages_before_it_are_scheduled() -> None:
    waiting: Any = Waiting((10, 15), (20, 22))
    assert _scheduled(waiting, group(0, None, [])) == 7
    assert _scheduled(waiting, group(0, None, [], end=12)) == 2
    assert _scheduled(waiting, group(0, None, [], end=30)) == 7
