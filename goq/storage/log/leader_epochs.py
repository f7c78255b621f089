"""Which leader wrote what: the leader epochs in a log, found where they are, in its frames.

Every frame's header has the epoch of the leader that appended it, and epochs never fall along a
log. So there is no table of them to keep and to lose: a bisection over offsets finds each border.
"""

from __future__ import annotations

from typing import NamedTuple

from goq.storage.log.reader import LogReader


class EpochEnd(NamedTuple):
    """An epoch, and the offset behind its last frame."""

    epoch: int
    end_offset: int


NO_EPOCH = -1


def epoch_end(reader: LogReader, epoch: int, end_offset: int) -> EpochEnd:
    """Return the latest epoch up to ``epoch`` in a log that ends at ``end_offset``.

    :data:`NO_EPOCH`, and where the log begins, if all of it is of later ones. Blocks on the disk;
    damaged frames count as the next sound one.
    """
    low = reader.segments[0].base_offset
    high = end_offset
    found = NO_EPOCH
    while low < high:  # all before low is of an epoch up to this one, all from high on is not
        middle = (low + high) // 2
        reading = reader.read(middle, end_offset, messages_max=1)
        if reading.frames and reading.frames[0].header.leader_epoch <= epoch:
            header = reading.frames[0].header
            low, found = header.end_offset, header.leader_epoch
        else:
            high = middle
    return EpochEnd(found, low)


def last_epoch(reader: LogReader, end_offset: int) -> int:
    """Return the epoch of a log's last frame, :data:`NO_EPOCH` if it has none."""
    return epoch_end(reader, 2**32, end_offset).epoch
