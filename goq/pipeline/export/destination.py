"""Where an export goes: a folder, or any filesystem that pyarrow reaches.

A reader of the folder sees whole files only: a file is made aside, within the target, and given its
name when it is complete and durable. What begins with ``_`` is not for readers: Spark passes it
over.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from goq.errors import Conflict, InvalidInput
from goq.pipeline.export.errors import explained
from goq.pipeline.export.parquet import Staging
from goq.pipeline.export.remote_destination import RemoteDestination

_ASIDE = "_goq/tmp"
_LOCKS = "_goq/locks"


class Destination(Protocol):
    """A place for files; paths are relative to it, with ``/`` between names.

    What cannot be done raises ``StorageFull``, ``NotAllowed``, ``Conflict`` or ``Unavailable``.
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

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for reading at any place in it."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Give a small file this content, at once and durably."""
        ...

    def staging(self, *names: str) -> Staging:
        """Return where files of this target are made, a folder for each use of it."""
        ...

    def publish(self, made: str, path: str) -> None:
        """Move a finished file from where it was made to a place that no file has, durably."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is fine."""
        ...

    def uri(self, path: str) -> str:
        """Return what other programs call a file."""
        ...

    def claimed(self, topics: Sequence[str]) -> AbstractContextManager[None]:
        """Keep other exports of these topics away until the block ends.

        Raises ``Conflict`` where there is one.
        """
        ...


class LocalDestination:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder."""
        with explained(self.root / path):
            try:
                return sorted(os.listdir(self.root / path))
            except FileNotFoundError:
                return []

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        with explained(self.root / path):
            return (self.root / path).is_file()

    def read(self, path: str) -> bytes | None:
        """Return a small file's content."""
        with explained(self.root / path):
            try:
                return (self.root / path).read_bytes()
            except FileNotFoundError:
                return None

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for reading at any place in it."""
        with explained(self.root / path):
            return pa.OSFile(str(self.root / path))

    def write(self, path: str, data: bytes) -> None:
        """Give a small file this content, at once and durably."""
        place = self.root / path
        aside = place.with_name(place.name + ".new")
        with explained(place):
            _make_folder(place.parent)
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(place)
            _sync(place.parent)

    def staging(self, *names: str) -> Staging:
        """Return where files of this target are made, a folder for each use of it."""
        return Staging(fs.LocalFileSystem(), str(self.root.absolute().joinpath(_ASIDE, *names)))

    def publish(self, made: str, path: str) -> None:
        """Sync a finished file and rename it."""
        place = self.root / path
        with explained(place):
            _sync(Path(made))
            _make_folder(place.parent)
            os.replace(made, place)
            _sync(place.parent)

    def remove(self, path: str) -> None:
        """Remove a file."""
        with explained(self.root / path):
            (self.root / path).unlink(missing_ok=True)

    def uri(self, path: str) -> str:
        """Return what other programs call a file."""
        return f"file://{self.root.absolute() / path}"

    @contextmanager
    def claimed(self, topics: Sequence[str]) -> Generator[None, None, None]:
        """Hold a lock for each topic, which ends with the process, however that ends."""
        with ExitStack() as held:
            for topic in sorted(set(topics)):
                place = self.root / _LOCKS / topic
                with explained(place):
                    _make_folder(place.parent)
                    file = held.enter_context(place.open("w"))
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        raise Conflict(
                            f"{topic} is being exported to {self.root} already; wait for that to"
                            " end, or use another folder"
                        ) from None
            yield


def open_target(to: str) -> Destination:
    """Return the target of a path or URI; raises ``InvalidInput`` for one that cannot be read."""
    if "://" not in to:
        return LocalDestination(Path(to))
    if to.startswith("file://"):
        return LocalDestination(Path(to.removeprefix("file://")))
    try:
        filesystem, root = fs.FileSystem.from_uri(to)
    except (ValueError, OSError) as error:
        raise InvalidInput(f"{to!r} cannot be written to: {error}", field="to") from None
    parts = urlsplit(to)
    host = parts.netloc.rpartition("@")[2]  # not who writes there, and with which password
    return RemoteDestination(filesystem, root, f"{parts.scheme}://{host}{parts.path}")


def check_ours(target: Destination, to: str) -> None:
    """Raise ``Conflict`` for a folder that holds something else than an export."""
    names = [name for name in target.names("") if not name.startswith(".")]
    if names and "_goq" not in names:
        raise Conflict(
            f"{to} is not empty, and what is there is no export of goq ({', '.join(names[:3])}):"
            " give another folder",
            field="to",
        )


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, each durably."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
