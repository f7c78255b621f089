"""The update of a follower: what of the leader's two logs follows its position.

The update of one log is read from the disk frame by frame, as the follower will store it, up to the
end of a segment. If the follower's log is no prefix of the leader's, the update says where they
part and has no frames. Damaged frames are passed over only where no replica has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import LogUpdate, PartitionKey, PartitionUpdate
from goq.storage.log.leader_epochs import epoch_end
from goq.storage.log.log import Log
from goq.storage.log.reader import segment_number


class FramedUpdate(NamedTuple):
    """An update for a follower and its frames, those of the messages first.

    ``end_offsets`` are the ends of the follower's logs once it has stored them, None if not known.
    """

    head: PartitionUpdate
    buffers: list[memoryview]
    end_offsets: LogOffsets | None = None


def refusal_of(key: PartitionKey, why: str) -> PartitionUpdate:
    """Return the update that says that this node has nothing for the follower."""
    return PartitionUpdate(key, -1, LogOffsets(0, 0), None, None, why)


class FramedLogUpdate(NamedTuple):
    """The update of one log and its frames."""

    head: LogUpdate
    buffers: list[memoryview]
    end_offset: int | None
    """The end of the follower's log once it has stored them, None if not known."""


def read_log_update(
    log: Log,
    end: int,
    epoch: int,
    own_end: int,
    *,
    is_lost: Callable[[int, int], bool],
    is_checked: bool,
    bytes_max: int,
) -> FramedLogUpdate:
    """Return the update of one log for a follower whose log ends at ``end``, last in ``epoch``.

    ``is_lost`` returns whether no replica has the frames of a range. A follower may be behind a
    lost range, with the last epoch before it.
    """
    start = log.start_offset
    if end < start:
        return FramedLogUpdate(
            LogUpdate(start, start, 0), [], start
        )  # the follower resets its log there
    if not is_checked and end > start:
        common = epoch_end(log.reader, epoch, own_end)
        if common.epoch != epoch or not is_lost(common.end_offset, end):
            return FramedLogUpdate(
                LogUpdate(start, start, 0, common.end_offset, common.epoch), [], None
            )
    if end >= own_end:
        return FramedLogUpdate(LogUpdate(start, start, 0), [], end)
    segments = log.segments
    segment = segments[segment_number(segments, end)]
    reading = log.reader.read(end, min(own_end, segment.end_offset), bytes_max=bytes_max)
    buffers: list[memoryview] = []
    for view in reading.frames:
        if view.header.base_offset > end or (buffers and view.header.base_offset < end):
            break  # the frames between are damaged
        buffers.append(view.buffer)
        end = view.header.end_offset
    if not buffers:
        behind = reading.frames[0].header.base_offset if reading.frames else reading.next_offset
        if end < behind and is_lost(end, behind):
            update = LogUpdate(segment.base_offset, start, 0, lost=(end, behind))
            return FramedLogUpdate(update, [], behind)
    return FramedLogUpdate(
        LogUpdate(segment.base_offset, start, sum(map(len, buffers))), buffers, end
    )
