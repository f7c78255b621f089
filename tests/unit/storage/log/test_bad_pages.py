"""A page that the disk cannot read costs the frames in it, and nothing else."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from goq.config.topic import Fsync
from goq.errors import StorageFailed
from goq.storage.disk import RealDisk
from goq.storage.log.log import Log, LogConfig
from goq.storage.log.time_range_reader import TimeRange, read_time_range
from goq.storage.scanner import BAD_PAGE_REASON, PAGE_BYTES
from tests.support.storage.bad_sectors import BadSectors
from tests.support.storage.logs import START_US, append, frame_of, read_all

FRAMES = 12
CONFIG = LogConfig(segment_bytes=5 * PAGE_BYTES, columns=True)


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> BadSectors:
    return BadSectors(monkeypatch)


def fill(path: Path) -> dict[int, bytes]:
    """Fill a log with frames of three quarters of a page; return them."""
    rng = Random(1)
    log = Log.open(path, RealDisk(), CONFIG)
    for number in range(FRAMES):
        append(log, [frame_of([rng.randbytes(3000)])], time_us=START_US + number)
    held = read_all(log).frames
    log.close()
    return held


def touched(path: Path, held: dict[int, bytes], page: int) -> set[int]:
    """Return the offsets of the frames of a segment that lie in a page."""
    at, found = 0, set()
    for offset in range(int(path.stem), FRAMES):
        end = at + len(held[offset])
        if at < (page + 1) * PAGE_BYTES and page * PAGE_BYTES < end <= path.stat().st_size:
            found.add(offset)
        at = end
    return found


@pytest.mark.parametrize("page", range(4))
def test_a_bad_page_costs_the_frames_in_it_and_is_read_once(
    tmp_path: Path, bad: BadSectors, page: int
) -> None:
    held = fill(tmp_path)
    segment = min(tmp_path.glob("*.log"))
    lost = touched(segment, held, page)
    bad.pages.add((segment, page))
    log = Log.open(tmp_path, RealDisk(), CONFIG)
    for _ in range(3):
        found = read_all(log)
        assert found.frames == {o: f for o, f in held.items() if o not in lost}
        assert found.damaged_offsets == lost
    assert {damage.reason for damage in log.damage} == {BAD_PAGE_REASON}
    assert bad.tries[segment, page] <= 2, "one read of the chunk, one of the page"
    times = read_time_range(log.reader, TimeRange(START_US, START_US + FRAMES), 0, FRAMES)
    assert {view.header.base_offset for view in times.frames} == held.keys() - lost


def test_bad_pages_of_derived_files_cost_nothing(tmp_path: Path, bad: BadSectors) -> None:
    held = fill(tmp_path)
    for suffix in ("index", "columns"):
        bad.pages |= {(path, 0) for path in tmp_path.glob(f"*.{suffix}")}
    log = Log.open(tmp_path, RealDisk(), CONFIG)
    assert read_all(log).frames == held
    assert log.damage == []
    assert log.reader.offset_for_time(START_US + 3, FRAMES) == 3


def test_what_may_be_acknowledged_is_not_cut_off_because_it_cannot_be_read(
    tmp_path: Path, bad: BadSectors
) -> None:
    log = Log.open(tmp_path, RealDisk(), LogConfig(fsync=Fsync.NEVER))
    append(log, [frame_of([Random(1).randbytes(3000)])])
    before = (tmp_path / "watermark").read_bytes()
    append(log, [frame_of([Random(2).randbytes(3000)])])
    (tmp_path / "watermark").write_bytes(before)  # older than the log, as after a power cut
    (segment,) = tmp_path.glob("*.log")
    size = segment.stat().st_size
    bad.pages.add((segment, 1))
    with pytest.raises(StorageFailed, match="cannot read"):
        Log.open(tmp_path, RealDisk())
    assert segment.stat().st_size == size
    bad.pages.clear()
    assert len(read_all(Log.open(tmp_path, RealDisk())).frames) == 2
