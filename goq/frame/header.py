"""The fixed header of a frame: 64 little-endian bytes.

    offset  size  field
         0     4  magic and version, ``goq`` 0x01
         4     4  frame_bytes      whole frame, header and padding included; a multiple of 8
         8     8  base_offset      offset of the first message (signed)
        16     8  append_time_us   when the leader appended it, microseconds since 1970 (signed)
        24     4  leader_epoch
        28     4  message_count    messages (or events) in the frame
        32     2  attributes       bits of :class:`Attribute`
        34     2  left_out         messages of the producer's batch that are not in the frame
        36     4  producer_epoch
        40     8  producer_id      0: the batch has no producer identity
        48     8  first_sequence   the producer's sequence number of the first message
        56     4  body_crc32c      of every byte after the header
        60     4  header_crc32c    of the 60 bytes before it

A batch with producer_epoch 2**32 - 1 is of a producer that has only a name: producer_id identifies
it, and it has no sequence numbers, so it is never a duplicate.

The leader stamps base_offset, append_time_us and leader_epoch, and with them header_crc32c. The
producer writes all other fields. The body's bytes never change, with one exception. If the leader
leaves out duplicates, it encodes the frame again, and ``left_out`` is their number.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from goq import limits
from goq.errors import InvalidFrame, UnsupportedFormat
from goq.frame.checksum import crc32c

MAGIC: Final = b"goq\x01"
HEADER_BYTES: Final = 64
ALIGNMENT_BYTES: Final = 8
NAMED_ONLY_EPOCH: Final = 2**32 - 1

_FIELDS = struct.Struct("<4sIqqIIHHIQQI")
_CRC = struct.Struct("<I")
_FIXED_BYTES: Final = _FIELDS.size  # 60: all but the header's own CRC


class Attribute:
    """Attribute bits of a frame; a bit that is not set means that the section is absent.

    Plain integers: operators of an enumeration would cost more than the rest of a small frame.
    """

    KEYS: Final = 1 << 0
    KEY_NULLS: Final = 1 << 1
    VALUE_NULLS: Final = 1 << 2
    HEADERS: Final = 1 << 3
    ZSTD: Final = 1 << 4
    EVENTS: Final = 1 << 5
    COPY: Final = 1 << 6
    REMOVED: Final = 1 << 7
    DELIVER_AT: Final = 1 << 8
    EXPIRES_AT: Final = 1 << 9
    CLIENT_TIME: Final = 1 << 10
    KEY_HASH: Final = 1 << 11
    DEDUP_ID: Final = 1 << 12
    TENANT: Final = 1 << 13
    LANE: Final = 1 << 14


ATTRIBUTES: Final = {name: bit for name, bit in vars(Attribute).items() if name.isupper()}
KNOWN_ATTRIBUTES: Final = sum(ATTRIBUTES.values())


class FrameHeader(NamedTuple):
    """The fields of a header, decoded and checked."""

    magic: bytes
    frame_bytes: int
    base_offset: int
    append_time_us: int
    leader_epoch: int
    message_count: int
    attributes: int
    left_out: int
    producer_epoch: int
    producer_id: int
    first_sequence: int
    body_crc32c: int

    @property
    def end_offset(self) -> int:
        """The offset after the frame's last message."""
        return self.base_offset + self.message_count

    @property
    def producer_count(self) -> int:
        """Number of messages in the producer's batch, including those left out."""
        return self.message_count + self.left_out

    @property
    def sequenced_producer_id(self) -> int:
        """The producer whose sequence numbers the batch has; 0 if it has none."""
        return 0 if self.producer_epoch == NAMED_ONLY_EPOCH else self.producer_id

    def pack(self) -> bytes:
        """Return the header's 64 bytes, with its CRC."""
        fixed = _FIELDS.pack(*self)
        return fixed + _CRC.pack(crc32c(fixed))


def _check_version(fixed: bytes) -> None:
    """Raise ``UnsupportedFormat`` for a later version: its header CRC is at the same place."""
    is_sound = _CRC.unpack_from(fixed, _FIXED_BYTES)[0] == crc32c(fixed[:_FIXED_BYTES])
    if is_sound and fixed[:3] == MAGIC[:3] and fixed[3] > MAGIC[3]:
        raise UnsupportedFormat(
            f"a frame has format {fixed[3]}, and this goq knows {MAGIC[3]}: start the version of"
            " goq that wrote it, or a later one"
        )


def parse_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> FrameHeader:
    """Return the header at ``position``; raises ``InvalidFrame`` unless every field is sound.

    A sound header of a later version raises ``UnsupportedFormat``: it is no damage.
    """
    fixed = bytes(buffer[position : position + HEADER_BYTES])
    if len(fixed) < HEADER_BYTES:
        raise InvalidFrame(f"a frame header has {HEADER_BYTES} bytes, not {len(fixed)}")
    if fixed[:4] != MAGIC:
        _check_version(fixed)
        raise InvalidFrame(f"no frame begins here: expected {MAGIC!r}, found {fixed[:4]!r}")
    if _CRC.unpack_from(fixed, _FIXED_BYTES)[0] != crc32c(fixed[:_FIXED_BYTES]):
        raise InvalidFrame("the frame header's CRC32C does not match its bytes")
    header = FrameHeader._make(_FIELDS.unpack_from(fixed))
    if not HEADER_BYTES < header.frame_bytes <= limits.FRAME_BYTES_MAX:
        raise InvalidFrame(
            f"a frame of {header.frame_bytes} bytes is outside of"
            f" {HEADER_BYTES + 1} to {limits.FRAME_BYTES_MAX}"
        )
    if header.frame_bytes % ALIGNMENT_BYTES:
        raise InvalidFrame(f"a frame's length is a multiple of 8, not {header.frame_bytes}")
    if not 1 <= header.message_count <= limits.FRAME_MESSAGES_MAX:
        raise InvalidFrame(
            f"a frame holds 1 to {limits.FRAME_MESSAGES_MAX} messages, not {header.message_count}"
        )
    if header.attributes & ~KNOWN_ATTRIBUTES:
        raise InvalidFrame(f"unknown attribute bits {header.attributes & ~KNOWN_ATTRIBUTES:#x}")
    if header.producer_count > limits.FRAME_MESSAGES_MAX:
        raise InvalidFrame(f"a batch cannot have {header.producer_count} messages")
    if header.base_offset < 0:
        raise InvalidFrame(f"a frame's base offset cannot be negative: {header.base_offset}")
    return header


def stamp(
    header: FrameHeader, *, base_offset: int, append_time_us: int, leader_epoch: int
) -> FrameHeader:
    """Return the header with the fields that the leader stamps."""
    return header._replace(
        base_offset=base_offset, append_time_us=append_time_us, leader_epoch=leader_epoch
    )


def padding_bytes(size_bytes: int) -> int:
    """Return how many zero bytes bring ``size_bytes`` to the next multiple of 8."""
    return -size_bytes % ALIGNMENT_BYTES
