"""What a filesystem refuses becomes one line with the right exit code."""

from __future__ import annotations

import errno

import pytest

pytest.importorskip("pyarrow")

from goq.errors import Conflict, GoqError, NotAllowed, StorageFull, Unavailable
from goq.pipeline.export.errors import explained


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StorageFull),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), StorageFull),
        (OSError(errno.EACCES, "Permission denied"), NotAllowed),
        (OSError(errno.EROFS, "Read-only file system"), NotAllowed),
        (OSError("When writing: AWS Error ACCESS_DENIED during PutObject: no"), NotAllowed),
        (OSError(errno.ENOTDIR, "Not a directory"), Conflict),
        (OSError(errno.EIO, "Input/output error"), Unavailable),
        (OSError("When listing:\nAWS Error NETWORK_CONNECTION"), Unavailable),
    ],
)
def test_each_refusal_is_told_by_its_kind(refusal: OSError, kind: type[GoqError]) -> None:
    with pytest.raises(kind) as told, explained("lake/x"):
        raise refusal
    assert "lake/x" in str(told.value)
    assert "\n" not in str(told.value)
