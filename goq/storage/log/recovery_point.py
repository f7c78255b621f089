"""The recovery point of a log: what is durable, and where recovery starts. Kept in its own file.

The file distinguishes a torn tail from corruption. Bad bytes at or after the durable end were never
acknowledged, and may be cut off. Bad bytes before it were acknowledged, and must stay. The file
``watermark`` holds two slots of 512 bytes, written alternately. The newest sound slot counts:

    sequence u64 · checkpoint (segment, position, offset, time_us) 4 x i64 ·
    durable (segment, position, offset) 3 x i64 · CRC32C u32 of all before it ·
    journal mark (journal id, record) 2 x u64 · CRC32C u32 of slot and mark before it ·
    log id u64 · CRC32C u32 of it

``durable`` is written after each sync of the log, before any acknowledgement. It is itself synced
only with each checkpoint, and before the journal gives up records. So it is exact after a killed
process, and a power cut may set it back to the last of these. Frames between the two are then
judged by their CRC alone. Sound frames stay, so no acknowledged frame is lost unless the disk also
damaged it in the moments since.

``checkpoint`` is where recovery starts to scan. The segment's index reaches at least that far.

Frames that are committed through the journal of the node do not move the durable end while the
journal has them. Before it gives them up, the segment is synced, and then the recovery point, whose
durable end is behind them. The *journal mark* is a record of the journal. The segments have,
synced, what this log committed up to it; older records do not count for this log.

The *log id* says whose file it is, by the path of the log. With places of another log, recovery
would begin within a frame and take all from there on for a torn tail. So a file of another log, put
here by a restore or a repair by hand, counts as missing. Slots of older versions have no id.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from goq.frame.checksum import crc32c
from goq.storage.disk import Disk, File

FILE_NAME = "watermark"
_SLOT = struct.Struct("<Q4q3q")
_MARK = struct.Struct("<QQ")
_CRC = struct.Struct("<I")
_MARKED_BYTES = _SLOT.size + _CRC.size + _MARK.size
_LOG_ID = struct.Struct("<Q")
_SLOT_BYTES = 512
_LOG_PATH_PARTS = 3  # the folders of topic, partition and log


class Checkpoint(NamedTuple):
    """All frames before this position were sound when the checkpoint was taken."""

    segment: int
    position: int
    offset: int
    time_us: int


class DurableEnd(NamedTuple):
    """All frames before this position survive a power cut."""

    segment: int
    position: int
    offset: int


class JournalMark(NamedTuple):
    """A record of a journal. Later journals of a node have higher ids."""

    journal_id: int
    number: int


NO_MARK = JournalMark(0, 0)


class RecoveryPoint:
    """The checkpoint, the durable end and the journal mark of a log, kept in a file."""

    def __init__(
        self,
        file: File,
        log_id: int,
        sequence: int,
        checkpoint: Checkpoint,
        durable: DurableEnd,
        journal_mark: JournalMark = NO_MARK,
    ) -> None:
        self._file = file
        self._log_id = log_id
        self._sequence = sequence
        self.checkpoint = checkpoint
        self.durable = durable
        self.journal_mark = journal_mark
        self.synced_mark = journal_mark
        """The journal mark that the file has durably, with a durable end that reaches as far."""

    @classmethod
    def create(cls, disk: Disk, directory: Path, base_offset: int) -> RecoveryPoint:
        """Create a recovery point at ``base_offset``; writes nothing yet."""
        checkpoint = Checkpoint(base_offset, 0, base_offset, 0)
        durable = DurableEnd(base_offset, 0, base_offset)
        file = disk.open(directory / FILE_NAME)
        return cls(file, log_id_of(directory), 0, checkpoint, durable)

    @classmethod
    def load(cls, disk: Disk, directory: Path) -> RecoveryPoint | None:
        """Return the newest sound slot, or None when the file has none or is of another log."""
        found = _read(disk, directory)
        if found is None:
            return None
        return cls(disk.open(directory / FILE_NAME), log_id_of(directory), *found)

    def advance(self, durable: DurableEnd) -> None:
        """Record what was just synced."""
        self.durable = durable
        self._write(must_last=False)  # the next slot has it too

    def take_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Record, durably, where the next recovery may start."""
        self.checkpoint = checkpoint
        self.sync()

    def sync(self) -> None:
        """Make the recovery point itself durable."""
        self._write(must_last=True)
        self._file.sync()
        self.synced_mark = self.journal_mark

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _write(self, *, must_last: bool) -> None:
        self._sequence += 1
        fields = _SLOT.pack(self._sequence, *self.checkpoint, *self.durable)
        slot = fields + _CRC.pack(crc32c(fields)) + _MARK.pack(*self.journal_mark)
        slot += _CRC.pack(crc32c(slot))
        log_id = _LOG_ID.pack(self._log_id)
        slot += log_id + _CRC.pack(crc32c(log_id))
        self._file.write_at(slot, _SLOT_BYTES * (self._sequence % 2), must_last=must_last)


def log_id_of(directory: Path) -> int:
    """Return the id of the log in a folder: a hash of its path below the data folder's topics."""
    path = "/".join(directory.parts[-_LOG_PATH_PARTS:])
    digest = hashlib.blake2b(path.encode(), digest_size=_LOG_ID.size).digest()
    return int(_LOG_ID.unpack(digest)[0])


def is_of_another_log(disk: Disk, directory: Path) -> bool:
    """Return whether the file in a folder was written for the log of another folder."""
    return _are_foreign(_slots(disk, directory), directory)


def read_durable_end(disk: Disk, directory: Path) -> DurableEnd | None:
    """Return the durable end of a log without a change to it; None if no file has one."""
    found = _read(disk, directory)
    return None if found is None else found[2]


def read_journal_mark(disk: Disk, directory: Path) -> JournalMark:
    """Return the journal mark of a log without a change to it; ``NO_MARK`` if no file has one."""
    found = _read(disk, directory)
    return NO_MARK if found is None else found[3]


_Slot = tuple[int, Checkpoint, DurableEnd, JournalMark]


def _read(disk: Disk, directory: Path) -> _Slot | None:
    slots = _slots(disk, directory)
    if _are_foreign(slots, directory):
        return None
    return max((slot for slot in map(_unpack, slots) if slot is not None), default=None)


def _slots(disk: Disk, directory: Path) -> tuple[bytes, ...]:
    try:
        data = bytes(disk.read(directory / FILE_NAME, 0, 2 * _SLOT_BYTES))
    except FileNotFoundError:
        return ()
    return data[:_SLOT_BYTES], data[_SLOT_BYTES:]


def _are_foreign(slots: Sequence[bytes], directory: Path) -> bool:
    """Return whether any slot is of another log: one without an id beside it is then, too."""
    own_id = log_id_of(directory)
    return any(log_id not in (None, own_id) for log_id in map(_read_log_id, slots))


def _read_log_id(slot: bytes) -> int | None:
    """Return the log id of a slot, None if it has no sound one."""
    start = _MARKED_BYTES + _CRC.size
    packed, crc = slot[start : start + _LOG_ID.size], slot[start + _LOG_ID.size :][: _CRC.size]
    if len(crc) < _CRC.size or crc32c(packed) != _CRC.unpack(crc)[0]:
        return None
    return int(_LOG_ID.unpack(packed)[0])


def _unpack(data: bytes) -> _Slot | None:
    if len(data) < _SLOT.size + _CRC.size:
        return None
    if crc32c(data[: _SLOT.size]) != _CRC.unpack_from(data, _SLOT.size)[0]:
        return None
    mark = _unpack_mark(data)
    if mark is None:
        return None
    sequence, *places = _SLOT.unpack_from(data)
    return sequence, Checkpoint(*places[:4]), DurableEnd(*places[4:]), mark


def _unpack_mark(data: bytes) -> JournalMark | None:
    """Return the mark of a slot, None if it is damaged. Slots of older versions have none."""
    marked = data[: _MARKED_BYTES + _CRC.size].ljust(_MARKED_BYTES + _CRC.size, b"\0")
    if not any(marked[_SLOT.size + _CRC.size :]):
        return NO_MARK
    if crc32c(marked[:_MARKED_BYTES]) != _CRC.unpack_from(marked, _MARKED_BYTES)[0]:
        return None
    return JournalMark(*_MARK.unpack_from(marked, _SLOT.size + _CRC.size))
