"""Destination on another filesystem that pyarrow reaches: an object store, HDFS."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath

import pyarrow as pa
from pyarrow import fs

from goq.pipeline.export.errors import explained
from goq.pipeline.export.parquet import Staging, checksum

_ASIDE = "_goq/tmp"
_BEFORE_SUFFIX = ".before"
_OBJECT_STORES = ("s3", "gcs", "abfs")
_COPY_BYTES_MAX = 5 * 2**30  # S3's bound for a copy in one request


class RemoteDestination:
    """A folder of another filesystem, with its ``uri``.

    A file is written aside and moved to its name. In an object store a move is a copy within the
    store, which appears whole.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str, uri: str | None = None) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._uri = (uri or self._root).rstrip("/")
        self._replaces = filesystem.type_name in _OBJECT_STORES

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder."""
        place = self._path(path)
        with explained(place):
            selector = fs.FileSelector(place, allow_not_found=True)
            return sorted(info.base_name for info in self._fs.get_file_info(selector))

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        place = self._path(path)
        with explained(place):
            return self._is_file(place)

    def read(self, path: str) -> bytes | None:
        """Return a small file's content."""
        place = self._path(path)
        with explained(place):
            if not self._is_file(place):
                place += _BEFORE_SUFFIX  # the writer stopped between two renames
                if not self._is_file(place):
                    return None
            with self._fs.open_input_stream(place) as file:
                return bytes(file.read())

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for reading at any place in it."""
        place = self._path(path)
        with explained(place):
            return self._fs.open_input_file(place)

    def checksum(self, path: str) -> int | None:
        """Return the CRC-32C of a file, None for one that is not local."""
        place = self._path(path)
        with explained(place):
            return checksum(self._fs, place)

    def write(self, path: str, data: bytes) -> None:
        """Replace a small file's content."""
        place = self._path(path)
        aside = self._path(f"{_ASIDE}/{path.replace('/', '~')}")
        with explained(place):
            self._make_folder(aside)
            with self._fs.open_output_stream(aside) as out:
                out.write(data)
            self._make_folder(place)
            self._replace(aside, place)

    def staging(self, *names: str) -> Staging:
        """Return the folder where files of this destination are written, one for each use."""
        return Staging(self._fs, self._path("/".join((_ASIDE, *names))))

    def publish(self, made: str, path: str) -> None:
        """Move a finished file from staging to a free name."""
        place = self._path(path)
        with explained(place):
            self._make_folder(place)
            if self._fs.type_name == "s3" and self._size(made) > _COPY_BYTES_MAX:
                self._copy(made, place)
                self._fs.delete_file(made)
            else:
                self._fs.move(made, place)

    def _copy(self, made: str, place: str) -> None:
        """Copy through this process; remove the partial file of an interrupted copy."""
        try:
            with (
                self._fs.open_input_stream(made) as file,
                self._fs.open_output_stream(place) as out,
            ):
                while chunk := file.read(1 << 24):
                    out.write(chunk)
        except BaseException:
            if self._is_file(place):
                self._fs.delete_file(place)
            raise

    def remove(self, path: str) -> None:
        """Remove a file."""
        place = self._path(path)
        with explained(place):
            for each in (f"{place}{_BEFORE_SUFFIX}", place):
                if self._is_file(each):
                    self._fs.delete_file(each)

    def uri(self, path: str) -> str:
        """Return the URI of a file."""
        return f"{self._uri}/{path}"

    @contextmanager
    def claimed(self, topics: Sequence[str]) -> Generator[None, None, None]:
        """Claim nothing: these filesystems have no locks, so the operator keeps exports apart."""
        yield

    def _make_folder(self, place: str) -> None:
        self._fs.create_dir(str(PurePosixPath(place).parent), recursive=True)

    def _replace(self, aside: str, place: str) -> None:
        """Replace a file under its name; at any moment the old or the new one exists."""
        if self._replaces:
            self._fs.move(aside, place)
            return
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

    def _size(self, place: str) -> int:
        return int(self._fs.get_file_info(place).size or 0)
