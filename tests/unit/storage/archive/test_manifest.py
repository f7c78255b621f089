"""What the files of an archive say that ``node.db`` does not know, in the store or not."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock, call

import pytest

from goq.storage.archive import manifest
from goq.storage.archive.file import SUFFIX as ARCHIVE_SUFFIX
from goq.storage.archive.file import Footer
from goq.storage.archive.manifest import ArchiveKey, archive_row, find_unlisted, verify_archive
from goq.storage.archive.stored_entry import (
    SUFFIX,
    StoredEntry,
    StoredObject,
    write_entry,
)
from goq.storage.catalog.rows import ArchiveRow
from tests.support.storage.disk import SimulatedDisk

ROOT = Path("/archive")
PLACE = ROOT / "t" / "0" / "messages"


def put_entry(disk: SimulatedDisk, base_offset: int) -> ArchiveRow:
    """Let a segment be in the store; return its row."""
    footer = Footer(base_offset, base_offset + 5, 900, 1, 2, 3, 4, [])
    stored = StoredObject(ARCHIVE_SUFFIX, "key", 300, "0" * 64)
    path = PLACE / f"{base_offset:020}{SUFFIX}"
    write_entry(disk, path, StoredEntry("s3://bucket", footer, (stored,)))
    return archive_row(("t", 0), "messages", footer, 300)


def unlisted(disk: SimulatedDisk, *known: ArchiveRow) -> list[ArchiveRow]:
    listed: dict[ArchiveKey, ArchiveRow] = {row[:4]: row for row in known}
    return list(find_unlisted(disk, ROOT, {"t"}, listed))


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dir(PLACE)
    return disk


def test_stored_segments_that_are_not_listed_are_found_and_listed_ones_are_not_read(
    disk: SimulatedDisk,
) -> None:
    rows = [put_entry(disk, 0), put_entry(disk, 5)]
    assert unlisted(disk) == rows
    assert unlisted(disk, rows[0]) == rows[1:]
    for path in disk.paths():
        disk.flip(path, 5, 1)
    assert unlisted(disk, *rows) == []


def test_a_damaged_entry_is_told_and_hides_no_other(
    disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    put_entry(disk, 0)
    row = put_entry(disk, 5)
    disk.flip(PLACE / f"{0:020}{SUFFIX}", 60, 1)
    assert unlisted(disk) == [row]
    assert "is damaged" in caplog.text


def test_unfinished_files_are_removed_and_what_goq_did_not_write_stays(
    disk: SimulatedDisk,
) -> None:
    row = put_entry(disk, 5)
    part, others = PLACE / f"{0:020}{ARCHIVE_SUFFIX}.part", [PLACE / "notes", PLACE / f"x{SUFFIX}"]
    for path in (part, *others):
        disk.put(path, b"anything")
    disk.make_dir(ROOT / "other" / "0" / "messages")
    disk.put(ROOT / "other" / "0" / "messages" / part.name, b"anything")
    assert unlisted(disk) == [row]
    assert part not in disk.paths()
    assert {*others, ROOT / "other" / "0" / "messages" / part.name} <= set(disk.paths())


def test_a_check_of_many_stored_segments_opens_their_store_once(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of a store has connections, and certificates to read; it is for many objects."""
    for base_offset in range(0, 50, 5):
        put_entry(disk, base_offset)
    store = Mock()
    store.read.side_effect = FileNotFoundError
    open_store = Mock(return_value=store)
    monkeypatch.setattr(manifest, "open_store", open_store)
    problems = verify_archive(disk, Path("/"))
    assert [each for each in problems if "is missing" in each] == problems
    assert len(problems) == 10
    assert open_store.mock_calls == [call("s3://bucket")]
