"""Where the copy of a message came to lie, of several that left together; blocks on the disk.

Copies are numbered by their producer. Those in one frame have offsets one after the other, but
between two frames others may have published.
"""

from __future__ import annotations

from collections.abc import Sequence

from goq import limits
from goq.frame.view import FrameView
from goq.storage.log.reader import LogReader

_READINGS_MAX = 8


def place_of_copy(
    readers: Sequence[LogReader], end: int, first_offset: int, index: int
) -> int | None:
    """Return the offset of the copy ``index`` behind the one at ``first_offset``.

    None where it is not to be found before ``end``: it is still on its way, or damaged.
    """
    if not index:
        return first_offset
    for reader in readers:
        segments = reader.segments
        if segments and segments[0].base_offset <= first_offset < segments[-1].end_offset:
            return _find(reader, end, first_offset, index)
    return None


def _find(reader: LogReader, end: int, first_offset: int, index: int) -> int | None:
    at, number, producer_id = first_offset, -1, 0
    for _ in range(_READINGS_MAX):
        reading = reader.read(at, end, messages_max=limits.READ_MESSAGES_MAX)
        for view in reading.frames:
            header = view.header
            if number < 0:
                if not header.base_offset <= first_offset < header.end_offset:
                    return None
                producer_id = header.producer_id
                number = header.first_sequence + first_offset - header.base_offset + index
            if header.producer_id == producer_id and _holds(view, number):
                return header.base_offset + number - header.first_sequence
        if reading.next_offset <= at or reading.next_offset >= end:
            return None
        at = reading.next_offset
    return None


def _holds(view: FrameView, number: int) -> bool:
    header = view.header
    return header.first_sequence <= number < header.first_sequence + header.message_count
