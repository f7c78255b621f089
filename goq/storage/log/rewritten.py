"""How far segments of a log have been written anew, and since when.

Who copied a part of a log before and the rest after may have a message that a later one made void,
and lack that one: compaction took away both, each at its time.
"""

from __future__ import annotations

from collections.abc import Sequence

from goq.storage.log.segment import Segment


class Rewritten:
    """``number`` counts the segments that were written anew since the log was opened."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        ends = [segment.end_offset for segment in segments if segment.generation]
        self.number = 0
        self._reaches = [(0, max(ends, default=0))]  # numbers rise, and ends fall

    def note(self, segment: Segment) -> None:
        """Hear that a segment is being written anew."""
        self.number += 1
        while self._reaches and self._reaches[-1][1] <= segment.end_offset:
            self._reaches.pop()
        self._reaches.append((self.number, segment.end_offset))

    def reach_since(self, number: int) -> int:
        """Return before which offset anything was written anew after the first ``number`` times.

        With -1 at any time, also before the log was opened.
        """
        return next((end for count, end in self._reaches if count > number), 0)
