"""Everyone reads an export: as one table, also when its decoded columns have grown."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from goq.model import Message
from goq.pipeline.arrow.tables import MESSAGES_TABLE
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.export import Export
from tests.support.pipeline.lake_changes import CHANGES, cells, export_change
from tests.support.pipeline.lake_readers import BY_NAME, PLAIN, Reader
from tests.support.pipeline.logged_frames import LoggedFrames

DAY_US = 86_400_000_000


@pytest.mark.parametrize("read", PLAIN, ids=lambda read: read.__name__)
def test_each_reader_gives_every_row_of_every_topic_once(tmp_path: Path, read: Reader) -> None:
    wanted = set()
    for topic in ("orders", "001", "2025-01-15"):
        log = LoggedFrames(2)
        for number in range(4):
            value = f"{topic} {number}".encode()
            log.publish(number % 2, [Message(value, b"k")], number * DAY_US)
            wanted.add((topic, number % 2, number // 2, value))
        Export(log, LocalDestination(tmp_path), MESSAGES_TABLE, topic).run()
    rows = read(tmp_path / "messages")
    found = [(row["topic"], row["partition"], row["offset"], bytes(row["value"])) for row in rows]
    assert len(found) == len(wanted)
    assert set(found) == wanted


@pytest.mark.parametrize("read", BY_NAME, ids=lambda read: read.__name__)
@pytest.mark.parametrize("change", CHANGES)
def test_old_and_new_files_are_one_table_after_a_change(
    tmp_path: Path, change: str, read: Reader
) -> None:
    export_change(change, tmp_path)
    assert cells(read(tmp_path / "messages")) == CHANGES[change].wanted
