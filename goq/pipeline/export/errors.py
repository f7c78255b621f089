"""Filesystem errors of an export as errors that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager

from goq.errors import Conflict, GoqError, NotAllowed, StorageFull, Unavailable

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_DENIED_REMOTE = ("ACCESS_DENIED", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch")


@contextmanager
def explained(place: object) -> Generator[None, None, None]:
    """Turn an ``OSError`` about a file or folder into one line about it.

    Raises ``StorageFull``, ``NotAllowed``, ``Conflict`` or ``Unavailable``.
    """
    try:
        yield
    except OSError as error:
        raise _explanation(error, place) from error


def _explanation(error: OSError, place: object) -> GoqError:
    text = " ".join((error.strerror or str(error)).split())
    if error.errno in _FULL:
        return StorageFull(f"no room for {place}; free some space, then run the same command again")
    if error.errno in _DENIED or any(word in text for word in _DENIED_REMOTE):
        return NotAllowed(f"{place} may not be used; check its owner and mode, or the credentials")
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return Conflict(f"{place} cannot be made: a file has a folder's place, or the reverse")
    return Unavailable(f"{place} cannot be used: {text}")
