"""The rows of ``node.db`` as values: topics, and the manifests of their segments and archives.

The topic of a segment, live or archived, is the name of the topic's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from goq.model import NO_TOPIC_ID, topic_folder

LOG_NAMES = ("messages", "events")


class DoubtKind(StrEnum):
    """The state of a topic of which a node does not know enough.

    ``ADOPTED``: the settings are lost; the topic works, and keeps all messages. ``READ_ONLY``: the
    topic takes no message either.
    """

    ADOPTED = "adopted"
    READ_ONLY = "read-only"


class TopicDoubt(NamedTuple):
    """Why a topic waits for a user's decision: a change of its settings, or its deletion."""

    kind: DoubtKind
    reason: str


class TopicRow(NamedTuple):
    """A topic in the database; ``settings`` are in the users' notation.

    ``id`` tells the topic from others that have, or had, its name. ``doubt`` is not stored: it is
    what a start finds.
    """

    name: str
    partitions: int
    settings: dict[str, str]
    deleting: bool = False
    id: int = NO_TOPIC_ID
    doubt: TopicDoubt | None = None

    @property
    def folder(self) -> str:
        """The name of the topic's folder."""
        return topic_folder(self.name, self.id)


class SegmentRow(NamedTuple):
    """A sealed segment in the manifest; ``topic`` is the name of the topic's folder."""

    topic: str
    partition: int
    log: str
    base_offset: int
    end_offset: int
    size_bytes: int
    sealed_at_us: int


class TopicManifest(NamedTuple):
    """The known logs of a topic on this node: partitions below ``partitions`` have existed."""

    partitions: int = 0
    sealed: Sequence[SegmentRow] = ()

    def of(self, partition: int) -> PartitionManifest:
        """Return the known logs of one partition."""
        sealed = [row for row in self.sealed if row.partition == partition]
        return PartitionManifest(partition < self.partitions, sealed)


class PartitionManifest(NamedTuple):
    """The known logs of a partition: whether they have existed, and their sealed segments."""

    has_existed: bool = False
    sealed: Sequence[SegmentRow] = ()


class ArchiveRow(NamedTuple):
    """An archived segment in the manifest; ``crc32c`` covers its ``size_bytes``.

    ``topic`` is the name of the topic's folder. The times are the earliest append time and the
    running maximum of the log at its end.
    """

    topic: str
    partition: int
    log: str
    base_offset: int
    end_offset: int
    size_bytes: int
    archived_bytes: int
    first_time_us: int
    last_time_us: int
    archived_at_us: int
    crc32c: int
