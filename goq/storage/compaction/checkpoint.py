"""The cleaner checkpoint of a log, in the file ``compacted``: how far passes got.

It says of every frame before an offset that a pass has read it. A pass relies on that when it
removes a tombstone: nothing older of its key is left. So the file goes, durably, before frames that
no pass has read come below that offset. Without it the next pass begins at the start of the log.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from goq.frame.checksum import crc32c
from goq.storage.disk import Disk

CHECKPOINT_NAME = "compacted"
_PROGRESS = struct.Struct("<2q")
_CRC = struct.Struct("<I")


class CleanerCheckpoint(NamedTuple):
    """How far a log is cleaned, and since when its oldest tombstone counts, 0 for none."""

    compacted_to: int = 0
    tombstone_us: int = 0


def read_checkpoint(disk: Disk, directory: Path) -> CleanerCheckpoint:
    """Return the cleaner checkpoint in a log's directory; an empty one if there is none."""
    try:
        return _decode(disk, directory) or CleanerCheckpoint()
    except OSError:
        return CleanerCheckpoint()


def is_checkpoint_damaged(disk: Disk, directory: Path) -> bool:
    """Return whether there is a cleaner checkpoint with bad bytes. Raises ``OSError``."""
    try:
        return _decode(disk, directory) is None
    except FileNotFoundError:
        return False


def _decode(disk: Disk, directory: Path) -> CleanerCheckpoint | None:
    data = bytes(disk.read(directory / CHECKPOINT_NAME, 0, _PROGRESS.size + _CRC.size))
    if len(data) < _PROGRESS.size + _CRC.size:
        return None
    if _CRC.unpack_from(data, _PROGRESS.size)[0] != crc32c(data[: _PROGRESS.size]):
        return None
    return CleanerCheckpoint(*_PROGRESS.unpack_from(data))


def write_checkpoint(disk: Disk, directory: Path, progress: CleanerCheckpoint) -> None:
    """Write the cleaner checkpoint; a lost one costs the time of a pass."""
    data = _PROGRESS.pack(*progress)
    try:
        disk.replace(directory / CHECKPOINT_NAME, data + _CRC.pack(crc32c(data)))
    except OSError:
        return


def forget_checkpoint(disk: Disk, directory: Path, offset: int) -> None:
    """Remove the cleaner checkpoint, durably, unless all that it covers lies before ``offset``.

    Call it before frames that no pass has read are written from ``offset`` on. Raises ``OSError``.
    """
    if CHECKPOINT_NAME not in disk.names(directory):
        return
    if not 0 < read_checkpoint(disk, directory).compacted_to <= offset:
        disk.remove(directory / CHECKPOINT_NAME)
