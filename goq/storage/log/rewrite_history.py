"""Which part of a log was written again since a reader began to copy it."""

from __future__ import annotations

from collections.abc import Sequence
from random import SystemRandom

from goq.storage.log.segment import Segment

_MARK_BITS = 62


class RewriteHistory:
    """Segments that were replaced by a new generation since the log was opened.

    ``count`` is their number. A follower that copies one part of a log before a rewrite and the
    rest after it may keep a message that a later one superseded, and miss the later one too. The
    log cleaner removed each at a different time. The history shows where that can have happened.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        ends = [segment.end_offset for segment in segments if segment.generation]
        self.count = 0
        self._opening = 1 << _MARK_BITS | SystemRandom().getrandbits(_MARK_BITS)
        self._ends = [(0, max(ends, default=0))]  # counts rise, and end offsets fall

    @property
    def mark(self) -> int:
        """A number that changes with each rewrite, and is another one after each opening."""
        return self._opening + self.count

    def record(self, segment: Segment) -> None:
        """Record that a segment is being replaced."""
        self.count += 1
        while self._ends and self._ends[-1][1] <= segment.end_offset:
            self._ends.pop()
        self._ends.append((self.count, segment.end_offset))

    def end_offset_since(self, number: int) -> int:
        """Return the offset before which frames were rewritten after the first ``number`` rewrites.

        With -1: at any time, also before the log was opened.
        """
        return next((end for count, end in self._ends if count > number), 0)
