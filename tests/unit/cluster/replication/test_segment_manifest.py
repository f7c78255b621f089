"""What a node records of the segments that it seals and deletes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.segment_manifest import SegmentManifest
from goq.config.topic import TopicSettings
from goq.storage.catalog.rows import SegmentRow
from goq.storage.log.segment import Segment

KEY = PartitionKey("t", 1, 4)
NOW_US = 77


class _Recorder:
    """Records the calls of any method."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        async def record(*arguments: Any) -> None:
            self.calls.append((name, *arguments))

        return record


def segment(base: int, end: int) -> Segment:
    found: Any = SimpleNamespace(base_offset=base, end_offset=end, size_bytes=10 * end)
    return cast(Segment, found)


def manifest(store: _Recorder, archive: _Recorder, *, is_archived: bool = False) -> SegmentManifest:
    clock: Any = SimpleNamespace(wall_us=lambda: NOW_US)
    parts: tuple[Any, Any] = (store, archive)
    return SegmentManifest(*parts, clock, lambda topic: TopicSettings(archive=is_archived))


def test_sealed_segments_are_recorded_with_their_bounds_and_the_time() -> None:
    store = _Recorder()
    adding = manifest(store, _Recorder()).add(KEY, "events", [segment(0, 5), segment(5, 9)])
    asyncio.run(adding)
    rows = [
        SegmentRow(KEY.folder, 4, "events", 0, 5, 50, NOW_US),
        SegmentRow(KEY.folder, 4, "events", 5, 9, 90, NOW_US),
    ]
    assert store.calls == [("add_segments", rows)]


def test_nothing_is_recorded_of_no_segments() -> None:
    store = _Recorder()
    asyncio.run(manifest(store, _Recorder()).add(KEY, "events", []))
    assert store.calls == []


def test_segments_are_removed_by_their_base_or_all_of_a_log() -> None:
    store = _Recorder()
    kept = manifest(store, _Recorder())
    asyncio.run(kept.remove(KEY, "messages", [segment(5, 9)]))
    asyncio.run(kept.remove(KEY, "messages"))
    assert store.calls == [
        ("delete_segments", [(KEY.folder, 4, "messages", 5)]),
        ("delete_segments_of", KEY.folder, 4, "messages"),
    ]


@pytest.mark.parametrize("is_archived", [False, True])
def test_a_segment_is_archived_only_if_its_topic_wants_that(is_archived: bool) -> None:
    archive, sealed = _Recorder(), segment(5, 9)
    kept = manifest(_Recorder(), archive, is_archived=is_archived)
    asyncio.run(kept.archive_segment(KEY, "messages", sealed))
    wanted = [("archive_segment", KEY.identity, "messages", sealed)]
    assert archive.calls == (wanted if is_archived else [])
    assert kept.is_archived(KEY) == is_archived
