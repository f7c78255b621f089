"""The files of a partition as one moment has them: which bytes of which file belong to a backup."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from goq.model import topic_folder
from goq.storage.disk import Disk


class PlannedFile(NamedTuple):
    """The first ``size_bytes`` of a file, as ``disk`` has them."""

    path: Path
    base_offset: int
    size_bytes: int
    disk: Disk
    generation: int = 0
    can_be_reused: bool = True
    """Whether the object of an earlier backup serves, if the file is unchanged since."""


class PlannedLog(NamedTuple):
    """A log up to ``end_offset``; archived segments lie in ``archive_dir``."""

    end_offset: int
    files: Sequence[PlannedFile]
    archive_dir: Path


class PlannedPartition(NamedTuple):
    """The logs of a partition."""

    topic_folder: str
    number: int
    messages: PlannedLog
    events: PlannedLog


class PlannedTopic(NamedTuple):
    """A topic, with the numbers of the partitions to copy."""

    name: str
    id: int
    partitions: int
    settings: dict[str, str]
    groups: dict[str, dict[str, str]]
    numbers: Sequence[int]

    @property
    def folder(self) -> str:
        """The name of the topic's folder."""
        return topic_folder(self.name, self.id)
