"""Looking up keys says what reading every message says, whatever becomes of the log and files."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from support.disk import SimulatedDisk
from support.keys import (
    all_lookups,
    check,
    expected,
    index_of,
    keyed_frame,
    look_up,
)
from support.logs import DIRECTORY, START_US, append

from goq.storage.log import Log, LogConfig
from goq.storage.segment import KEYS_SUFFIX


def key_files(disk: SimulatedDisk) -> list[Path]:
    return [path for path in disk.paths() if path.suffix == KEYS_SUFFIX]


def filled(random: Random, disk: SimulatedDisk, *, segment_bytes: int = 2000) -> Log:
    log = Log.open(DIRECTORY, disk, LogConfig(segment_bytes=segment_bytes))
    for number in range(random.randint(5, 30)):
        frames = [keyed_frame(random) for _ in range(random.randint(1, 4))]
        append(log, frames, time_us=START_US + number * 100)
    return log


@pytest.mark.parametrize("seed", range(40))
def test_lookups_say_what_reading_says(seed: int) -> None:
    random, disk = Random(seed), SimulatedDisk(Random(seed))
    log = filled(random, disk, segment_bytes=random.choice([1, 2000, 10**6]))
    index = index_of(log, disk)
    check(index, log)
    held = expected(log)
    for table, hashed in all_lookups():
        start, end = sorted(random.choices(range(log.end_offset + 3), k=2))
        within = [o for o in held.get((table, hashed), []) if start <= o < end]
        assert look_up(index, table, hashed, start, end) == within[::-1]
    assert len(key_files(disk)) == len(log.segments) - 1
    check(index_of(log, disk), log)
