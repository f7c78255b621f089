"""Search in a frame: messages by key, dedup id or header, or by text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from enum import StrEnum

import numpy as np

from goq.frame.body import BytesColumn
from goq.frame.header import Attribute
from goq.frame.view import FrameView

_PIECE_BYTES = 1 << 20  # searched at once: other threads wait meanwhile


class MessagePart(StrEnum):
    """A part of a message that a text is looked for in."""

    VALUE = "value"
    KEY = "key"
    HEADER = "header"  # the values of headers


def has_key(view: FrameView, row: int, key: bytes) -> bool:
    """Return whether a message has this key; no key differs from an empty key."""
    return view.keys(row, row + 1) == [key]


def has_dedup_id(view: FrameView, row: int, dedup_id: bytes) -> bool:
    """Return whether a message has the dedup id with this hash of 16 bytes."""
    return view.dedup_ids(row, row + 1) == [dedup_id]


def rows_with_header(view: FrameView, name: str, value: bytes) -> list[int]:
    """Return the rows of messages with a header of this name and value, rising.

    All values are searched at once, as bytes. Single messages are checked only where that matches,
    so a frame without the header costs hardly more than reading it.
    """
    if not view.header.attributes & Attribute.HEADERS:
        return []
    payload = view.payload
    counts, names, values = payload.header_counts, payload.header_names, payload.header_values
    wanted = name.encode()
    if counts is None or wanted not in bytes(names.data):
        return []
    rows: list[int] = []
    for entry in _entries(values, value):
        if bytes(names.data[names.offsets[entry] : names.offsets[entry + 1]]) == wanted:
            row = bisect_right(counts, entry) - 1
            if not rows or rows[-1] != row:
                rows.append(row)
    return rows


def rows_with_text(
    view: FrameView, text: bytes, parts: Collection[MessagePart], *, ignores_case: bool
) -> list[int]:
    """Return the rows of messages that have ``text`` in one of the parts, rising.

    ``ignores_case`` is for the letters A to Z.
    """
    payload, rows = view.payload, set[int]()
    if MessagePart.VALUE in parts:
        rows.update(_entries_with(payload.values, text, ignores_case))
    if MessagePart.KEY in parts and payload.keys is not None:
        rows.update(_entries_with(payload.keys, text, ignores_case))
    counts = payload.header_counts
    if MessagePart.HEADER in parts and counts is not None:
        entries = _entries_with(payload.header_values, text, ignores_case)
        rows.update(bisect_right(counts, entry) - 1 for entry in entries)
    return sorted(rows)


def _entries_with(column: BytesColumn, text: bytes, ignores_case: bool) -> Iterator[int]:
    """Yield the entries of a column that contain ``text``, an entry perhaps twice."""
    offsets = column.offsets
    wanted = text.lower() if ignores_case else text
    for start in range(0, len(column.data), _PIECE_BYTES):
        piece = bytes(column.data[start : start + _PIECE_BYTES + len(wanted) - 1])
        if ignores_case:
            piece = piece.lower()
        position = piece.find(wanted)
        while position >= 0:
            entry = bisect_right(offsets, start + position) - 1
            end = offsets[entry + 1] - start
            if position + len(wanted) <= end:
                yield entry
                position = piece.find(wanted, end)
            else:
                position = piece.find(wanted, position + 1)


def _entries(column: BytesColumn, wanted: bytes) -> Iterator[int]:
    """Yield the entries of a column that equal these bytes, rising."""
    offsets = column.offsets
    if not wanted:
        yield from np.flatnonzero(np.diff(np.frombuffer(offsets, np.int32)) == 0).tolist()
        return
    data = bytes(column.data)
    position = data.find(wanted)
    while position >= 0:
        entry = bisect_right(offsets, position) - 1  # the last of several empty entries
        if offsets[entry] == position and offsets[entry + 1] == position + len(wanted):
            yield entry
            position = data.find(wanted, position + len(wanted))
        else:
            position = data.find(wanted, position + 1)
