"""Where an export goes: a folder, or any filesystem that pyarrow reaches.

A reader of the folder sees whole files only. A file is written aside and given its name when it is
complete and durable; where files have no names before they are whole, as in S3, it is written under
its name at once. What begins with ``_`` is not for readers: Spark passes it over.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Protocol

from pyarrow import fs

from goq.errors import Conflict, InvalidInput, NotAllowed, StorageFull, Unavailable

_ASIDE = "_goq/tmp"
_BEFORE_SUFFIX = ".before"
_FULL_ERRNOS = (28, 122)


class Target(Protocol):
    """A place for files; paths are relative to it, with ``/`` between names.

    What cannot be done raises ``StorageFull``, ``NotAllowed`` or ``Unavailable``.
    """

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder, none if it does not exist."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        ...

    def read(self, path: str) -> bytes | None:
        """Return a small file's content, None if there is none."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Give a small file this content, at once and durably."""
        ...

    def publish(self, local: Path, path: str) -> None:
        """Give a finished local file its place, whole and durable; the local one is gone then."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is fine."""
        ...


class LocalTarget:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder."""
        try:
            return sorted(os.listdir(self.root / path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _explained(error, self.root / path) from error

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        return (self.root / path).is_file()

    def read(self, path: str) -> bytes | None:
        """Return a small file's content."""
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _explained(error, self.root / path) from error

    def write(self, path: str, data: bytes) -> None:
        """Give a small file this content, at once and durably."""
        place = self.root / path
        aside = place.with_name(place.name + ".new")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(place)
            _sync_dir(place.parent)
        except OSError as error:
            raise _explained(error, place) from error

    def publish(self, local: Path, path: str) -> None:
        """Sync a finished file and rename it; it lies in this target's folder already."""
        place = self.root / path
        try:
            with local.open("rb") as file:
                os.fsync(file.fileno())
            place.parent.mkdir(parents=True, exist_ok=True)
            local.replace(place)
            _sync_dir(place.parent)
            _sync_dir(place.parent.parent)
        except OSError as error:
            raise _explained(error, place) from error

    def remove(self, path: str) -> None:
        """Remove a file."""
        try:
            (self.root / path).unlink(missing_ok=True)
        except OSError as error:
            raise _explained(error, self.root / path) from error


class RemoteTarget:
    """A folder of another filesystem, by its URI."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._renames = filesystem.type_name not in ("s3", "gcs", "abfs")

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder."""
        selector = fs.FileSelector(self._path(path), allow_not_found=True)
        try:
            return sorted(info.base_name for info in self._fs.get_file_info(selector))
        except OSError as error:
            raise _explained(error, self._path(path)) from error

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        try:
            return self._is_file(self._path(path))
        except OSError as error:
            raise _explained(error, self._path(path)) from error

    def read(self, path: str) -> bytes | None:
        """Return a small file's content."""
        place = self._path(path)
        try:
            if not self._is_file(place):
                place += _BEFORE_SUFFIX  # its writer ended between two renames
                if not self._is_file(place):
                    return None
            with self._fs.open_input_stream(place) as file:
                return bytes(file.read())
        except OSError as error:
            raise _explained(error, place) from error

    def write(self, path: str, data: bytes) -> None:
        """Give a small file this content."""
        try:
            self._write(path, [data])
        except OSError as error:
            raise _explained(error, self._path(path)) from error

    def publish(self, local: Path, path: str) -> None:
        """Upload a finished file."""
        try:
            with local.open("rb") as file:
                self._write(path, iter(lambda: file.read(1 << 20), b""))
            local.unlink()
        except OSError as error:
            raise _explained(error, self._path(path)) from error

    def _write(self, path: str, chunks: Iterable[bytes]) -> None:
        place = self._path(path)
        aside = f"{self._root}/{_ASIDE}/{path.replace('/', '~')}" if self._renames else place
        for folder in {PurePosixPath(place).parent, PurePosixPath(aside).parent}:
            self._fs.create_dir(str(folder), recursive=True)
        with self._fs.open_output_stream(aside) as out:
            for chunk in chunks:
                out.write(chunk)
        if aside != place:
            self._replace(aside, place)

    def _replace(self, aside: str, place: str) -> None:
        """Give a whole file its name, which another may have: of these two one is always there."""
        before = f"{place}{_BEFORE_SUFFIX}"
        if self._is_file(place):
            if self._is_file(before):
                self._fs.delete_file(before)
            self._fs.move(place, before)
        self._fs.move(aside, place)
        if self._is_file(before):
            self._fs.delete_file(before)

    def _is_file(self, place: str) -> bool:
        return bool(self._fs.get_file_info(place).type == fs.FileType.File)

    def remove(self, path: str) -> None:
        """Remove a file."""
        place = self._path(path)
        try:
            for each in (f"{place}{_BEFORE_SUFFIX}", place):
                if self._is_file(each):
                    self._fs.delete_file(each)
        except OSError as error:
            raise _explained(error, place) from error


def open_target(to: str) -> Target:
    """Return the target of a path or URI; raises ``InvalidInput`` for one that cannot be read."""
    if "://" not in to:
        return LocalTarget(Path(to))
    if to.startswith("file://"):
        return LocalTarget(Path(to.removeprefix("file://")))
    try:
        filesystem, root = fs.FileSystem.from_uri(to)
    except (ValueError, OSError) as error:
        raise InvalidInput(f"{to!r} cannot be written to: {error}", field="to") from None
    return RemoteTarget(filesystem, root)


def check_ours(target: Target, to: str) -> None:
    """Raise ``Conflict`` for a folder that holds something else than an export."""
    names = [name for name in target.names("") if not name.startswith(".")]
    if names and "_goq" not in names:
        raise Conflict(
            f"{to} is not empty, and what is there is no export of goq ({', '.join(names[:3])}):"
            " give another folder",
            field="to",
        )


@contextmanager
def staging_of(target: Target) -> Generator[Path, None, None]:
    """Give a local folder where files are made that go to the target.

    For a folder of this machine it lies within, so that a file gets its place by a rename.
    """
    if isinstance(target, LocalTarget):
        yield target.root / _ASIDE
        return
    with tempfile.TemporaryDirectory(prefix="goq-export-") as directory:
        yield Path(directory)


def _sync_dir(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _explained(error: OSError, place: object) -> StorageFull | NotAllowed | Unavailable:
    if error.errno in _FULL_ERRNOS:
        return StorageFull(f"no room for {place}; free some space, then run the same command again")
    if isinstance(error, PermissionError):
        return NotAllowed(f"{place} may not be written; check its owner and mode")
    return Unavailable(f"{place} cannot be used: {error.strerror or error}")
