"""JSON bodies of restores into a running node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from goq.api.schemas.base import Input, Output
from goq.api.values import Time


class RestoreOrderIn(Input, rename={"new_name": "as", "place": "from"}):
    """A topic of a backup to restore under another name.

    ``from`` may only be the folder that the node's configuration names. ``settings`` take the place
    of those in the backup.
    """

    topic: str
    new_name: str
    place: str | None = None
    backup: str | None = None
    at: Time | None = None
    settings: dict[str, Any] | None = None


class RestoreBegunOut(msgspec.Struct):
    """The number of the restore that was begun."""

    number: int


class RestoreOut(Output, kw_only=True):
    """A finished restore; ``failure`` says why there is none, and ``code`` is that of the error.

    ``missing`` are the partitions that the backup lacks: they are empty. ``is_compacted`` says that
    compaction removed messages from before the moment.
    """

    number: int
    backup: str = ""
    topic: str = ""
    messages: int = 0
    bytes: int = 0
    missing: Sequence[str] = ()
    is_compacted: bool = False
    failure: str = ""
    code: str = ""


class RestoreStatusOut(Output):
    """The number of the restore under way, and the last one of this run."""

    running: int | None = None
    last: RestoreOut | None = None
