"""The frames read for one delivery."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from goq.frame.view import FrameView


class FrameSet:
    """Frames, each once, found by offset; ``views`` has them in the order they were added."""

    def __init__(self) -> None:
        self.views: list[FrameView] = []
        self.size_bytes = 0
        self._sorted: list[FrameView] = []

    def add(self, views: Sequence[FrameView]) -> None:
        """Add those of the frames that are not here yet."""
        for view in views:
            place = bisect_right(self._sorted, view.header.base_offset, key=_base_offset)
            if place and self._sorted[place - 1].header.base_offset == view.header.base_offset:
                continue
            self._sorted.insert(place, view)
            self.views.append(view)
            self.size_bytes += view.header.frame_bytes

    def held_from(self, offset: int) -> int:
        """Return the first offset from ``offset`` on that no frame here holds."""
        number = bisect_right(self._sorted, offset, key=_base_offset) - 1
        while 0 <= number < len(self._sorted):
            header = self._sorted[number].header
            if not header.base_offset <= offset < header.end_offset:
                break
            offset = header.end_offset
            number += 1
        return offset


def _base_offset(view: FrameView) -> int:
    return view.header.base_offset
