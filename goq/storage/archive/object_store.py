"""An object store, ``s3://bucket/prefix``, as a disk: of backups, and of archived segments.

The path of an object is its key. A put of a store is atomic and durable once it is answered.

Credentials, region and endpoint are those that other tools use, in the environment:
``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``, ``AWS_ENDPOINT_URL`` and so on.
Every error of the store is a :class:`StoreError` with the first sentence of what it says, or a
``FileNotFoundError`` for a missing object.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from goq import limits
from goq.errors import UsageError

if TYPE_CHECKING:
    from obstore.store import S3Store

SCHEME: Final = "s3://"
_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/[!-~]*)?", re.ASCII)
_UPLOAD_BYTES: Final = 8 * limits.MIB
_TIMEOUT_S: Final = 30
RETRY_S: Final = 20.0


def check_url(url: str) -> None:
    """Raise ``UsageError`` for what is no ``s3://bucket/prefix``."""
    if _URL.fullmatch(url) is None:
        raise UsageError(f"{url[:80]!r} is not s3://bucket/prefix")


class StoreError(OSError):
    """A store did not do what was asked."""


class StoreUpload:
    """An object that is being uploaded; :meth:`sync` finishes it."""

    def __init__(self, store: S3Store, bucket: str, key: str) -> None:
        import obstore

        self.size_bytes = 0
        self._key = f"{SCHEME}{bucket}/{key}"
        with store_errors_told(self._key):
            self._writer: Any = obstore.open_writer(store, key, buffer_size=_UPLOAD_BYTES)

    def append(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send bytes, or keep them for the next part."""
        assert self._writer is not None
        with store_errors_told(self._key):
            for each in buffers:
                self._writer.write(each)
                self.size_bytes += len(each)

    def start_writeback(self) -> None:
        """Do nothing: full parts are on their way."""

    def sync(self) -> None:
        """Finish the object; it is durable on return."""
        assert self._writer is not None
        with store_errors_told(self._key):
            self._writer.close()
        self._writer = None

    def close(self) -> None:
        """Give up the object, unless it is finished: the store drops its parts."""
        self._writer = None


class StoreDisk:
    """The objects of a store below the prefix of a URL. Raises ``UsageError`` for a bad URL.

    The path of an object is its key.
    """

    def __init__(self, url: str, *, retry_s: float = RETRY_S) -> None:
        check_url(url)
        found = _URL.fullmatch(url)
        assert found is not None
        try:
            from obstore.store import S3Store
        except ImportError:
            raise UsageError(f"{url} needs the package obstore: pip install 'goq[s3]'") from None
        self.url = url.rstrip("/")
        self.bucket = found[1]
        self.prefix = (found[2] or "").strip("/")
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        options: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        try:
            self._store = S3Store(
                found[1],
                client_options={
                    "allow_http": endpoint.startswith("http://"),
                    "timeout": timedelta(seconds=_TIMEOUT_S),
                    "connect_timeout": timedelta(seconds=5),
                },
                retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=retry_s)},
                **options,
            )
        except Exception as error:
            raise UsageError(f"{url} cannot be used: {_first_sentence(error)}") from None

    def told(self, path: Path | str) -> str:
        """Return the URL of an object."""
        return f"{SCHEME}{self.bucket}/{path}"

    def create(self, path: Path) -> StoreUpload:
        """Begin an upload."""
        return StoreUpload(self._store, self.bucket, str(path))

    def read(self, path: Path, position: int, size_bytes: int) -> memoryview:
        """Return bytes of an object that has so many. Raises ``FileNotFoundError``."""
        with self._errors_told(path):
            data = self._store.get_range(str(path), start=position, length=size_bytes)
            return memoryview(bytes(data))

    def size(self, path: Path) -> int:
        """Return the size of an object. Raises ``FileNotFoundError``."""
        with self._errors_told(path):
            return int(self._store.head(str(path))["size"])

    def replace(self, path: Path, data: bytes) -> None:
        """Put an object, atomically."""
        with self._errors_told(path):
            self._store.put(str(path), data)

    def set_name(self, path: Path, target: Path) -> None:
        """Copy an object to another name, then delete it under the first."""
        with self._errors_told(target):
            self._store.copy(str(path), str(target))
        self.remove(path)

    def sync_names(self, directory: Path) -> None:
        """Do nothing: an object is durable under its name."""

    def remove(self, path: Path) -> None:
        """Delete an object; a missing one is no error."""
        try:
            with self._errors_told(path):
                self._store.delete(str(path))
        except FileNotFoundError:
            pass

    def changes(self, directory: Path) -> dict[str, tuple[int, float]]:
        """Return the names in a folder with their size and the time of their last change."""
        found: dict[str, tuple[int, float]] = {}
        prefix = f"{directory}/"
        with self._errors_told(directory):
            for batch in self._store.list(prefix):
                for each in batch:
                    name = each["path"].removeprefix(prefix)
                    if "/" not in name:
                        found[name] = each["size"], each["last_modified"].timestamp()
        return found

    def names(self, directory: Path) -> list[str]:
        """Return the sorted names in a folder."""
        return sorted(self.changes(directory))

    def remove_all(self, directory: Path) -> None:
        """Delete all objects below a folder."""
        with self._errors_told(directory):
            for batch in self._store.list(f"{directory}/"):
                keys = [each["path"] for each in batch]
                if keys:
                    self._store.delete(keys)

    def make_dir(self, directory: Path) -> None:
        """Do nothing: a store has no folders."""

    def _errors_told(self, path: Path) -> AbstractContextManager[None]:
        return store_errors_told(self.told(path))


def _first_sentence(error: Exception) -> str:
    text = str(error).partition("\n\nDebug source")[0]
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())[:300]


@contextmanager
def store_errors_told(key: str) -> Generator[None]:
    """Turn errors of the store into ``FileNotFoundError`` and ``StoreError``."""
    from obstore.exceptions import BaseError, NotFoundError

    try:
        yield
    except (BaseError, FileNotFoundError, TimeoutError) as error:
        is_missing = isinstance(error, FileNotFoundError | NotFoundError)
        if is_missing and "NoSuchBucket" not in str(error):
            raise FileNotFoundError(errno.ENOENT, "there is no such object", key) from None
        raise StoreError(errno.EIO, _first_sentence(error), key) from None
