"""The record of topics whose acknowledged messages survive a power failure on this node.

These are the topics that had no other ``fsync`` than ``always`` for as long as this node had a
replica of them. A restarted node reports them, so that the cluster need not treat its replicas as
having lost unsynced bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from goq.cluster.membership.disk_identity import TOPICS_FILE_NAME
from goq.storage.disk import Disk

FILE_NAME = "kept-topics"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kept: list[int]
    others: list[int]


class DurableTopics:
    """The record in a data folder; its methods block on the disk.

    A folder that has replicas but no record knows nothing: none of its topics at that time counts
    as durable.
    """

    def __init__(self, disk: Disk, topics_dir: Path) -> None:
        data_dir = topics_dir.parent
        self._disk = disk
        self._path = data_dir / FILE_NAME
        self._known: _File | None = None
        if FILE_NAME in disk.names(data_dir):
            self._known = _read(disk, self._path)
        elif not set(disk.names(topics_dir)) - {TOPICS_FILE_NAME}:
            self._known = _File([], [])

    @property
    def ids(self) -> frozenset[int]:
        """The ids of the topics known to be durable."""
        return frozenset() if self._known is None else frozenset(self._known.kept)

    def record(self, always: Mapping[int, bool]) -> None:
        """Record all topics, before anything is written under their settings.

        ``always`` says of each topic id whether its messages are synced before they count.
        """
        known = self._known
        others = set(always) if known is None else set(known.others)
        kept = {topic for topic, is_always in always.items() if is_always and topic not in others}
        after = _File(sorted(kept), sorted(set(always) - kept))
        if after != known:
            self._disk.replace(self._path, msgspec.json.encode(after))
            self._known = after


def _read(disk: Disk, path: Path) -> _File | None:
    try:
        return msgspec.json.decode(bytes(disk.read(path, 0, disk.size(path))), type=_File)
    except msgspec.DecodeError:
        return None
