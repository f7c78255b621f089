"""The append of a follower: frames that its leader has, in segments like the leader's."""

from __future__ import annotations

from collections.abc import Sequence

from goq.errors import InvalidFrame
from goq.frame.header import HEADER_BYTES
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from goq.storage.log.segment import Segment, WriteBatch


def append_replicated(
    log: Log, frames: Sequence[FrameView], segment_base: int, *, is_vital: bool = False
) -> Segment | None:
    """Append validated frames that the leader has in the segment beginning at ``segment_base``.

    The log then has the leader's frames, byte for byte, in the same segments. A segment begins here
    where one begins on the leader, so ``log`` must not roll by itself. The frames are durable on
    return as the log's setting requires; blocks on the disk. Returns the segment that it sealed, if
    any. What ``is_vital`` is written on a full disk too. Raises ``InvalidFrame``, with the log
    unchanged, unless the frames follow the log and each other; otherwise as :meth:`Log.write`.
    """
    batch = begin_replicated(log, frames, segment_base)
    batch.is_vital = is_vital
    log.write(batch)
    return log.commit(batch)


def begin_replicated(log: Log, frames: Sequence[FrameView], segment_base: int) -> WriteBatch:
    """Return the batch of :func:`append_replicated`, which the caller writes and commits."""
    begins_segment = segment_base == log.end_offset and log.active.base_offset != segment_base
    batch = log.begin(0, roll=begins_segment)
    for view in frames:
        header = view.header
        if header.base_offset != batch.end_offset:
            raise InvalidFrame(
                f"a frame at offset {header.base_offset} cannot follow {batch.end_offset}"
            )
        batch.add_stamped(header, view.buffer[:HEADER_BYTES], view.body)
    return batch
