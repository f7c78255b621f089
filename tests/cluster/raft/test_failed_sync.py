"""After a sync that failed the system takes what it did not write for written."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from goq.cluster.raft.log.journal import Journal
from goq.errors import StorageFailed
from tests.support.storage.disk import SimulatedDisk

FOLDER = Path("/raft")
ENTRY = (b"\1 a command", 2, 1)


@pytest.mark.parametrize("seed", range(10))
def test_an_entry_that_a_failed_sync_left_is_durable_once_the_journal_is_open_again(
    seed: int,
) -> None:
    disk = SimulatedDisk(Random(seed))
    journal = Journal.open(disk, FOLDER, ["n1"])
    journal.add(*ENTRY)
    disk.fault = lambda operation, _path: errno.EIO if operation == "sync" else None
    with pytest.raises(StorageFailed):
        journal.sync()
    disk.fault = lambda _operation, _path: None
    disk.crash(power=False)
    assert Journal.open(disk, FOLDER, ["n1"]).last == ENTRY
    disk.crash(power=True)
    assert Journal.open(disk, FOLDER, ["n1"]).last == ENTRY
