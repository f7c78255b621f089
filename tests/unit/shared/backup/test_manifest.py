"""Manifests: what is written is read, and nothing that a restore must not follow."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest

from goq.backup.manifest import (
    BackupManifest,
    StoredFile,
    StoredLog,
    StoredPartition,
    StoredTopic,
    decode_manifest,
    encode_manifest,
)
from goq.errors import CorruptData, UnsupportedFormat
from goq.schedules.schedule_record import ScheduleRecord

FILE = StoredFile(0, 5, "a" * 64, 1, 2)
LOG = StoredLog(3, (FILE,))
PARTITION = StoredPartition(0, LOG, LOG)
TOPIC = StoredTopic("orders", 2**52, 1, {}, {"g": {}}, (PARTITION,))
MANIFEST = BackupManifest(7, 1, (TOPIC,), ())
SCHEDULE = ScheduleRecord("s", "orders", "[]", "", "", 60_000, "ann", 1, 1)


def with_topic(**changes: object) -> BackupManifest:
    return msgspec.structs.replace(MANIFEST, topics=(msgspec.structs.replace(TOPIC, **changes),))


def with_log(**changes: object) -> BackupManifest:
    log = msgspec.structs.replace(LOG, **changes)
    return with_topic(logs=(StoredPartition(0, log, LOG),))


def with_file(**changes: object) -> BackupManifest:
    return with_log(segments=(msgspec.structs.replace(FILE, **changes),))


def with_schedule(**changes: str) -> BackupManifest:
    schedule = msgspec.structs.replace(SCHEDULE, **changes)
    return msgspec.structs.replace(MANIFEST, schedules=(schedule,))


def test_a_manifest_of_format_1_is_one_without_schedules() -> None:
    fields = msgspec.to_builtins(MANIFEST)
    del fields["schedules"]
    body = msgspec.json.encode(fields) + b"\n"
    first = b"goq-backup 1 " + sha256(body).hexdigest().encode() + b"\n"
    assert decode_manifest(first + body) == MANIFEST


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert decode_manifest(encode_manifest(with_schedule())) == with_schedule()
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST
    assert (MANIFEST.size_bytes, MANIFEST.message_count) == (10, 3)


@pytest.mark.parametrize(
    "bad",
    [
        with_topic(name="../orders"),
        with_topic(name=""),
        with_topic(name="a/b"),
        with_topic(groups={"../g": {}}),
        with_topic(partitions=0),
        with_topic(id=-1),
        with_topic(logs=(PARTITION, PARTITION)),
        with_topic(logs=(StoredPartition(1, LOG, LOG),)),
        with_topic(logs=(StoredPartition(-1, LOG, LOG),)),
        with_log(end_offset=-1),
        with_log(segments=(FILE, FILE)),
        with_file(base_offset=-1),
        with_file(base_offset=4),
        with_file(generation=-1),
        with_file(size_bytes=-1),
        with_file(size_bytes=0),
        with_file(digest=""),
        with_file(digest="../" + "a" * 61),
        with_file(digest="A" * 64),
        msgspec.structs.replace(MANIFEST, topics=(TOPIC, TOPIC)),
        msgspec.structs.replace(MANIFEST, schedules=(SCHEDULE, SCHEDULE)),
        msgspec.structs.replace(MANIFEST, epoch=-1),
        msgspec.structs.replace(MANIFEST, epoch=2**32),
        msgspec.structs.replace(MANIFEST, time_us=-1),
        msgspec.structs.replace(MANIFEST, time_us=2**62),
        with_schedule(name="../s"),
        with_schedule(topic="a/b"),
    ],
)
def test_a_manifest_with_names_or_numbers_that_no_backup_has_is_refused(
    bad: BackupManifest,
) -> None:
    with pytest.raises(CorruptData, match="not a manifest"):
        decode_manifest(encode_manifest(bad))


@pytest.mark.parametrize("data", [b"", b"goq-backup 1 \n", b"goq-backup 1 " + b"a" * 64 + b"\n{}"])
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_manifest(data)


def test_a_manifest_of_a_later_goq_is_refused_as_such() -> None:
    with pytest.raises(UnsupportedFormat, match="of a later goq"):
        decode_manifest(b"goq-backup 3 " + b"a" * 64 + b"\n{}")
