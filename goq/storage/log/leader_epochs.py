"""Leader epochs of a log, found in its frames.

The header of every frame has the epoch of the leader that appended it. Epochs never fall along a
log, so a bisection over offsets finds each boundary. There is no epoch file to keep or to lose.
"""

from __future__ import annotations

from typing import NamedTuple

from goq.storage.log.reader import LogReader


class EpochEnd(NamedTuple):
    """A leader epoch, and the offset after its last frame."""

    epoch: int
    end_offset: int


NO_EPOCH = -1


def epoch_end(reader: LogReader, epoch: int, end_offset: int) -> EpochEnd:
    """Return the latest epoch up to ``epoch`` in a log that ends at ``end_offset``.

    If all frames are of later epochs: :data:`NO_EPOCH` and the start of the log. Blocks on the
    disk. A damaged frame counts as the next sound one.
    """
    low = reader.segments[0].base_offset
    high = end_offset
    found = NO_EPOCH
    while low < high:  # before low: epochs up to this one; from high on: later ones
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
