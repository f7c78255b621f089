"""Errors of the disk, told in one sentence."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def disk_errors_told(path: Path | str) -> Generator[None]:
    """Turn an ``OSError`` into an error that names its file, ``path`` if it knows none.

    Raises ``StorageFull`` for a full disk and ``StorageFailed`` otherwise.
    """
    from goq.errors import StorageFailed, StorageFull, describe_os_error

    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(
                f"no room on the disk of {error.filename or path}; free some, then try again"
            ) from None
        raise StorageFailed(describe_os_error(error, path)) from None
