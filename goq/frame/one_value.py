"""The frame of one message that has only a value: encoded and read without columns.

Most frames of clients that publish message by message are such frames.
"""

from __future__ import annotations

import struct

from goq.frame.encoder import NO_PRODUCER, Columns, ProducerMark, encode_frame
from goq.frame.header import HEADER_BYTES, padding_bytes
from goq.frame.view import FrameView

_HEAD = struct.Struct("<IIii")  # raw and stored length of the payload, then two offsets
_VALUE_AT = HEADER_BYTES + _HEAD.size
_OFFSETS_BYTES = 8
_PADDING = [bytes(count) for count in range(8)]


def encode_batch(columns: Columns, producer: ProducerMark, *, compress: bool) -> bytes:
    """Return the result of :func:`goq.frame.encoder.encode_frame`; faster for one bare value."""
    value = columns.values[0] if len(columns.values) == 1 else None
    if value is not None and not compress and columns == Columns(columns.values):
        return encode_value(value, producer)
    return encode_frame(columns, producer=producer, compress=compress)


def encode_value(value: bytes, producer: ProducerMark = NO_PRODUCER) -> bytes:
    """Return the result of :func:`goq.frame.encoder.encode_frame` for one value, but faster."""
    return bytes(view_of_value(value, producer).buffer)


def view_of_value(value: bytes, producer: ProducerMark = NO_PRODUCER) -> FrameView:
    """Return a view of the same frame."""
    padding = padding_bytes(len(value))
    raw_bytes = _OFFSETS_BYTES + len(value) + padding
    head = _HEAD.pack(raw_bytes, raw_bytes, 0, len(value))
    body = (head, value, _PADDING[padding])
    return FrameView.assemble(body, count=1, attributes=0, producer=producer)


def value_of(view: FrameView) -> bytes | None:
    """Return the value of a frame as :func:`encode_value` makes it; None for any other frame.

    The sections of a frame with a value are sound; its CRC may not be.
    """
    header, buffer = view.header, view.buffer
    if header.message_count != 1 or header.attributes or header.left_out:
        return None
    if len(buffer) < _VALUE_AT:
        return None
    raw_bytes, stored_bytes, start, size_bytes = _HEAD.unpack_from(buffer, HEADER_BYTES)
    padded_bytes = size_bytes + padding_bytes(size_bytes)
    if (
        start != 0
        or size_bytes < 0
        or raw_bytes != stored_bytes
        or raw_bytes != _OFFSETS_BYTES + padded_bytes
        or len(buffer) != _VALUE_AT + padded_bytes
    ):
        return None
    return bytes(buffer[_VALUE_AT : _VALUE_AT + size_bytes])
