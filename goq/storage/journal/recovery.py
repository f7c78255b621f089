"""Recovery of the journal: what its pieces hold when a node starts, given to the logs.

Damage is told and stops nothing. After damage the journal goes on under a new id, so that a record
that could not be read never counts later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from goq.storage.disk import Disk
from goq.storage.journal.piece import (
    DAMAGED_SUFFIX,
    NEW_SUFFIX,
    JournalPiece,
    ScannedPiece,
    journal_damage,
    scan_pieces,
    told_damage,
)
from goq.storage.journal.redo import MarkedEntry, redo_log
from goq.storage.log.recovery_point import JournalMark

_log = logging.getLogger("goq.storage")


class RecoveredJournal(NamedTuple):
    """A journal as a start found it."""

    last_mark: JournalMark
    """The mark after which the next record comes."""
    pieces: list[JournalPiece]
    """The pieces in the order of their records; those without marks are free."""
    settled: dict[str, JournalMark]
    """The marks up to which segments have everything, by the path of their log."""
    problems: list[str]
    """Damage, in words for users."""


def recover(
    disk: Disk, directory: Path, root: Path, wall_us: Callable[[], int]
) -> RecoveredJournal:
    """Open the pieces in ``directory``, and complete the logs below ``root`` from them.

    A log that cannot be completed now is left out of ``settled``. Raises ``OSError``.
    """
    for name in disk.names(directory):
        if name.endswith(NEW_SUFFIX):
            disk.remove(directory / name)
    problems = told_damage(disk, directory)
    scanned = scan_pieces(disk, directory)
    problems += [_tell(disk, *damage) for damage in journal_damage(scanned)]
    last_mark = _last_mark(scanned)
    if not scanned or problems:
        last_mark = JournalMark(max(wall_us(), last_mark.journal_id + 1), 0)
    pieces: list[JournalPiece] = []
    entries: dict[str, list[MarkedEntry]] = {}
    for piece in scanned:
        marks: dict[str, JournalMark] = {}
        for record in piece.records:
            mark = JournalMark(record.journal_id, record.number)
            for entry in record.entries():
                entries.setdefault(entry.path, []).append((mark, entry))
                marks[entry.path] = mark
        pieces.append(JournalPiece.reopen(disk, piece.path, marks))
    settled: dict[str, JournalMark] = {}
    for path, of_log in entries.items():
        try:
            redo_log(disk, root / path, of_log)
            settled[path] = of_log[-1][0]
        except OSError as error:
            _log.error("%s cannot be completed from the journal: %s", root / path, error)
    return RecoveredJournal(last_mark, pieces, settled, problems)


def _last_mark(scanned: list[ScannedPiece]) -> JournalMark:
    last_id = max((piece.header.journal_id for piece in scanned), default=0)
    last = [piece for piece in scanned if piece.header.journal_id == last_id]
    return JournalMark(last_id, max((piece.next_number - 1 for piece in last), default=0))


def _tell(disk: Disk, path: Path, reason: str) -> str:
    """Report damage at this and later starts, until the file that tells it is deleted."""
    told = path.with_name(path.name + DAMAGED_SUFFIX)
    text = f"{path}: {reason}; messages may be lost. Delete {told} when that is looked into"
    disk.replace(told, text.encode())
    _log.error("%s", text)
    return text
