"""Reading a partition's log for an answer, without holding up the event loop."""

from __future__ import annotations

from goq.broker.partition.partition import Partition
from goq.storage.disk import NotCached
from goq.storage.log.reader import Reading

_EMPTY_READINGS_MAX = 64  # for one answer; then it says where to go on


async def read_kept(partition: Partition, start: int, end: int, limit: int) -> tuple[int, Reading]:
    """Read up to ``limit`` offsets of which some were not compacted away, if that is not far.

    Return from where on, and what was read.
    """
    reading = await read_log(partition, start, min(end, start + limit))
    for _ in range(_EMPTY_READINGS_MAX):
        if reading.damage or not reading.frames:
            break
        first = _first_kept(reading, start)
        if first < start + limit or start >= end:
            break
        start = min(first, end)
        reading = await read_log(partition, start, min(end, start + limit))
    return start, reading


def _first_kept(reading: Reading, start: int) -> int:
    """Return the first offset from ``start`` on that was not compacted away, as far as was read."""
    for view in reading.frames:
        base, end = view.header.base_offset, view.header.end_offset
        at = max(start, base)
        if view.gone is not None and at < end and view.gone.has(at - base):
            at = base + view.gone.run_end(at - base)
        if at < end:
            return at
    return reading.next_offset


async def read_log(partition: Partition, start: int, end: int) -> Reading:
    """Read what is in memory at once, what is not in a thread."""
    if start >= end:
        return Reading(next_offset=start)
    try:
        return partition.read(start, messages_max=end - start, wait=False)
    except NotCached:
        await partition.warm(start, end - start)
        return partition.read(start, messages_max=end - start)
