"""The manifest of the sealed segments that a node holds, and the archive of those it deleted.

The manifest reveals a segment that has vanished. The archive holds what this node deleted, whether
it led then or followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from goq.broker.metadata import MetadataStore
from goq.broker.retention.archiver import Archiver
from goq.broker.retention.tiered_log import TieredLogReader
from goq.clock import Clock
from goq.cluster.replication.protocol import PartitionKey
from goq.config.topic import TopicSettings
from goq.storage.catalog.rows import SegmentRow
from goq.storage.log.log import Log
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment

LOGS = ("messages", "events")
"""The names of a partition's logs; logs are numbered in this order."""


class SegmentManifest:
    """The manifest and the archive; a change is durable on return.

    Every method may raise ``GoqError`` or ``OSError``, and changes nothing then.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        archive: Archiver,
        clock: Clock,
        settings_of: Callable[[str], TopicSettings],
    ) -> None:
        self._metadata = metadata
        self._archive = archive
        self._clock = clock
        self._settings_of = settings_of

    async def add(self, key: PartitionKey, log: str, segments: Sequence[Segment]) -> None:
        """Add sealed segments; entries that exist already stay as they are."""
        now_us = self._clock.wall_us()
        rows = [
            SegmentRow(
                key.folder,
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
        """Remove segments of a log, or all of them."""
        if segments is None:
            await self._metadata.delete_segments_of(key.folder, key.number, log)
        else:
            keys = [(key.folder, key.number, log, segment.base_offset) for segment in segments]
            await self._metadata.delete_segments(keys)

    def is_archived(self, key: PartitionKey) -> bool:
        """Whether deleted segments of a partition are archived."""
        return self._settings_of(key.topic).archive

    async def archive_segment(self, key: PartitionKey, log: str, segment: Segment) -> None:
        """Archive a segment before its deletion, if its topic wants that."""
        if self.is_archived(key):
            await self._archive.archive_segment(key.identity, log, segment)

    def tiered_reader(self, key: PartitionKey, which: int, log: Log) -> LogReader:
        """Return a reader of a log and of its archived part; it blocks on the disk."""
        columns = log.config.columns
        return TieredLogReader(
            self._archive, key.identity, LOGS[which], log.reader, has_columns=columns
        )
