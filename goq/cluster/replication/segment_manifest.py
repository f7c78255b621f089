"""What becomes of the segments of a node's replicas besides lying in their logs.

Each node has a manifest of the sealed segments that it holds, so that one that vanishes is missed,
and an archive of what it deleted, whether it led then or followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from goq.broker.metadata import MetadataStore
from goq.broker.partition_context import PartitionId
from goq.broker.retention.archiver import Archive
from goq.broker.retention.tiered_log import WholeReader
from goq.clock import Clock
from goq.cluster.replication.protocol import PartitionKey
from goq.config.topic import TopicSettings
from goq.storage.log.log import Log
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment
from goq.storage.node_db import SegmentRow

LOGS = ("messages", "events")
"""The names of a partition's logs; they are numbered in this order."""


class SegmentManifest:
    """The manifest and the archive; a change is durable on return.

    Every method may raise ``GoqError`` or ``OSError``, with nothing changed then.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        archive: Archive,
        clock: Clock,
        settings_of: Callable[[str], TopicSettings],
    ) -> None:
        self._metadata = metadata
        self._archive = archive
        self._clock = clock
        self._settings_of = settings_of

    async def add(self, key: PartitionKey, log: str, segments: Sequence[Segment]) -> None:
        """Have sealed segments in the manifest; what it says of them already stays."""
        now_us = self._clock.wall_us()
        rows = [
            SegmentRow(
                key.topic,
                key.number,
                log,
                segment.base_offset,
                segment.end_offset,
                segment.size_bytes,
                now_us,
            )
            for segment in segments
        ]
        if rows:
            await self._metadata.add_segments(rows)

    async def remove(
        self, key: PartitionKey, log: str, segments: Sequence[Segment] | None = None
    ) -> None:
        """Take segments of a log, or all, out of the manifest."""
        if segments is None:
            await self._metadata.delete_segments_of(key.topic, key.number, log)
        else:
            keys = [(key.topic, key.number, log, segment.base_offset) for segment in segments]
            await self._metadata.delete_segments(keys)

    def is_archived(self, key: PartitionKey) -> bool:
        """Whether what is deleted of a partition is archived."""
        return self._settings_of(key.topic).archive

    async def archive_segment(self, key: PartitionKey, log: str, segment: Segment) -> None:
        """Archive a segment that is going to be deleted, if its topic wants that."""
        if self.is_archived(key):
            await self._archive.take(PartitionId(key.topic, key.number), log, segment)

    def tiered_reader(self, key: PartitionKey, which: int, log: Log) -> LogReader:
        """Return a reader of a log and of what of it is archived; it blocks on the disk."""
        identity = PartitionId(key.topic, key.number)
        columns = log.config.columns
        return WholeReader(self._archive, identity, LOGS[which], log.reader, has_columns=columns)
