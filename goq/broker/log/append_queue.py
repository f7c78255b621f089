"""The queue of one log: frames, and work that needs the log to itself, in the order they came.

The frames at its head become the next batch, each once it is admitted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from goq import limits
from goq.broker.log.admission import AppendAdmission
from goq.broker.log.pending_appends import Appended, PendingAppends, Waiter, WrittenFrame, reject
from goq.broker.log.shared_frame import SharedBy, SharedFrame
from goq.clock import Clock
from goq.errors import GoqError
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.model import Acks, Message
from goq.storage.log.log import Log
from goq.storage.log.segment import WriteBatch


class Decision(NamedTuple):
    """The result of a frame's admission, and the time that it took for the time of the append."""

    result: FrameView | Appended | GoqError | None
    now_us: int


class QueuedFrame(NamedTuple):
    """A frame, and the waiter for its place in the log."""

    frame: FrameView | SharedFrame
    done: Waiter[Appended]
    begins_segment: bool
    acks: Acks
    is_vital: bool = False
    """Whether a full disk gives up its reserve for it."""
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
    """The entries that wait for a log in a leader epoch; ``size_bytes`` is that of its frames.

    ``admission`` filters frames; None takes all. ``pending`` answers for those that are refused or
    stored already.
    """

    def __init__(
        self,
        log: Log,
        pending: PendingAppends,
        admission: AppendAdmission | None,
        clock: Clock,
        epoch: int,
    ) -> None:
        self._log = log
        self._pending = pending
        self._admission = admission
        self._clock = clock
        self._epoch = epoch
        self._entries: deque[QueuedFrame | ExclusiveWork] = deque()
        self._shared: dict[SharedBy, SharedFrame] = {}  # queued, and open for more messages
        self.size_bytes = 0

    @property
    def head(self) -> QueuedFrame | ExclusiveWork | None:
        """The entry that is next; None if nothing waits."""
        return self._entries[0] if self._entries else None

    def add_frame(
        self,
        view: FrameView,
        done: Waiter[Appended],
        *,
        begins_segment: bool,
        acks: Acks,
        is_vital: bool = False,
    ) -> None:
        """Add a frame. Later messages stay behind it."""
        self._entries.append(QueuedFrame(view, done, begins_segment, acks, is_vital))
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

    def pop(self) -> None:
        """Remove the head."""
        entry = self._entries.popleft()
        if isinstance(entry, QueuedFrame):
            self.size_bytes -= entry.size_bytes

    def fill(self, written: list[WrittenFrame]) -> WriteBatch | None:
        """Move queued frames into a batch; None if there is nothing to write.

        A frame stays at the head of the queue if a thread has to decide about it first.
        """
        batch: WriteBatch | None = None
        producers: set[int] = set()
        now_us = dedup_ids = 0
        self._shared.clear()  # no message joins what is about to be written
        while isinstance(head := self.head, QueuedFrame):
            _, done, begins_segment, acks, is_vital, decision = head
            view = head.view
            header = view.header
            producer_id = header.sequenced_producer_id
            if producer_id in producers or (written and (begins_segment or decision)):
                break  # undecided until the frames before it are committed
            if header.attributes & Attribute.DEDUP_ID:
                if head.needs_thread:
                    break
                dedup_ids += header.message_count
                if written and dedup_ids > limits.COMMIT_BATCH_DEDUP_IDS_MAX:
                    break
            if batch is None:
                now_us = decision.now_us if decision else self._now_us()
                batch = self._log.begin(now_us, roll=begins_segment)
            if not batch.has_room_for(header.frame_bytes):
                break
            admitted = decision.result if decision else self._admit(view, batch.end_offset, now_us)
            if admitted is None:
                break
            self.pop()
            batch.is_vital |= is_vital
            if isinstance(admitted, FrameView):
                if producer_id:
                    producers.add(producer_id)
                written.append(self._add(batch, admitted, done, acks, now_us))
            else:
                self._answer(admitted, done)
            if decision and written:
                break  # its time is not that of the frames after it
            if decision:
                batch = None
        return batch if written else None

    def decide(self, frame: FrameView) -> Decision:
        """Decide about the next frame, in a thread, while nothing else is admitted or written."""
        now_us = self._now_us()
        return Decision(self._admit(frame, self._log.end_offset, now_us), now_us)

    def _now_us(self) -> int:
        """Return the time for the next frames, once the admission knows how the clock was set."""
        if self._admission is None:
            return self._clock.wall_us()
        now_us, step_ms = self._admission.steps.read()
        if step_ms:
            self._admission.note_clock_set(step_ms)
        return now_us

    def _admit(
        self, view: FrameView, next_offset: int, now_us: int
    ) -> FrameView | Appended | GoqError | None:
        if self._admission is None:
            return view
        try:
            return self._admission.admit(view, next_offset, now_us)
        except GoqError as error:
            return error

    def _add(
        self,
        batch: WriteBatch,
        admitted: FrameView,
        done: Waiter[Appended],
        acks: Acks,
        now_us: int,
    ) -> WrittenFrame:
        offset = batch.add(
            admitted.header, admitted.body, append_time_us=now_us, leader_epoch=self._epoch
        )
        if self._admission:
            self._admission.stage(admitted, offset, now_us)
        appended = Appended(offset, now_us, left_out=admitted.left_out)
        return WrittenFrame(admitted, appended, done, acks)

    def _answer(self, found: Appended | GoqError, done: Waiter[Appended]) -> None:
        """Answer for a frame that is not written: it is refused, or stored already."""
        if isinstance(found, GoqError):
            self._pending.refuse(done, found)
            return
        if found.duplicate and self._admission:
            self._admission.note_duplicate()
        self._pending.answer_repetition(found, done)

    def note_decision(self, frame: QueuedFrame, decision: Decision) -> None:
        """Keep what a thread decided about the head; another one has taken its place at times."""
        if self._entries and self._entries[0] is frame:
            self._entries[0] = frame._replace(decision=decision)

    def take_waiters(self) -> list[Waiter[Any]]:
        """Empty the queue; return the waiters of its entries."""
        waiters: list[Waiter[Any]] = [entry.done for entry in self._entries]
        self._entries.clear()
        self._shared.clear()
        self.size_bytes = 0
        return waiters

    def refuse_frames(self, error: GoqError, *, keeps_vital: bool = False) -> None:
        """Fail every frame with an error. Exclusive work stays, and vital frames if so asked."""
        entries, self._entries = self._entries, deque()
        self._shared.clear()
        self.size_bytes = 0
        for entry in entries:
            if isinstance(entry, ExclusiveWork):
                self._entries.append(entry)
            elif entry.is_vital and keeps_vital:
                self._entries.append(entry)
                self.size_bytes += entry.size_bytes
            else:
                reject(entry.done, error)
