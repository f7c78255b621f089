"""Reading a partition's log for an answer, without holding up the event loop."""

from __future__ import annotations

from goq.broker.partition import Partition
from goq.storage.files import NotCached
from goq.storage.reader import Reading


async def read_log(partition: Partition, start: int, end: int) -> Reading:
    """Read what is in memory at once, what is not in a thread."""
    if start >= end:
        return Reading(next_offset=start)
    try:
        return partition.read(start, messages_max=end - start, wait=False)
    except NotCached:
        await partition.warm(start, end - start)
        return partition.read(start, messages_max=end - start)
