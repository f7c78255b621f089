"""A frame without the values or the headers of its messages, for readers that need neither.

The sections that stay are copied as they are, so the cost is that of their bytes, however many
messages the frame has. Only a compressed payload is read as a whole. A value that is left out is
empty and a tombstone stays one, so no reader takes a message for a tombstone, and no section
grows. Such a frame is for the reader that asked for it: it is never stored or replicated.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from goq.frame.body import SectionReader
from goq.frame.checksum import crc32c
from goq.frame.header import HEADER_BYTES, Attribute, padding_bytes
from goq.frame.view import FrameView

OPTIONAL_COLUMNS: Final = ("value", "headers")
"""The columns of messages that a reader may leave out."""


def leave_out(view: FrameView, columns: Collection[str]) -> FrameView:
    """Return the frame without some of ``OPTIONAL_COLUMNS``, uncompressed.

    Its values are then empty, except for tombstones, which stay; or it has no headers, and is not
    marked as copies. The offsets, the other columns and the fields of the header stay.
    """
    header, raw = view.header, view.raw_payload
    removed = view.removed_rows
    count = header.message_count if removed is None else removed.kept_count
    attributes = header.attributes & ~Attribute.ZSTD
    cursor = SectionReader(raw)
    _skip_column(cursor, attributes & Attribute.VALUE_NULLS, count)
    keys = cursor.position
    if attributes & Attribute.KEYS:
        _skip_column(cursor, attributes & Attribute.KEY_NULLS, count)
    headers = cursor.position
    kept = [raw[:keys], raw[keys:headers], raw[headers:]]
    if "value" in columns:
        validity_bytes = _padded((count + 7) // 8) if attributes & Attribute.VALUE_NULLS else 0
        no_values = memoryview(bytes(_padded(4 * (count + 1))))
        kept[:1] = [raw[:validity_bytes], no_values]
    if "headers" in columns:
        del kept[-1]
        attributes &= ~(Attribute.HEADERS | Attribute.COPY)
    lengths = sum(map(len, kept)).to_bytes(4, "little") * 2
    body = b"".join((view.fixed_sections, lengths, *kept))
    changed = header._replace(
        frame_bytes=HEADER_BYTES + len(body), attributes=attributes, body_crc32c=crc32c(body)
    )
    return FrameView(changed, memoryview(changed.pack() + body))


def _skip_column(cursor: SectionReader, has_nulls: int, count: int) -> None:
    if has_nulls:
        cursor.take((count + 7) // 8)
    cursor.take_bytes_column(count)


def _padded(size_bytes: int) -> int:
    return size_bytes + padding_bytes(size_bytes)
