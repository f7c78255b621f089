"""Messages of the input that cannot be published: an error, skipped, or kept in a file."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

from goq.errors import GoqError, UsageError

FAIL: Final = "fail"
SKIP: Final = "skip"
_SAID_MAX: Final = 10


class Rejects:
    """The refused messages, by ``--on-error``: ``fail``, ``skip``, or a file that gets them."""

    def __init__(self, on_error: str) -> None:
        self.count = 0
        self._fails = on_error == FAIL
        self._path = None if on_error in (FAIL, SKIP) else Path(on_error)
        self._file: BinaryIO | None = None

    def __enter__(self) -> Rejects:
        if self._path is not None:
            try:
                self._file = self._path.open("ab")
            except OSError as error:
                raise UsageError(f"cannot write {self._path}: {error.strerror}") from None
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            with self._named():
                self._file.close()

    @contextmanager
    def _named(self) -> Generator[None]:
        """Add the name of the file to an error: it is not that of the output."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def refuse(self, error: GoqError) -> None:
        """Raise the error of a message, or count it and say so."""
        if self._fails:
            raise error
        self.count += 1
        if self.count <= _SAID_MAX:
            sys.stderr.write(f"goq: left out: {error.detail}\n")

    def keep(self, data: bytes) -> None:
        """Keep input that was refused, or a part of it."""
        if self._file is not None:
            with self._named():
                self._file.write(data)

    def finish(self) -> None:
        """Say how many messages were left out, if any were."""
        if self.count:
            where = "" if self._path is None else f"; they are in {self._path}"
            sys.stderr.write(f"goq: {self.count:,} messages were left out{where}\n")
