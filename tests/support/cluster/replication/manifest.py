"""What a simulated node's ``node.db`` says of segments; it survives crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from goq.storage.catalog.rows import ArchiveRow, SegmentRow

_COMMIT_S = 0.002
Key = tuple[str, int, str, int]


class SimManifest:
    """The part of a ``MetadataStore`` that is about one node's segments."""

    def __init__(self) -> None:
        self.rows: dict[Key, SegmentRow] = {}
        self.archive: dict[Key, ArchiveRow] = {}

    async def put_segment(self, segment: SegmentRow) -> None:
        await asyncio.sleep(_COMMIT_S)
        self.rows[segment[:4]] = segment

    async def add_segments(self, segments: Sequence[SegmentRow]) -> None:
        await asyncio.sleep(_COMMIT_S)
        for segment in segments:
            self.rows.setdefault(segment[:4], segment)

    async def delete_segments(self, keys: Sequence[Key]) -> None:
        await asyncio.sleep(_COMMIT_S)
        for key in keys:
            self.rows.pop(key, None)

    async def delete_segments_of(self, topic: str, partition: int, log: str) -> None:
        await asyncio.sleep(_COMMIT_S)
        for key in [key for key in self.rows if key[:3] == (topic, partition, log)]:
            del self.rows[key]

    async def put_archived(self, rows: Sequence[ArchiveRow]) -> None:
        await asyncio.sleep(_COMMIT_S)
        for row in rows:
            self.archive[row[:4]] = row

    async def delete_archived(self, keys: Sequence[Key]) -> None:
        await asyncio.sleep(_COMMIT_S)
        for key in keys:
            self.archive.pop(key, None)

    async def archived(self) -> list[ArchiveRow]:
        return sorted(self.archive.values())
