"""The Raft log of a member, with its term and vote, in one append-only file.

    journal         records; see ``records.py``
    journal.synced  generation u64 · bytes of the journal that are durable u64 · CRC32C u32

Appended records stay in memory until :meth:`Journal.sync`, which writes them at once and syncs.
Callers sync before they acknowledge anything. An entry whose index exists replaces that entry and
all later ones by a new record, so that durable bytes are never overwritten. Trimming the start
writes the rest as a new file, which replaces the old one; each such file is a new *generation*.

The second file separates a torn end from corruption. Bytes beyond the size that it names were never
acknowledged: a bad record there ends the journal. A bad record before that is corruption, and the
journal refuses to open. The file itself is not synced, so a power cut may leave an older version of
it. Then only records that are corrupt *and* were synced shortly before can be taken for a torn end.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any, NamedTuple

from goq import limits
from goq.cluster.raft import codec
from goq.cluster.raft.log.records import (
    FORMAT,
    Base,
    Entry,
    Record,
    Term,
    pack_base,
    pack_entry,
    pack_term,
    unpack,
)
from goq.cluster.raft.member import members_after
from goq.errors import CorruptData, StorageFailed, StorageFull
from goq.frame.checksum import crc32c
from goq.storage.disk import Disk, is_temporary

FILE_NAME = "journal"
SYNCED_NAME = "journal.synced"
_SYNCED = struct.Struct("<QQ")
_CRC = struct.Struct("<I")
_log = logging.getLogger(__name__)


class Journal:
    """The log from some entry on, which is applied on this member and never cut off.

    Also the library's journal interface: ``len``, items and slices (of :class:`Entry`), ``add``,
    ``setCurrentTerm`` and its other methods. Raises ``StorageFull`` where a later try may succeed,
    and ``StorageFailed`` always after the disk has failed.
    """

    def __init__(self, disk: Disk, folder: Path, records: list[Record]) -> None:
        base, *rest = (record.value for record in records)
        assert isinstance(base, Base)
        self._disk = disk
        self._path = folder / FILE_NAME
        self._base = base
        self._term = Term(0, None)
        self._entries: list[Entry] = []
        self._pending: list[bytes] = []
        self._unsynced = False
        self._failed = False
        for value in rest:
            self._apply_record(value)
        self._file = disk.open(self._path)
        self._synced_file = disk.open(folder / SYNCED_NAME)
        self._rewritten_bytes = self._file.size_bytes

    @classmethod
    def open(cls, disk: Disk, folder: Path, members: list[str]) -> Journal:
        """Open the journal in a folder; a new one starts with these members.

        Raises ``CorruptData`` when bytes that were synced have changed.
        """
        disk.make_dir(folder)
        names = disk.names(folder)
        if FILE_NAME not in names:
            if SYNCED_NAME in names:
                raise CorruptData(f"{folder / FILE_NAME} is missing; {_ADVICE}")
            base = Base(FORMAT, 1, members)
            disk.replace(folder / FILE_NAME, _encode_journal(base, Term(0, None), [_FIRST]))
        path = folder / FILE_NAME
        data = bytes(disk.read(path, 0, disk.size(path)))
        records = list(unpack(data))
        synced = _read_synced_file(disk, folder)
        _check_intact(path, records, synced)
        journal = cls(disk, folder, records)
        same = synced is not None and synced.generation == journal._base.generation
        journal._recover_tail(data[: records[-1].end], synced.size_bytes if synced and same else 0)
        return journal

    # Entries

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, place: Any) -> Any:
        return self._entries[place]

    @property
    def size_bytes(self) -> int:
        """The size of the file, with the records that are not yet written."""
        return self._file.size_bytes + sum(map(len, self._pending))

    @property
    def is_synced(self) -> bool:
        """Whether all appended records survive power loss."""
        return not (self._pending or self._unsynced or self._failed)

    @property
    def has_grown(self) -> bool:
        """Whether a rewrite of the file could make it much smaller."""
        return self.size_bytes > 2 * self._rewritten_bytes

    @property
    def first(self) -> Entry:
        """The entry before all others; its command does not matter any more."""
        return self._entries[0]

    @property
    def last(self) -> Entry:
        """The newest entry, which may not be synced yet."""
        return self._entries[-1]

    def at(self, index: int) -> Entry | None:
        """Return the entry at an index, or None."""
        place = index - self._entries[0].index
        return self._entries[place] if 0 <= place < len(self._entries) else None

    def get(self, index: int) -> Entry:
        """Return the entry at an index, which must exist."""
        return self._entries[index - self._entries[0].index]

    def batch(self, index: int, bytes_max: int) -> list[Entry]:
        """Return entries from an index on, of about this size: at least one if one exists."""
        place, size_bytes = index - self._entries[0].index, 0
        found = self._entries[place : place + limits.RAFT_BATCH_ENTRIES_MAX]
        for count, entry in enumerate(found, 1):
            size_bytes += len(entry.command)
            if size_bytes >= bytes_max:
                return found[:count]
        return found

    def entries_from(self, index: int) -> list[Entry]:
        """Return the entries from an index on."""
        return self._entries[max(0, index - self._entries[0].index) :]

    def command_kinds(self, index: int) -> set[int]:
        """Return the kinds of all commands from an index on."""
        return {entry.command[0] for entry in self.entries_from(index)}

    def members(self, index: int | None = None) -> list[str]:
        """Return the members as of an entry, or as of the last."""
        members = self._base.members
        for entry in self._entries[1:]:
            if index is not None and entry.index > index:
                break
            if entry.command[:1] == bytes((codec.MEMBERSHIP,)):
                members = members_after(members, *codec.decode_change(entry.command))
        return members

    # Changes

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append an entry, after removing all entries with its index or a higher one."""
        self._raise_if_failed()
        entry = Entry(command, index, term)
        self._apply_record(entry)
        self._pending.append(pack_entry(entry))

    def set_term(self, term: int, vote: str | None) -> None:
        """Change term and vote durably; after ``StorageFull`` they are unchanged."""
        self._raise_if_failed()
        before = self._term
        self._apply_record(Term(term, vote))
        self._pending.append(pack_term(self._term))
        try:
            self.sync()
        except StorageFull:
            self._term = before
            self._pending.pop()
            raise

    def sync(self) -> None:
        """Return once all appended records survive power loss."""
        self._raise_if_failed()
        if self.is_synced:
            return
        try:
            self._unsynced = True
            if self._pending:
                self._file.append(self._pending)
                self._pending.clear()
            self._file.sync()
            self._unsynced = False
            self._write_synced_file()
        except OSError as error:
            if is_temporary(error) and self._pending:  # none of the records was written
                raise StorageFull(
                    f"{self._path} cannot be written: {error.strerror}; free some space"
                ) from None
            self._failed = True
            raise StorageFailed(f"{self._path} could not be written: {error}") from error

    def trim(self, index: int) -> None:
        """Remove all entries before ``index``, which becomes the first."""
        kept = self._entries[index - self.first.index :]
        self._rewrite(self.members(index), kept)

    def reset(self, index: int, term: int, members: list[str]) -> None:
        """Start over after a snapshot of this index and term."""
        self._rewrite(members, [Entry(codec.NO_OP_COMMAND, index, term)])

    def close(self) -> None:
        """Close the files; records that were not synced are dropped."""
        self._file.close()
        self._synced_file.close()

    def _rewrite(self, members: list[str], entries: list[Entry]) -> None:
        self._raise_if_failed()
        base = Base(FORMAT, self._base.generation + 1, members)
        try:
            self._disk.replace(self._path, _encode_journal(base, self._term, entries))
            self._file.close()
            self._file = self._disk.open(self._path)
            self._base, self._entries = base, entries
            self._pending.clear()
            self._unsynced = False
            self._rewritten_bytes = self._file.size_bytes
            self._write_synced_file()
        except OSError as error:
            if is_temporary(error) and self._base is not base:
                raise StorageFull(
                    f"{self._path} cannot be written: {error.strerror}; free some space"
                ) from None
            self._failed = True
            raise StorageFailed(f"{self._path} could not be replaced: {error}") from error

    def _apply_record(self, value: Base | Term | Entry) -> None:
        if isinstance(value, Term):
            self._term = value
        elif isinstance(value, Entry):
            if self._entries:
                place = value.index - self.first.index
                if not 0 < place <= len(self._entries):
                    raise CorruptData(
                        f"{self._path} has entry {value.index} out of order; {_ADVICE}"
                    )
                del self._entries[place:]
            self._entries.append(value)
        else:
            raise CorruptData(f"{self._path} has a second base record; {_ADVICE}")

    def _recover_tail(self, data: bytes, synced_bytes: int) -> None:
        """Cut off a torn end, and make durable what an earlier process only wrote.

        The bytes are written again: after a failed sync, the operating system may consider them
        written, and the next sync would do nothing.
        """
        if self._file.size_bytes > len(data):
            torn_bytes = self._file.size_bytes - len(data)
            _log.warning("%s: removed a torn end of %d bytes", self._path, torn_bytes)
            self._file.truncate(len(data))
        if synced_bytes < len(data):
            self._file.write_at(data[synced_bytes:], synced_bytes)
        self._unsynced = True
        self.sync()

    def _write_synced_file(self) -> None:
        fields = _SYNCED.pack(self._base.generation, self._file.size_bytes)
        self._synced_file.write_at(fields + _CRC.pack(crc32c(fields)), 0)

    def _raise_if_failed(self) -> None:
        if self._failed:
            raise StorageFailed(f"{self._path} has failed; restart the node once the disk works")

    # The library's interface

    def setCurrentTerm(self, term: int, vote: str | None) -> None:
        """See :meth:`set_term`."""
        self.set_term(term, vote)

    def getCurrentTerm(self) -> int:
        """Return the current term."""
        return self._term.term

    def getVotedForNodeId(self) -> str | None:
        """Return the id of the member that has the vote of the current term."""
        return self._term.vote

    def setRaftCommitIndex(self, _index: int) -> None:
        """Do nothing: the state machine keeps the applied index, which is committed."""

    def onOneSecondTimer(self) -> None:
        """Do nothing: everything durable is written at once."""

    def _destroy(self) -> None:
        self.close()


class _Synced(NamedTuple):
    """How many bytes of a journal are durable."""

    generation: int
    size_bytes: int


_FIRST = Entry(codec.NO_OP_COMMAND, 1, 0)
_ADVICE = "remove this node from the cluster, and join it again with an empty folder"


def _encode_journal(base: Base, term: Term, entries: list[Entry]) -> bytes:
    return b"".join((pack_base(base), pack_term(term), *map(pack_entry, entries)))


def _check_intact(path: Path, records: list[Record], synced: _Synced | None) -> None:
    kinds = [type(record.value) for record in records[:3]]
    if kinds != [Base, Term, Entry]:  # a file has these before it gets its name
        raise CorruptData(f"{path} does not start with the records of a journal; {_ADVICE}")
    end = records[-1].end
    base = records[0].value
    assert isinstance(base, Base)
    if synced is not None and synced.generation == base.generation and end < synced.size_bytes:
        raise CorruptData(
            f"{path} is corrupt at byte {end} of {synced.size_bytes} synced bytes; {_ADVICE}"
        )


def _read_synced_file(disk: Disk, folder: Path) -> _Synced | None:
    try:
        data = bytes(disk.read(folder / SYNCED_NAME, 0, _SYNCED.size + _CRC.size))
    except FileNotFoundError:
        return None
    fields, check = data[: _SYNCED.size], data[_SYNCED.size :]
    if check != _CRC.pack(crc32c(fields)):
        return None
    return _Synced(*_SYNCED.unpack(fields))
