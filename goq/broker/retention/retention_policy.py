"""The retention policy: what retention keeps of a partition, and what it must keep for groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.config.topic import Cleanup, TopicSettings
from goq.storage.log.segment import Segment


def first_protected_offset(topic: Topic, partition: Partition) -> int | None:
    """Return the first offset that protected groups have not finished, or None.

    A group is protected if its settings say ``retention.protect_unread``. Messages that are leased,
    that wait for a retry or for their delivery time, and that were never delivered are unfinished.
    Damaged messages count as finished: they can never be delivered. None means that no group is
    protected, or that every protected group has finished all messages.
    """
    names = {*topic.groups, *partition.group_names}
    protected = [name for name in names if topic.settings_of(name).protect_unread]
    firsts = (partition.group(name).first_unfinished() for name in protected)
    return min((offset for offset in firsts if offset is not None), default=None)


async def unread_counts(topic: Topic, partition: Partition, end: int) -> dict[str, int]:
    """Return how many messages before ``end`` each group has not finished, where there are any."""
    counts, start, time_slice = {}, partition.log_start_offset, TimeSlice()
    for name in {*topic.groups, *partition.group_names} if start < end else ():
        count = partition.group(name).unfinished_count(start, end)
        if count:
            counts[name] = count
        if time_slice.is_over:
            await time_slice.next()
    return counts


class Retained(NamedTuple):
    """The offset before which retention deletes everything, and when the next segment expires.

    ``expires_us`` is None without such a time.
    """

    offset: int
    expires_us: int | None


def retained_from(
    segments: Sequence[Segment],
    settings: TopicSettings,
    now_us: int,
    load: Callable[[Segment], object] = lambda _segment: None,
    first_time_us: Callable[[Segment], int | None] = lambda segment: segment.first_time_us,
) -> Retained:
    """Return what retention keeps.

    Only sealed segments are deleted. By age: the newest message of the segment is older than
    ``retention.age``. By size: oldest first, while the log is larger than ``retention.bytes``. A
    compacted log keeps everything. ``load`` is called for each segment whose time is needed; it has
    to load the index of the segment. A segment that lost the times of damaged messages goes by age
    together with the next one that has its times: its messages are not newer.

    ``Segment.time_us`` is a running maximum. One later than now is of a clock that was ahead. Then
    the times of the segment itself count. If one of these is later than now, its messages are not
    newer than the first of the next segment, by ``first_time_us``. If that is later, too, it goes
    with the next segment.
    """
    keep = segments[0].base_offset
    if settings.cleanup is Cleanup.COMPACT:
        return Retained(keep, None)
    total_bytes = sum(segment.size_bytes for segment in segments)
    undecided_bytes = newest_us = 0
    for segment, following in pairwise(segments):
        undecided_bytes += segment.size_bytes
        too_many = settings.retention_bytes is not None and total_bytes > settings.retention_bytes
        if not too_many:
            if settings.retention_age_ms is None:
                break
            load(segment)
            if segment.has_lost_times:
                continue
            time_us = segment.time_us
            if time_us > now_us:
                time_us = segment.newest_us
            if time_us > now_us:
                time_us = first_time_us(following) or time_us
            if time_us > now_us:
                continue
            newest_us = max(newest_us, time_us)
            if newest_us >= now_us - settings.retention_age_ms * 1000:
                return Retained(keep, newest_us + settings.retention_age_ms * 1000 + 1)
        keep = segment.end_offset
        total_bytes -= undecided_bytes
        undecided_bytes = 0
    return Retained(keep, None)
