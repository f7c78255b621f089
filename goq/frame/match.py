"""Search in a frame: messages by key, dedup id or header."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from goq.frame.body import BytesColumn
from goq.frame.header import Attribute
from goq.frame.view import FrameView


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
