"""Frames that contradict themselves or are not what they say: refused by number, not stored."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
import zstandard

from goq import limits
from goq.api.codec.publish_request import FRAMES_PER_REQUEST_MAX
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import HEADER_BYTES, Attribute
from tests.support.api import frames as f
from tests.support.node.running_node import RunningNode

PUBLISH = "/v1/topics/framed/messages"
GOOD = f.frame(b"one", b"two", b"three")
KEYED = f.frame(b"one", b"two", keys=[b"a", None])
MIB = limits.MIB


@pytest.fixture(scope="module", autouse=True)
def _topic(node: RunningNode) -> Iterator[None]:
    node.call("POST", "/v1/topics", {"name": "framed", "partitions": 2})
    yield
    node.call("DELETE", "/v1/topics/framed")


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def plain(count: int, *sections: bytes, attributes: int = 0) -> bytes:
    return f.with_body(count, attributes, *f.payload_of(*sections))


def zstd(stored: bytes, raw_bytes: int, count: int = 1) -> bytes:
    lengths = struct.pack("<II", raw_bytes, len(stored))
    padding = bytes(-len(stored) % 8)
    return f.with_body(count, Attribute.ZSTD, lengths, stored, padding)


def bomb(declared: int) -> bytes:
    """16 MiB and more of zeros, which the frame says are ``declared`` bytes."""
    return zstd(zstandard.ZstdCompressor().compress(bytes(64 * MIB)), declared)


def unsized() -> bytes:
    """The same from a compressor that does not say how much it is."""
    packer = zstandard.ZstdCompressor(write_content_size=False)
    return zstd(packer.compress(bytes(64 * MIB)), 16)


BAD = {
    "three bytes": b"abc",
    "a partition and no frame": f.placed(b""),
    "half a header": f.placed(GOOD[: HEADER_BYTES // 2]),
    "a header and no body": f.placed(GOOD[:HEADER_BYTES]),
    "a frame without its last byte": f.placed(GOOD[:-1]),
    "JSON": b'{"messages": [{"value": "x"}]}',
    "another magic": f.placed(flipped(GOOD, 0)),
    "another version": f.placed(flipped(GOOD, 3)),
    "another CRC of the header": f.placed(flipped(GOOD, HEADER_BYTES - 1)),
    "another byte in the body": f.placed(flipped(GOOD, len(GOOD) - 8)),
    "another CRC of the body": f.placed(flipped(GOOD, 56)),
    "no messages": f.placed(f.resealed(GOOD, message_count=0)),
    "one message more than there is": f.placed(f.resealed(GOOD, message_count=4)),
    "one message fewer than there is": f.placed(f.resealed(GOOD, message_count=2)),
    "four billion messages": f.placed(f.resealed(GOOD, message_count=2**32 - 1)),
    "a length of nothing": f.placed(f.resealed(GOOD, frame_bytes=0)),
    "a length of the header": f.placed(f.resealed(GOOD, frame_bytes=HEADER_BYTES)),
    "a length of four gigabytes": f.placed(f.resealed(GOOD, frame_bytes=2**32 - 8)),
    "a length that is longer": f.placed(f.resealed(GOOD, frame_bytes=len(GOOD) + 8)),
    "a length that is shorter": f.placed(f.resealed(GOOD, frame_bytes=len(GOOD) - 8)),
    "an odd length": f.placed(f.resealed(GOOD, frame_bytes=len(GOOD) - 1)),
    "attributes nobody knows": f.placed(f.resealed(GOOD, attributes=1 << 15)),
    "events": f.placed(f.resealed(GOOD, attributes=Attribute.EVENTS)),
    "keys without hashes": f.placed(
        plain(1, f.offsets(0, 0), b"", f.offsets(0, 0), b"", attributes=Attribute.KEYS), 0
    ),
    "hashes without keys": f.placed(f.resealed(GOOD, attributes=Attribute.KEY_HASH)),
    "marks of missing keys without keys": f.placed(
        f.resealed(GOOD, attributes=Attribute.KEY_NULLS)
    ),
    "headers that are not there": f.placed(f.resealed(GOOD, attributes=Attribute.HEADERS)),
    "a compression that is not there": f.placed(f.resealed(GOOD, attributes=Attribute.ZSTD)),
    "no columns at all": f.placed(f.with_body(1, 0, bytes(8))),
    "offsets that do not begin at 0": f.placed(plain(2, f.offsets(1, 2, 3), b"abc")),
    "offsets that fall": f.placed(plain(2, f.offsets(0, 5, 3), b"abc")),
    "offsets before the beginning": f.placed(plain(2, f.offsets(0, -1, 3), b"abc")),
    "a last offset before the beginning": f.placed(plain(1, f.offsets(0, -8))),
    "offsets that pass the end": f.placed(plain(2, f.offsets(0, 1, 99), b"abc")),
    "the largest offset there is": f.placed(plain(1, f.offsets(0, 2**31 - 1), b"abc")),
    "offsets that jump over the whole range": f.placed(
        plain(40, f.offsets(0, *[2**31 - 1, -(2**31)] * 19, 0, 3), b"abc")
    ),
    "header counts that fall": f.placed(
        plain(
            2,
            f.offsets(0, 0, 0),
            f.offsets(0, 2, 1),
            f.offsets(0, 1),
            b"n",
            f.offsets(0, 0),
            attributes=Attribute.HEADERS,
        )
    ),
    "a header without a name": f.placed(
        plain(
            1,
            f.offsets(0, 0),
            f.offsets(0, 1),
            f.offsets(0, 0),
            f.offsets(0, 1),
            b"v",
            attributes=Attribute.HEADERS,
        )
    ),
    "a header name that is not UTF-8": f.placed(
        plain(
            1,
            f.offsets(0, 0),
            f.offsets(0, 1),
            f.offsets(0, 1),
            b"\xff",
            f.offsets(0, 0),
            attributes=Attribute.HEADERS,
        )
    ),
    "a letter cut between two header names": f.placed(
        plain(
            1,
            f.offsets(0, 0),
            f.offsets(0, 2),
            f.offsets(0, 1, 2),
            "é".encode(),
            f.offsets(0, 0, 0),
            attributes=Attribute.HEADERS,
        )
    ),
    "bytes after the last section": f.placed(plain(1, f.offsets(0, 0), b"12345678")),
    "bytes after the payload": f.placed(f.with_body(1, 0, struct.pack("<II", 8, 8), bytes(16))),
    "a payload longer than it says": f.placed(
        f.with_body(1, 0, struct.pack("<II", 0, 8), f.offsets(0, 0))
    ),
    "a zip bomb that says half its size": f.placed(bomb(8 * MIB)),
    "a zip bomb that does not say its size": f.placed(unsized()),
    "compressed noise": f.placed(zstd(b"not zstd at all!", 16)),
    "bytes after the compressed ones": f.placed(
        zstd(zstandard.compress(f.offsets(0, 0)) + b"x", 8)
    ),
    "half of the compressed bytes": f.placed(zstd(zstandard.compress(bytes(4096))[:-3], 4096)),
    "a delay longer than the topic allows": f.placed(
        encode_frame(Columns([b"x"], deliver_at_ms=[-(2**42)]))
    ),
    "a delay beyond all numbers": f.placed(encode_frame(Columns([b"x"], deliver_at_ms=[-(2**63)]))),
    "a time to live beyond all numbers": f.placed(
        encode_frame(Columns([b"x"], expires_at_ms=[-(2**63)]))
    ),
    "a time to live longer than all years": f.placed(
        encode_frame(Columns([b"x"], expires_at_ms=[-(2**62)]))
    ),
    "delivery later than the topic allows": f.placed(
        encode_frame(Columns([b"x"] * 2, deliver_at_ms=[0, 2**42]))
    ),
    "an expiry after all years": f.placed(encode_frame(Columns([b"x"], expires_at_ms=[2**62]))),
    "a lane the topic has not": f.placed(encode_frame(Columns([b"x"] * 2, lanes=[0, 3]))),
    "a tenant without a name": f.placed(encode_frame(Columns([b"x"], tenants=[""]))),
    "a batch that says it is not whole": f.placed(f.resealed(GOOD, left_out=1)),
    "a batch with a list of what is left out": f.placed(
        encode_frame(Columns([b"x"]), left_out=[(1, 0, 0)])
    ),
}
LARGE = {
    "a payload of four gigabytes": f.with_body(
        1, 0, struct.pack("<II", 2**32 - 8, 8), f.offsets(0, 0)
    ),
    "a zip bomb that says its size": bomb(64 * MIB),
    "a value one byte too long": f.frame(bytes(limits.VALUE_BYTES_MAX + 1)),
    "a compressed value one byte too long": f.frame(
        bytes(limits.VALUE_BYTES_MAX + 1), compress=True
    ),
    "a key one byte too long": f.frame(b"", keys=[bytes(limits.KEY_BYTES_MAX + 1)]),
    "one header too many": encode_frame(
        Columns([b""], headers=[[("n", b"")] * (limits.HEADERS_PER_MESSAGE_MAX + 1)])
    ),
    "headers that are too long": encode_frame(
        Columns([b""], headers=[[("n", bytes(limits.HEADERS_BYTES_MAX // 2))] * 3])
    ),
    "what is too long for a frame when it is not compressed": zstd(
        zstandard.compress(
            f.offsets(0, 8 * MIB, 16 * MIB - 16, 16 * MIB - 16) + bytes(16 * MIB - 16)
        ),
        16 * MIB,
        count=3,
    ),
}


def refused(node: RunningNode, body: bytes, code: str, field: str, status: int = 400) -> None:
    before = node.call("GET", "/v1/topics/framed")["partitions"]
    answer = node.request("POST", PUBLISH, body, f.FRAMES)
    problem = answer.json
    assert (answer.status, problem["code"], problem.get("field")) == (status, code, field), problem
    assert node.call("GET", "/v1/topics/framed")["partitions"] == before


NOT_ALLOWED = {
    "a delay longer than the topic allows",
    "a delay beyond all numbers",
    "a time to live beyond all numbers",
    "a time to live longer than all years",
    "delivery later than the topic allows",
    "a lane the topic has not",
}


def code_of(name: str) -> str:
    """Sound frames that the topic does not allow are not called unsound."""
    return "invalid_input" if name in NOT_ALLOWED else "invalid_frame"


@pytest.mark.parametrize("name", BAD)
def test_a_frame_that_is_not_sound_is_refused(node: RunningNode, name: str) -> None:
    refused(node, BAD[name], code_of(name), "frames[0]")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_takes_the_good_one_before_it_with_it(node: RunningNode, name: str) -> None:
    refused(node, f.placed(GOOD) + BAD[name], code_of(name), "frames[1]")


@pytest.mark.parametrize("data", LARGE.values(), ids=LARGE.keys())
def test_a_frame_over_a_limit_is_refused(node: RunningNode, data: bytes) -> None:
    refused(node, f.placed(data, 0), "too_large", "frames[0]", 413)


def test_no_frame_at_all_is_refused(node: RunningNode) -> None:
    refused(node, b"", "invalid_input", "body")


def test_a_partition_there_is_not_is_refused(node: RunningNode) -> None:
    refused(node, f.placed(GOOD, 0) + f.placed(GOOD, 2), "partition_not_found", "partition", 404)


def test_keys_without_a_partition_are_refused(node: RunningNode) -> None:
    refused(node, f.placed(GOOD, 0) + f.placed(KEYED), "invalid_input", "partition")


def test_more_frames_than_a_request_may_bring_are_refused(node: RunningNode) -> None:
    many = f.placed(GOOD) * (FRAMES_PER_REQUEST_MAX + 1)
    refused(node, many, "too_large", f"frames[{FRAMES_PER_REQUEST_MAX}]", 413)


def test_more_dedup_ids_than_a_request_may_bring_are_refused(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEDUP_IDS_PER_REQUEST_MAX", 3)
    ids = [bytes([n]) * 16 for n in (1, 2)]
    two = encode_frame(Columns([b"one", b"two"], dedup_ids=ids))
    refused(node, f.placed(GOOD, 0) + f.placed(two, 0) * 2, "too_large", "frames[2]", 413)


def test_many_small_zip_bombs_are_refused_at_what_they_come_to(node: RunningNode) -> None:
    small = f.frame(bytes(8 * MIB), bytes(7 * MIB), compress=True)
    refused(node, f.placed(small) * 100, "too_large", "frames[4]", 413)


def test_every_flipped_bit_of_a_header_is_noticed(node: RunningNode) -> None:
    marked = f.frame(b"one", producer=ProducerMark(7, 0, 0))
    for position in range(HEADER_BYTES):
        refused(node, f.placed(flipped(marked, position)), "invalid_frame", "frames[0]")


def test_every_cut_of_a_frame_is_noticed(node: RunningNode) -> None:
    body = f.placed(KEYED, 0)
    for length in range(1, len(body)):
        refused(node, body[:length], "invalid_frame", "frames[0]")
