"""Writing a log as another node has it: the same frames, byte for byte, in the same segments."""

from __future__ import annotations

from collections.abc import Sequence

from goq.errors import InvalidFrame
from goq.frame.view import FrameView
from goq.storage.log.log import Log
from goq.storage.log.segment import Segment


def store(log: Log, frames: Sequence[FrameView], segment_base: int) -> Segment | None:
    """Append checked frames that lie in the segment beginning at ``segment_base`` over there.

    Begins a segment here where they begin one; so ``log`` is not to do that by itself. Durable on
    return as the log's setting says; blocks on the disk. Returns the segment that it sealed, if
    any. Raises ``InvalidFrame``, with nothing changed, unless the frames follow the log and each
    other, else as :meth:`Log.write` does.
    """
    begins_segment = segment_base == log.end_offset and log.active.base_offset != segment_base
    batch = log.begin(0, roll=begins_segment)
    for view in frames:
        header = view.header
        if header.base_offset != batch.end_offset:
            raise InvalidFrame(
                f"a frame at offset {header.base_offset} cannot follow {batch.end_offset}"
            )
        batch.add(
            header,
            view.body,
            append_time_us=header.append_time_us,
            leader_epoch=header.leader_epoch,
        )
    log.write(batch)
    return log.commit(batch)
