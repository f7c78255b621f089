"""Frames as a client builds them, and as a hostile one would."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from crc32c import crc32c

from goq.frame.encoder import NO_PRODUCER, Columns, ProducerMark, assemble_frame, encode_frame
from goq.frame.header import HEADER_BYTES, parse_header
from goq.frame.view import FrameView

FRAMES = {"Content-Type": "application/vnd.goq.frames"}
ACCEPT_FRAMES = {"Accept": "application/vnd.goq.frames"}
ANY_PARTITION = 0xFFFF_FFFF


def frame(
    *values: bytes | None,
    keys: Sequence[bytes | None] | None = None,
    producer: ProducerMark = NO_PRODUCER,
    compress: bool = False,
) -> bytes:
    return encode_frame(Columns(list(values), keys=keys), producer=producer, compress=compress)


def placed(data: bytes, partition: int = ANY_PARTITION) -> bytes:
    return partition.to_bytes(4, "little") + data


def resealed(data: bytes, **fields: int) -> bytes:
    """A frame with other header fields, and the CRCs that make it look sound."""
    header = parse_header(data)._replace(**fields)
    body = data[HEADER_BYTES:]
    return header._replace(body_crc32c=crc32c(body)).pack() + body


def with_body(count: int, attributes: int, *parts: bytes) -> bytes:
    """A frame of any body at all, sound in its header and its CRCs."""
    return assemble_frame(list(parts), count=count, attributes=attributes)


def payload_of(*sections: bytes) -> tuple[bytes, bytes]:
    """The lengths and the payload of a body without columns."""
    payload = b"".join(section + bytes(-len(section) % 8) for section in sections)
    return struct.pack("<II", len(payload), len(payload)), payload


def offsets(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def answered(body: bytes) -> tuple[dict[str, Any], list[tuple[int, FrameView]]]:
    """The preface of an answer and its placed frames."""
    size = int.from_bytes(body[:4], "little")
    preface = json.loads(body[4 : 4 + size])
    position, frames = 4 + size, []
    while position < len(body):
        partition = int.from_bytes(body[position : position + 4], "little")
        view = FrameView.parse(body, position + 4)
        frames.append((partition, view))
        position += 4 + view.header.frame_bytes
    return preface, frames
