"""Reading, for one receive, the frames of the messages that may be handed out.

The choice asks for facts of messages as it comes to them; the answer is read from their frames,
and those are what the receive then hands out. So no message is chosen that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from goq.broker.log.frame_cache import CachedFrame, PartitionFrames
from goq.delivery.selection.redelivery import AttributeColumns
from goq.errors import InvalidFrame
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.storage.disk import NotCached
from goq.storage.log.reader import ReadResult
from goq.storage.scanner import Damage

_GONE_FRAME_COSTS_BYTES = 64 * 1024  # so that a receive passes over so many, then others work
REDRIVE_GROUP_HEADER = "goq-redrive-group"
"""Which group a dead letter that was put back is for."""


class UncachedMessages(NamedTuple):
    """Messages that have to be read from the device before they can be handed out."""

    offset: int
    messages: int


class FrameFetch:
    """The frames of one receive from one partition.

    ``read`` is the log's, with bounds; ``on_damage`` is told of what cannot be read, and notes it
    at once. ``missing`` says what was not in memory, if that ended the choice.
    """

    def __init__(
        self,
        cached: PartitionFrames,
        read: Callable[[int, int, int], ReadResult],
        on_damage: Callable[[Damage], None],
        *,
        bytes_max: int,
    ) -> None:
        self.missing: UncachedMessages | None = None
        self._cached = cached
        self._read = read
        self._on_damage = on_damage
        self._bytes_left = bytes_max
        self._frames: dict[int, FrameView] = {}
        self._last: CachedFrame | None = None

    @property
    def frames(self) -> list[FrameView]:
        """The frames that were asked about, in the order they were."""
        return list(self._frames.values())

    def facts(self, start: int, end: int) -> AttributeColumns | None:
        """Return what is known of messages from ``start`` on; None when there is enough."""
        if self._bytes_left <= 0:
            return None
        frame = self._last
        if frame is None or not frame.base_offset <= start < frame.end_offset:
            found = self._frame(start, end)
            if not isinstance(found, CachedFrame):
                return found
            frame = self._last = found
        view, base = frame.view, frame.base_offset
        header = view.header
        if frame.removed_rows is not None:
            run_end = base + frame.removed_rows.run_end(start - base)
            if frame.removed_rows.has(start - base):
                return self._pass_gone(frame, start, run_end)
            end = min(end, run_end)
        end = min(end, frame.end_offset)
        cost = (end - start) * header.frame_bytes // header.message_count
        if cost > self._bytes_left and self._frames:
            self._bytes_left = 0
            return None
        self._bytes_left -= cost
        if base not in self._frames:
            self._frames[base] = view
            self._cached.use(frame)
        first, last = start - base, end - base
        return AttributeColumns(
            end,
            True,
            frame.keys[first:last].tolist() if frame.keys is not None else None,
            frame.expires_ms[first:last].tolist() if frame.expires_ms is not None else None,
            _groups(view, first, last) if header.attributes & Attribute.REDRIVEN else None,
        )

    def _pass_gone(self, frame: CachedFrame, start: int, end: int) -> AttributeColumns:
        """Return the facts of messages that are gone; that much reading uses up the room too."""
        header = frame.view.header
        share_bytes = (end - start) * header.frame_bytes // header.message_count
        is_whole = end - start == header.message_count
        self._bytes_left -= max(share_bytes, _GONE_FRAME_COSTS_BYTES if is_whole else 0)
        return AttributeColumns(end, is_gone=True)

    def _frame(self, start: int, end: int) -> CachedFrame | AttributeColumns | None:
        """Return the frame with ``start``, from the cache or the log, or what there is instead."""
        frame = self._cached.at(start)
        if frame is not None:
            return frame
        try:
            reading = self._read(start, end, self._bytes_left)
        except NotCached:
            self.missing = UncachedMessages(start, max(end - start, 1))
            return None
        self._cached.add([view for view in reading.frames if not _is_empty(view)])
        for damage in reading.damage:
            self._on_damage(damage)
        for view in reading.frames:
            if _holds(view, start):
                return CachedFrame(view)
        after = min((v.header.base_offset for v in reading.frames), default=reading.next_offset)
        if after <= start:
            raise InvalidFrame(f"offset {start} cannot be read")
        return AttributeColumns(min(after, end), is_readable=False)


def _is_empty(view: FrameView) -> bool:
    """Whether all of a frame is gone: it is passed at once, and not asked about again."""
    return view.removed_rows is not None and view.removed_rows.is_all


def _holds(view: FrameView, offset: int) -> bool:
    return view.header.base_offset <= offset < view.header.end_offset


def _groups(view: FrameView, first: int, last: int) -> list[str | None]:
    """Return the group that each message is for, None for all."""
    return [
        next((value.decode() for name, value in headers if name == REDRIVE_GROUP_HEADER), None)
        for headers in view.headers(first, last)
    ]
