"""A check of every byte of a place, and the removal of old backups.

A removal deletes manifests, then the objects that no manifest names. It may be cut short anywhere:
each manifest that is left has all its objects, and the next removal finishes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from goq.backup.manifest import BackupManifest
from goq.backup.object_writer import PIECE_BYTES
from goq.backup.place import BackupPlace, FoundManifest
from goq.errors import CorruptData, NotFound, UnsupportedFormat


class InspectionReport(NamedTuple):
    """The backups and bytes that were checked, and what is wrong, in words for users."""

    backups: int
    objects: int
    bytes: int
    problems: list[str]


class PruneResult(NamedTuple):
    """The number of backups and objects that were removed, and their bytes."""

    backups: int
    objects: int
    bytes: int


def verify_place(
    place: BackupPlace, name: str | None = None, on_bytes: Callable[[int], object] = lambda _n: None
) -> InspectionReport:
    """Read every byte of one backup, or of all; blocks on the disk. Raises ``NotFound``."""
    with place.locked(exclusive=False):
        found = [place.read(name)] if name is not None else place.all()
        if not found:
            raise NotFound(f"{place.where} has no backups")
        problems = [each.damage for each in found if each.manifest is None]
        users = dict[str, str]()
        for each in found:
            for digest, user in _users(each.name, each.manifest):
                users.setdefault(digest, user)
        checked = 0
        for digest, user in users.items():
            problem, size_bytes = _check_object(place, digest, on_bytes)
            checked += size_bytes
            if problem:
                problems.append(f"{place.told(place.objects / digest)} {problem}: {user}")
    return InspectionReport(len(found), len(users), checked, problems)


def _users(name: str, manifest: BackupManifest | None) -> Iterator[tuple[str, str]]:
    """Yield the objects of a backup, with what they hold in words."""
    for topic in () if manifest is None else manifest.topics:
        for partition in topic.logs:
            for log, stored in partition.logs:
                for file in stored.files:
                    if file.digest:
                        held = f"{log} of {topic.name}:{partition.number}"
                        yield file.digest, f"{held} from {file.base_offset} on, backup {name}"


def read_object(place: BackupPlace, digest: str) -> Iterator[memoryview]:
    """Yield the bytes of an object in pieces. Raises ``CorruptData`` at the end for wrong bytes."""
    path, found, position = place.objects / digest, sha256(), 0
    size_bytes = place.object_size(digest)
    if size_bytes < 0:
        raise FileNotFoundError(f"{place.told(path)} is missing")
    while position < size_bytes:
        data = place.disk.read(path, position, min(PIECE_BYTES, size_bytes - position))
        if not data:
            break  # it was cut meanwhile
        found.update(data)
        position += len(data)
        yield data
    if found.hexdigest() != digest:
        raise CorruptData(f"{place.told(path)} is damaged: its bytes do not match its name")


def _check_object(
    place: BackupPlace, digest: str, on_bytes: Callable[[int], object]
) -> tuple[str, int]:
    size_bytes = 0
    try:
        for data in read_object(place, digest):
            size_bytes += len(data)
            on_bytes(len(data))
    except FileNotFoundError:
        return "is missing", 0
    except CorruptData:
        return "is damaged", size_bytes
    except OSError as error:
        return f"cannot be read ({error.strerror})", size_bytes
    return "", size_bytes


def prune_place(place: BackupPlace, before_us: int, now_s: float | None = None) -> PruneResult:
    """Remove backups older than ``before_us``; blocks on the disk.

    Never the newest, also of those that are not of a later time than now, nor the newest that lacks
    no partition.

    ``now_s`` is the time now, by which objects of a store are young, that of the clock without it.

    Raises ``CorruptData`` or ``UnsupportedFormat``, with nothing removed, if a manifest cannot be
    read: its objects are unknown. Raises ``Conflict`` if it stood still for too long.
    """
    now_s = time.time() if now_s is None else now_s
    with place.locked(exclusive=True), place.marked() as renew_mark:
        found = list[tuple[str, BackupManifest]]()
        for name in place.names():
            found.append((name, _manifest_of(place.read(name))))
            renew_mark()
        stay = {name for name, _ in found[-1:]}
        stay |= set([name for name, each in found if each.time_us <= now_s * 1e6][-1:])
        stay |= set([name for name, each in found if not each.missing][-1:])
        old = [n for n, each in found if n not in stay and each.time_us < before_us]
        for name in old:
            renew_mark()
            place.remove(name)
        kept = {file.digest for name, each in found if name not in old for file in each.files}
        unused = place.removable_names(kept, now_s)
        return _remove_unused(place, unused, len(old), renew_mark)


def _manifest_of(found: FoundManifest) -> BackupManifest:
    if found.is_of_later_goq:
        raise UnsupportedFormat(found.damage)
    if found.manifest is None:
        raise CorruptData(f"{found.damage}; remove it, then prune again")
    return found.manifest


def _remove_unused(
    place: BackupPlace, unused: list[str], backups: int, renew_mark: Callable[[], None]
) -> PruneResult:
    disk, objects, size_bytes = place.disk, 0, 0
    for folder, names in (
        (place.objects, unused),
        (place.manifests, place.temporary_names()),
    ):
        for name in names:
            size_bytes += _size(place, folder / name)
            renew_mark()
            disk.remove(folder / name)
            objects += folder == place.objects
    return PruneResult(backups, objects, size_bytes)


def _size(place: BackupPlace, path: Path) -> int:
    try:
        return place.disk.size(path)
    except FileNotFoundError:
        return 0
