"""The topic file: read as it was written, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c

from goq.errors import CorruptData
from goq.storage.catalog.topic_file import (
    FILE_NAME,
    TopicRecord,
    decode_topic_file,
    encode_topic_file,
    read_topic_file,
    write_topic_file,
)
from goq.storage.disk import RealDisk

RECORD = TopicRecord(
    "orders",
    2**52 + 5,
    3,
    {"retention.age": "none", "cleanup": "compact"},
    {"billing": {"ordering": "none"}},
    adopted=True,
)
FOLDER = "orders~10000000000005"


def test_a_topic_file_says_what_was_written(tmp_path: Path) -> None:
    disk = RealDisk()
    assert read_topic_file(disk, tmp_path / FOLDER) is None
    write_topic_file(disk, tmp_path, RECORD)
    assert read_topic_file(disk, tmp_path / FOLDER) == RECORD
    inode = (tmp_path / FOLDER / FILE_NAME).stat().st_ino
    write_topic_file(disk, tmp_path, RECORD)
    assert (tmp_path / FOLDER / FILE_NAME).stat().st_ino == inode


def test_every_cut_every_flipped_bit_and_every_added_byte_is_found() -> None:
    data = encode_topic_file(RECORD)
    assert decode_topic_file(data) == RECORD
    cuts = [data[:size] for size in range(len(data))]
    flips = [
        data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        for at in range(len(data))
        for bit in range(8)
    ]
    for damaged in [*cuts, *flips, data + b"\n", b"\n" + data, data * 2]:
        with pytest.raises(CorruptData):
            decode_topic_file(damaged)


@pytest.mark.parametrize("field", ["unknown", "id"])
def test_a_file_with_other_fields_is_damaged(field: str) -> None:
    body = b'{"name":"orders","id":1,"partitions":1,"settings":{}}\n'
    decode_topic_file(b"goq-topic 1 %08x\n%s" % (crc32c(body), body))
    changed = {"unknown": (b"{}}", b'{},"unknown":1}'), "id": (b":1,", b':"x",')}
    body = body.replace(*changed[field], 1)
    with pytest.raises(CorruptData, match="other fields"):
        decode_topic_file(b"goq-topic 1 %08x\n%s" % (crc32c(body), body))


def test_a_file_of_another_folder_is_damage(tmp_path: Path) -> None:
    write_topic_file(RealDisk(), tmp_path, RECORD)
    (tmp_path / FOLDER).rename(tmp_path / "orders~10000000000006")
    with pytest.raises(CorruptData, match="is of topic orders, not of this folder"):
        read_topic_file(RealDisk(), tmp_path / "orders~10000000000006")


def test_a_file_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    (tmp_path / FOLDER / FILE_NAME).mkdir(parents=True)
    with pytest.raises(CorruptData, match="cannot be read"):
        read_topic_file(RealDisk(), tmp_path / FOLDER)
