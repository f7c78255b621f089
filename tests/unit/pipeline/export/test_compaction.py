"""Merged files have the rows of their sources, and readers see each row once at any step."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from hypothesis import given
from hypothesis import strategies as st

from goq.errors import Conflict, CorruptData, InvalidInput, Unavailable
from goq.model import Message
from goq.pipeline.export.compaction import compact, merges_of
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.ledger import ExportLedger, FileEntry
from tests.support.effort import first_of
from tests.support.pipeline.lake_changes import CHANGES, cells, export_change
from tests.support.pipeline.lake_readers import BY_NAME, PLAIN, Reader
from tests.support.pipeline.logged_frames import LoggedFrames
from tests.unit.pipeline.export.test_export import (
    DAY_US,
    Stopped,
    StoppingTarget,
    export,
    found,
    grow,
    wanted,
)

LATER_US = 10 * DAY_US


class ExchangingTarget(StoppingTarget):
    """Ends the process before or after its n-th change, an exchange of folders among them."""

    def exchange(self, made: Path, path: str) -> None:
        self._change(lambda: LocalDestination.exchange(self, made, path))


def small_files(root: Path, runs: int = 6, seed: int = 1) -> LoggedFrames:
    """Export in so many runs, each with a few rows."""
    log, rng = LoggedFrames(2), random.Random(seed)
    for _ in range(runs):
        grow(log, rng, 6)
        export(log, LocalDestination(root)).run()
    return log


def paths(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.glob("messages/*/*/*"))


def named(root: Path) -> list[FileEntry]:
    ledger = ExportLedger(LocalDestination(root), "messages", "orders")
    return [entry for manifest in ledger.manifests() for entry in manifest.files]


def check_named(root: Path) -> None:
    """Check that the manifests name the files that are there, as they are."""
    target = LocalDestination(root)
    assert sorted(entry.path for entry in named(root)) == paths(root)
    assert sum(entry.rows for entry in named(root)) == len(found(root))
    assert all(target.checksum(entry.path) == entry.crc32c for entry in named(root))
    assert not list((root / "_goq" / "tmp").rglob("*.parquet"))


def test_each_partition_and_date_gets_one_file_with_the_same_rows(tmp_path: Path) -> None:
    log = small_files(tmp_path)
    before = paths(tmp_path)
    done = {each.table: each for each in compact(LocalDestination(tmp_path), "orders", LATER_US)}
    after = paths(tmp_path)
    assert len(after) == len({(Path(p).parent, Path(p).name[:5]) for p in before}) < len(before)
    kept = len(set(before) & set(after))
    assert (done["messages"].files, done["messages"].into) == (
        len(before) - kept,
        len(after) - kept,
    )
    assert found(tmp_path) == wanted(log)
    check_named(tmp_path)
    again = compact(LocalDestination(tmp_path), "orders", LATER_US)
    assert not any(each.files for each in again)
    assert paths(tmp_path) == after


@pytest.mark.parametrize("read", PLAIN, ids=lambda read: read.__name__)
def test_each_reader_reads_merged_files(tmp_path: Path, read: Reader) -> None:
    log = small_files(tmp_path)
    compact(LocalDestination(tmp_path), "orders", LATER_US)
    rows = read(tmp_path / "messages")
    read_rows = sorted((row["partition"], row["offset"], bytes(row["value"])) for row in rows)
    assert read_rows == [row[:3] for row in wanted(log)]


@pytest.mark.parametrize("change", CHANGES)
def test_files_with_different_columns_are_merged(tmp_path: Path, change: str) -> None:
    target = export_change(change, tmp_path)
    compact(target, "orders", LATER_US)
    assert len(paths(tmp_path)) == 1
    for read in BY_NAME:
        assert cells(read(tmp_path / "messages")) == CHANGES[change].wanted


@pytest.mark.parametrize("after", first_of([True, False], quick=1))
def test_stopped_at_any_change_readers_see_each_row_once_and_the_next_export_goes_on(
    tmp_path: Path, after: bool
) -> None:
    changes = 0
    log = small_files(tmp_path / "lake", runs=3)
    while True:
        root = tmp_path / str(changes)
        shutil.copytree(tmp_path / "lake", root)
        target = ExchangingTarget(root, changes, after=after)
        try:
            compact(target, "orders", LATER_US)
        except Stopped:
            pass
        else:
            break
        assert found(root) == wanted(log)
        export(log, LocalDestination(root)).run()
        assert found(root) == wanted(log)
        check_named(root)
        compact(LocalDestination(root), "orders", LATER_US)
        assert found(root) == wanted(log)
        check_named(root)
        changes += 1
    assert changes > 15


def test_an_export_under_way_is_not_compacted(tmp_path: Path) -> None:
    log = small_files(tmp_path)
    grow(log, random.Random(3), 20)
    with pytest.raises(Stopped):
        export(log, StoppingTarget(tmp_path, 4, after=True)).run()
    before = paths(tmp_path)
    assert not any(e.files for e in compact(LocalDestination(tmp_path), "orders", LATER_US))
    assert paths(tmp_path) == before
    export(log, LocalDestination(tmp_path)).run()
    assert found(tmp_path) == wanted(log)


def test_a_changed_file_is_refused_and_stays(tmp_path: Path) -> None:
    small_files(tmp_path)
    target, before = LocalDestination(tmp_path), paths(tmp_path)
    changed = tmp_path / before[0]
    data = bytearray(changed.read_bytes())
    data[len(data) // 2] ^= 1
    changed.write_bytes(data)
    with pytest.raises(CorruptData, match="not as it was written"):
        compact(target, "orders", LATER_US)
    assert paths(tmp_path) == before
    assert not list((tmp_path / "_goq" / "tmp").rglob("*.parquet"))


def test_when_no_merged_file_can_be_written_exports_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = small_files(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.link", refuse)
        patched.setattr("os.replace", refuse)
        with pytest.raises(Exception, match="no room"):
            compact(LocalDestination(tmp_path), "orders", LATER_US)
    grow(log, random.Random(3), 5)
    export(log, LocalDestination(tmp_path)).run()
    assert found(tmp_path) == wanted(log)
    check_named(tmp_path)


def test_a_filesystem_without_exchange_is_refused_before_anything_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = small_files(tmp_path)
    before = paths(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(22, "folders cannot be exchanged in one step")

    monkeypatch.setattr("goq.pipeline.export.destination._exchange", refuse)
    with pytest.raises(Unavailable, match="exchanged in one step"):
        compact(LocalDestination(tmp_path), "orders", LATER_US)
    assert paths(tmp_path) == before
    grow(log, random.Random(3), 5)
    export(log, LocalDestination(tmp_path)).run()
    assert found(tmp_path) == wanted(log)
    check_named(tmp_path)


def test_a_folder_of_others_in_that_of_a_date_is_told(tmp_path: Path) -> None:
    small_files(tmp_path)
    place = (tmp_path / paths(tmp_path)[0]).parent / "notes"
    place.mkdir()
    with pytest.raises(Conflict, match="not of this export"):
        compact(LocalDestination(tmp_path), "orders", LATER_US)
    assert place.is_dir()


def test_files_of_others_in_the_folder_of_a_date_stay(tmp_path: Path) -> None:
    small_files(tmp_path)
    place = (tmp_path / paths(tmp_path)[0]).parent / "_SUCCESS"
    place.write_bytes(b"mine")
    compact(LocalDestination(tmp_path), "orders", LATER_US)
    assert place.read_bytes() == b"mine"


def test_files_that_a_catalog_names_are_not_merged_behind_its_back(tmp_path: Path) -> None:
    small_files(tmp_path)
    ledger = ExportLedger(LocalDestination(tmp_path), "messages", "orders")
    state = ledger.state()
    assert state is not None
    state.is_registered = True
    ledger.put_state(state)
    with pytest.raises(Conflict, match="--register"):
        compact(LocalDestination(tmp_path), "orders", LATER_US)
    done = compact(LocalDestination(tmp_path), "orders", LATER_US, keeps_registered=True)
    assert any(each.files for each in done)


def test_an_object_store_is_refused() -> None:
    from pyarrow import fs

    from goq.pipeline.export.remote_destination import RemoteDestination

    with pytest.raises(InvalidInput, match="object store"):
        compact(RemoteDestination(fs.LocalFileSystem(), "/nowhere"), "orders", LATER_US)


def entry(partition: int, start: int, end: int, size_bytes: int, last_us: int) -> FileEntry:
    return FileEntry(
        path=f"messages/topic_folder=t/date=d/{partition}-{start}-{end}.parquet",
        partition=partition,
        start_offset=start,
        end_offset=end,
        rows=end - start,
        bytes=size_bytes,
        first_time_us=0,
        last_time_us=last_us,
    )


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 120), st.integers(0, 20)), max_size=40),
    st.integers(1, 150),
    st.randoms(),
)
def test_merges_are_adjacent_closed_and_no_larger_than_the_target(
    files: Sequence[tuple[int, int, int]], target_bytes: int, rng: random.Random
) -> None:
    entries = [
        entry(p, n * 10, n * 10 + 10, size, at) for n, (p, size, at) in enumerate(sorted(files))
    ]
    mixed = rng.sample(entries, len(entries))
    merged = [one for some in merges_of(mixed, 10, target_bytes) for one in some]
    assert len({one.path for one in merged}) == len(merged)
    for some in merges_of(mixed, 10, target_bytes):
        assert len(some) > 1
        assert len({one.partition for one in some}) == 1
        assert all(one.last_time_us < 10 for one in some)
        assert sum(one.bytes for one in some) <= target_bytes
        assert [a.end_offset for a in some[:-1]] == [b.start_offset for b in some[1:]]
    taken = {one.path for one in merged}
    for one, other in pairwise(entries):
        if one.partition == other.partition and {one.path, other.path}.isdisjoint(taken):
            fit = one.bytes + other.bytes <= target_bytes
            assert not (fit and one.last_time_us < 10 and other.last_time_us < 10)


def test_only_files_of_hours_that_are_over_are_merged(tmp_path: Path) -> None:
    log, hour_us = LoggedFrames(1), 3_600_000_000
    for minute in (10, 20, 59, 60, 61):
        log.publish(0, [Message(b"%d" % minute)], minute * 60_000_000)
        export(log, LocalDestination(tmp_path)).run()
    compact(LocalDestination(tmp_path), "orders", 2 * hour_us - 1)
    assert [
        entry.start_offset for entry in sorted(named(tmp_path), key=lambda e: e.start_offset)
    ] == [
        0,
        3,
        4,
    ]
    compact(LocalDestination(tmp_path), "orders", 2 * hour_us)
    assert len(paths(tmp_path)) == 1
    assert found(tmp_path) == wanted(log)
