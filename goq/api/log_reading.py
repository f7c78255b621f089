"""Reading a partition's log for an answer, without holding up the event loop."""

from __future__ import annotations

from goq.broker.partition import Partition
from goq.frame.view import FrameView
from goq.storage.files import NotCached
from goq.storage.reader import Reading

_EMPTY_READINGS_MAX = 64  # for one answer; then it says where to go on


async def read_kept(partition: Partition, start: int, end: int, limit: int) -> tuple[int, Reading]:
    """Read up to ``limit`` offsets of which some were not compacted away, if that is not far.

    Return from where on, and what was read.
    """
    for _ in range(_EMPTY_READINGS_MAX):
        stop = min(end, start + limit)
        reading = await read_log(partition, start, stop)
        is_over = reading.next_offset >= end or reading.next_offset <= start
        if is_over or reading.damage or _has_messages(reading.frames, start, stop):
            break
        start = reading.next_offset
    return start, reading


def _has_messages(views: list[FrameView], start: int, end: int) -> bool:
    for view in views:
        base = view.header.base_offset
        first, last = max(start, base) - base, min(end, view.header.end_offset) - base
        if view.gone is None or any(view.gone.kept(first, max(first, last))):
            return True
    return False


async def read_log(partition: Partition, start: int, end: int) -> Reading:
    """Read what is in memory at once, what is not in a thread."""
    if start >= end:
        return Reading(next_offset=start)
    try:
        return partition.read(start, messages_max=end - start, wait=False)
    except NotCached:
        await partition.warm(start, end - start)
        return partition.read(start, messages_max=end - start)
