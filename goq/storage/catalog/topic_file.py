"""The topic file: a topic's identity and settings, in the topic's folder.

    topics/<folder>/topic.meta

    goq-topic 1 <CRC32C of the rest, 8 hexadecimal digits>
    <one line of JSON: the fields of TopicRecord>

A change replaces the file durably and atomically. So after a crash the file is the one from before
the change or the one from after it. Reading checks every byte. A file of another folder, such as a
copy, is damage too.

A record with ``deleting`` is the topic's *tombstone*: the topic's deletion was decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from goq.errors import CorruptData
from goq.frame.checksum import crc32c
from goq.model import topic_folder
from goq.storage.disk import Disk

FILE_NAME = "topic.meta"


class TopicRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A topic as its file has it; settings are in the users' notation.

    ``groups`` are those with settings of their own. ``adopted``: the settings were lost, and no
    user has decided on others yet.
    """

    name: str
    id: int
    partitions: int
    settings: dict[str, str]
    groups: dict[str, dict[str, str]] = {}
    adopted: bool = False
    deleting: bool = False


def own_settings(groups: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return the groups that have settings of their own, as a record has them."""
    return {name: dict(settings) for name, settings in sorted(groups.items()) if settings}


def encode_topic_file(record: TopicRecord) -> bytes:
    """Return the content of a topic file."""
    body = msgspec.json.encode(record) + b"\n"
    return b"%s%s" % (_first_line(body), body)


def decode_topic_file(data: bytes) -> TopicRecord:
    """Return the record of a topic file. Raises ``CorruptData``."""
    first, _, body = data.partition(b"\n")
    if first + b"\n" != _first_line(body):
        raise CorruptData("its bytes do not match its CRC")
    try:
        return msgspec.json.decode(body, type=TopicRecord)
    except msgspec.DecodeError as error:
        raise CorruptData(f"it has other fields: {error}") from None


def _first_line(body: bytes) -> bytes:
    return b"goq-topic 1 %08x\n" % crc32c(body)


def read_topic_file(disk: Disk, folder: Path) -> TopicRecord | None:
    """Return the record of a topic's folder, None if it has no topic file. Blocks on the disk.

    Raises ``CorruptData`` if the file is damaged, or cannot be read.
    """
    path = folder / FILE_NAME
    try:
        record = decode_topic_file(bytes(disk.read(path, 0, disk.size(path))))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CorruptData(f"{path} cannot be read: {error.strerror or error}") from error
    except CorruptData as error:
        raise CorruptData(f"{path} is damaged: {error.detail}") from None
    if topic_folder(record.name, record.id) != folder.name:
        raise CorruptData(f"{path} is of topic {record.name}, not of this folder")
    return record


def write_topic_file(disk: Disk, topics_dir: Path, record: TopicRecord) -> None:
    """Write a topic's file, durably, unless it has this content already. Blocks on the disk."""
    folder, data = topics_dir / topic_folder(record.name, record.id), encode_topic_file(record)
    path = folder / FILE_NAME
    try:
        if bytes(disk.read(path, 0, len(data) + 1)) == data:
            return
    except OSError:
        disk.make_dir(folder)
    disk.replace(path, data)
