"""What simulated nodes have of a partition besides their live logs: archives and manifests."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from goq.broker.metadata import MetadataStore
from goq.broker.partition_context import PartitionId
from goq.broker.retention.archiver import Archiver
from goq.broker.retention.tiered_log import TieredLogReader
from goq.clock import ManualClock
from goq.storage.catalog.rows import ArchiveRow
from goq.storage.log.log import Log
from goq.storage.log.segment_files import list_segments
from tests.support.cluster.replication.loop import SimExecutor
from tests.support.cluster.replication.manifest import SimManifest
from tests.support.storage.disk import SimulatedDisk

FOLDER = Path("/data/topics/t/0")
ARCHIVE = Path("/data/archive")
LOGS = ("messages", "events")


def archive_of(disk: SimulatedDisk, manifest: SimManifest, executor: SimExecutor) -> Archiver:
    """Return a node's archive as it is on its disk."""
    store = cast(MetadataStore, manifest)
    archive = Archiver(ARCHIVE, disk, store, ManualClock(), executor=executor)
    for row in manifest.archive.values():
        archive.segments.add(row)
    return archive


def whole_log(disk: SimulatedDisk, archive: Archiver, name: str) -> dict[int, bytes]:
    """Return each frame of a log, archived or live, by its first offset; all of them are sound."""
    log = Log.open(FOLDER / name, disk)
    columns = log.config.columns
    reader = TieredLogReader(archive, PartitionId("t", 0), name, log.reader, has_columns=columns)
    frames: dict[int, bytes] = {}
    offset = reader.start_offset
    while offset < log.end_offset:
        reading = reader.read(offset, log.end_offset, messages_max=2**40, bytes_max=2**40)
        assert not reading.damage, (name, reading.damage)
        frames |= {view.header.base_offset: bytes(view.buffer) for view in reading.frames}
        offset = reading.next_offset
    return frames


def check_manifest(disk: SimulatedDisk, manifest: SimManifest) -> None:
    """What is listed is there as it is listed; what is sealed, or archived, is listed."""
    for name in LOGS:
        listed = {row.base_offset: row for row in manifest.rows.values() if row.log == name}
        segments = {s.base_offset: s for s in list_segments(disk, FOLDER / name)}
        assert listed.keys() <= segments.keys(), (name, sorted(listed), sorted(segments))
        for base_offset, row in listed.items():
            segment = segments[base_offset]
            assert segment.generation or segment.size_bytes == row.size_bytes, (name, row)
        assert listed.keys() >= set(sorted(segments)[:-1]), (name, sorted(listed))


def archived_rows(manifest: SimManifest, name: str) -> list[ArchiveRow]:
    """Return what a node has of a log in its archive, by offset."""
    return sorted(row for row in manifest.archive.values() if row.log == name)
