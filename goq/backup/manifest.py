"""The manifest of a backup: topics, settings, tokens, schedules, and the objects with the files.

    goq-backup 2 <SHA-256 of the rest, 64 hexadecimal digits>
    <one line of JSON: the fields of BackupManifest>

Each manifest is complete: a restore needs no other. Objects are named by the SHA-256 of their
bytes, so the manifest vouches for every byte of the backup. A manifest holds names of topics and
numbers, never paths. :func:`decode_manifest` checks all of them, because a restore makes folders of
them. Format 1 had no schedules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final

import msgspec

from goq.access.token_record import TokenRecord
from goq.errors import CorruptData, GoqError, InvalidInput, UnsupportedFormat
from goq.model import check_name, check_partitions, topic_folder
from goq.schedules.schedule_record import ScheduleRecord

_FORMAT: Final = 2
_ANY_HEAD = re.compile(rb"goq-backup (\d{1,9}) ", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_OFFSET_MAX: Final = 2**63 - 1
_GENERATION_MAX: Final = 999_999_999
_EPOCH_MAX: Final = 2**31 - 1  # a frame has 32 bits for it, and the restored node goes on counting
_TIME_US_MAX: Final = 253_402_300_799_999_999  # the end of the year 9999


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a log or of the archive; ``digest`` names its object, "" for an empty file.

    ``inode`` and ``changed_ns`` are those of the source. The next backup takes the object for a
    file of the same place, size, inode and time of change, without a read of it.
    """

    base_offset: int
    size_bytes: int
    digest: str
    inode: int
    changed_ns: int
    generation: int = 0


class StoredLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A log: its segments and archived segments by offset, and the offset behind the last."""

    end_offset: int
    segments: tuple[StoredFile, ...]
    archived: tuple[StoredFile, ...] = ()

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All files of the log."""
        return self.segments + self.archived


class StoredPartition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The logs of a partition. No event is about a message that the backup lacks."""

    number: int
    messages: StoredLog
    events: StoredLog

    @property
    def logs(self) -> tuple[tuple[str, StoredLog], ...]:
        """Both logs, by the names of their folders."""
        return ("messages", self.messages), ("events", self.events)


class StoredTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic with its settings, in the users' notation, and those of its groups."""

    name: str
    id: int
    partitions: int
    settings: dict[str, str]
    groups: dict[str, dict[str, str]]
    logs: tuple[StoredPartition, ...]

    @property
    def folder(self) -> str:
        """The name of the topic's folder at the source."""
        return topic_folder(self.name, self.id)

    @property
    def missing(self) -> list[str]:
        """The partitions that the backup lacks, because they were offline: ``orders:2``."""
        there = {partition.number for partition in self.logs}
        return [f"{self.name}:{n}" for n in range(self.partitions) if n not in there]

    @property
    def files(self) -> Iterator[StoredFile]:
        """All files of the topic."""
        for partition in self.logs:
            yield from partition.messages.files
            yield from partition.events.files


class BackupManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One backup. All that was acknowledged before ``time_us`` is in it.

    ``epoch`` is the number of starts of the node.
    """

    time_us: int
    epoch: int
    topics: tuple[StoredTopic, ...]
    tokens: tuple[TokenRecord, ...]
    schedules: tuple[ScheduleRecord, ...] = ()

    @property
    def files(self) -> Iterator[StoredFile]:
        """All files of the backup."""
        for topic in self.topics:
            yield from topic.files

    @property
    def missing(self) -> list[str]:
        """The partitions that the backup lacks; none in a complete one."""
        return [name for topic in self.topics for name in topic.missing]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def message_count(self) -> int:
        """The number of offsets of messages that the live segments hold."""
        logs = [partition.messages for topic in self.topics for partition in topic.logs]
        return sum(log.end_offset - log.segments[0].base_offset for log in logs if log.segments)


def encode_manifest(manifest: BackupManifest) -> bytes:
    """Return the bytes of a manifest."""
    body = msgspec.json.encode(manifest) + b"\n"
    return _first_line(_FORMAT, body) + body


def decode_manifest(data: bytes) -> BackupManifest:
    """Return a manifest.

    Raises ``CorruptData`` for damage, and for values that none has, and ``UnsupportedFormat`` for a
    manifest of a later goq.
    """
    head = _ANY_HEAD.match(data)
    number = int(head[1]) if head else _FORMAT
    if number > _FORMAT:
        raise UnsupportedFormat(f"it has format {number}, of a later goq: use that one")
    first, _, body = data.partition(b"\n")
    if first + b"\n" != _first_line(number, body):
        raise CorruptData("its bytes do not match its checksum")
    try:
        manifest = msgspec.json.decode(body, type=BackupManifest)
        _check(manifest)
    except (msgspec.DecodeError, GoqError) as error:
        raise CorruptData(f"it is not a manifest of a backup: {error}") from None
    return manifest


def _first_line(number: int, body: bytes) -> bytes:
    return b"goq-backup %d %s\n" % (number, sha256(body).hexdigest().encode())


def _check(manifest: BackupManifest) -> None:
    _check_number(manifest.time_us, _TIME_US_MAX)
    _check_number(manifest.epoch, _EPOCH_MAX)
    _check_rising([topic.name for topic in manifest.topics], "topics")
    _check_rising([schedule.name for schedule in manifest.schedules], "schedules")
    for schedule in manifest.schedules:
        check_name(schedule.name, "schedule")
        check_name(schedule.topic, "topic")
    for topic in manifest.topics:
        check_name(topic.name, "topic")
        check_partitions(topic.partitions)
        _check_number(topic.id, _OFFSET_MAX)
        for group in topic.groups:
            check_name(group, "group")
        _check_rising([partition.number for partition in topic.logs], "partitions")
        for partition in topic.logs:
            _check_number(partition.number, topic.partitions - 1)
            for log in (partition.messages, partition.events):
                _check_log(log)


def _check_log(log: StoredLog) -> None:
    for files in (log.segments, log.archived):
        _check_rising([file.base_offset for file in files], "files")
        for file in files:
            _check_number(file.base_offset, log.end_offset)
            _check_number(file.generation, _GENERATION_MAX)
            _check_number(file.size_bytes, _OFFSET_MAX)
            if bool(file.size_bytes) != bool(_DIGEST.fullmatch(file.digest)):
                raise InvalidInput(f"{file.digest[:80]!r} is not a SHA-256")
    _check_number(log.end_offset, _OFFSET_MAX)


def _check_number(number: int, most: int) -> None:
    if not 0 <= number <= most:
        raise InvalidInput(f"{number} is not from 0 to {most}")


def _check_rising(found: Sequence[Any], what: str) -> None:
    if any(before >= after for before, after in pairwise(found)):
        raise InvalidInput(f"its {what} are not in order")
