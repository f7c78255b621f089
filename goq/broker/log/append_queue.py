"""The queue of one log: frames, and work that needs the log to itself, in the order they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from goq import limits
from goq.broker.log.pending_appends import Appended, Waiter, reject
from goq.broker.log.shared_frame import SharedBy, SharedFrame
from goq.errors import GoqError
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.model import Acks, Message


class Decision(NamedTuple):
    """The result of a frame's admission, and the time that it took for the time of the append."""

    result: FrameView | Appended | GoqError | None
    now_us: int


class QueuedFrame(NamedTuple):
    """A frame, and who waits for its place in the log."""

    frame: FrameView | SharedFrame
    done: Waiter[Appended]
    begins_segment: bool
    acks: Acks
    decision: Decision | None = None
    """The decision of a thread, for a frame with so many dedup ids that it needs one."""

    @property
    def view(self) -> FrameView:
        """The frame. One that is shared takes no more messages after the first look."""
        frame = self.frame
        return frame.view if isinstance(frame, SharedFrame) else frame

    @property
    def size_bytes(self) -> int:
        """The size of the frame; of one that is shared about it, and no less."""
        frame = self.frame
        return frame.size_bytes if isinstance(frame, SharedFrame) else frame.header.frame_bytes

    @property
    def needs_thread(self) -> bool:
        """Whether a thread must decide about the frame before it is written."""
        if self.decision is not None or isinstance(self.frame, SharedFrame):
            return False
        header = self.frame.header
        has_ids = header.attributes & Attribute.DEDUP_ID
        return bool(has_ids) and header.message_count > limits.DEDUP_IDS_ADMITTED_AT_ONCE


class ExclusiveWork(NamedTuple):
    """Work in a thread, during which nothing else touches the log."""

    work: Callable[[], None]
    done: asyncio.Future[None]


class AppendQueue:
    """The entries that wait for one log; ``size_bytes`` is that of its frames."""

    def __init__(self) -> None:
        self._entries: deque[QueuedFrame | ExclusiveWork] = deque()
        self._shared: dict[SharedBy, SharedFrame] = {}  # queued, and open for more messages
        self.size_bytes = 0

    @property
    def head(self) -> QueuedFrame | ExclusiveWork | None:
        """The entry that is next; None if nothing waits."""
        return self._entries[0] if self._entries else None

    def add_frame(
        self, view: FrameView, done: Waiter[Appended], *, begins_segment: bool, acks: Acks
    ) -> None:
        """Add a frame. Later messages stay behind it."""
        self._entries.append(QueuedFrame(view, done, begins_segment, acks))
        self._shared.clear()
        self.size_bytes += view.header.frame_bytes

    def add_message(
        self, message: Message, size_bytes: int, by: SharedBy, done: Waiter[Appended]
    ) -> None:
        """Add a message to the frame of those like it, if that is still open."""
        shared = self._shared.get(by)
        if shared is None or not shared.has_room_for(size_bytes):
            shared = self._shared[by] = SharedFrame(by)
            self._entries.append(QueuedFrame(shared, shared, begins_segment=False, acks=by.acks))
        shared.add(message, size_bytes, done)
        self.size_bytes += size_bytes

    def add_exclusive(self, work: Callable[[], None], done: asyncio.Future[None]) -> None:
        """Add work between the frames before it and those after it."""
        self._entries.append(ExclusiveWork(work, done))

    def close_shared(self) -> None:
        """Close the frames that are queued to more messages: they are about to be written."""
        self._shared.clear()

    def pop(self) -> None:
        """Remove the head."""
        entry = self._entries.popleft()
        if isinstance(entry, QueuedFrame):
            self.size_bytes -= entry.size_bytes

    def note_decision(self, frame: QueuedFrame, decision: Decision) -> None:
        """Keep what a thread decided about the head; another one has taken its place at times."""
        if self._entries and self._entries[0] is frame:
            self._entries[0] = frame._replace(decision=decision)

    def take_waiters(self) -> list[Waiter[Any]]:
        """Empty the queue. Return who waited."""
        waiters: list[Waiter[Any]] = [entry.done for entry in self._entries]
        self._entries.clear()
        self._shared.clear()
        self.size_bytes = 0
        return waiters

    def refuse_frames(self, error: GoqError) -> None:
        """Fail every frame with an error. Exclusive work stays."""
        kept: deque[QueuedFrame | ExclusiveWork] = deque()
        for entry in self._entries:
            if isinstance(entry, ExclusiveWork):
                kept.append(entry)
            else:
                reject(entry.done, error)
        self._entries = kept
        self._shared.clear()
        self.size_bytes = 0
