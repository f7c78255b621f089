"""A journal of small pieces on a simulated disk, and the logs that commit through it."""

from __future__ import annotations

from pathlib import Path

from goq.clock import ManualClock
from goq.storage.journal.journal import NodeJournal
from goq.storage.log.log import Log, LogConfig
from tests.support.storage.disk import InlineExecutor, SimulatedDisk
from tests.support.storage.logs import frame_of

ROOT = Path("/data/topics")
JOURNAL = Path("/data/journal")
ORDERS, EVENTS = ROOT / "orders/0/messages", ROOT / "orders/0/events"
FRAME = frame_of([b"a message"] * 3)


def open_journal(disk: SimulatedDisk, now_us: int = 1) -> NodeJournal:
    return NodeJournal.open(disk, JOURNAL, ROOT, InlineExecutor(), ManualClock(now_us))


def open_log(disk: SimulatedDisk, journal: NodeJournal, directory: Path = ORDERS) -> Log:
    return Log.open(directory, disk, LogConfig(), journal=journal)


def syncs_of(disk: SimulatedDisk) -> list[Path]:
    """Record which files are synced from now on."""
    synced: list[Path] = []

    def note(operation: str, path: Path) -> None:
        if operation == "sync":
            synced.append(path)

    disk.fault = note
    return synced


def warm_up(log: Log) -> None:
    """Have room made in the journal; a batch before it would sync its segment."""
    assert not log.can_journal(log.begin(0))
    assert log.can_journal(log.begin(0))


def lose_unsynced(disk: SimulatedDisk, *paths: Path) -> None:
    """Cut the power where files lose all that was not synced."""
    for path in paths:
        inode = disk._inode(path)
        inode.data = bytearray(inode.stable)
        inode.dirty.clear()
    disk.life += 1
