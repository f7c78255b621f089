"""JSON bodies of backups."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from goq.api.schemas.base import Input, Output
from goq.api.values import DateTime


class BackupOrder(Input):
    """A backup to begin. ``to`` may only be the folder that the node's configuration names."""

    to: str | None = None


class BackupBegunOut(msgspec.Struct):
    """The number of the backup that was begun, or that is under way."""

    number: int


class BackupOut(Output, kw_only=True):
    """A finished backup; ``failure`` says why there is none, and ``code`` is that of the error.

    ``copied_bytes`` are new. ``missing`` are the partitions that were offline: the backup lacks
    them.
    """

    number: int
    name: str = ""
    topics: int = 0
    messages: int = 0
    bytes: int = 0
    copied_bytes: int = 0
    missing: Sequence[str] = ()
    failure: str = ""
    code: str = ""


class BackupStatusOut(Output):
    """The folder of the backups, the number of the one under way, the last one of this run.

    ``newest`` is when the newest backup in the folder began.
    """

    to: str | None = None
    running: int | None = None
    newest: DateTime | None = None
    last: BackupOut | None = None
