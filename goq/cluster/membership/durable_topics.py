"""Of which topics this node has on its disk whatever it said it has, also when power was cut.

Those that never had any other ``fsync`` than ``always`` while this node had anything of them. A
node that is started anew says so, and need not be taken for one that lost something.
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
    """What a data folder remembers of that; blocks on the disk.

    One that has replicas already but not the file remembers nothing: none of its topics at that
    time counts as kept.
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
        """The ids of topics that are kept, as far as is known."""
        return frozenset() if self._known is None else frozenset(self._known.kept)

    def note(self, always: Mapping[int, bool]) -> None:
        """Take note of all topics there are, before anything is written by their settings.

        By id: whether what is stored in them is synced before it counts.
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
