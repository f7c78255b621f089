"""Queued frames become the next batch of their log, each once it is admitted."""

from __future__ import annotations

from goq import limits
from goq.broker.log.admission import AppendAdmission
from goq.broker.log.append_queue import AppendQueue, Decision, QueuedFrame
from goq.broker.log.pending_appends import Appended, PendingAppends, Waiter, WrittenFrame
from goq.clock import Clock
from goq.errors import GoqError
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.model import Acks
from goq.storage.log.log import Log
from goq.storage.log.segment import WriteBatch


class BatchFiller:
    """Fills batches of a log in a leader epoch. ``admission`` filters frames; None takes all."""

    def __init__(
        self,
        log: Log,
        queue: AppendQueue,
        pending: PendingAppends,
        admission: AppendAdmission | None,
        clock: Clock,
        epoch: int,
    ) -> None:
        self._log = log
        self._queue = queue
        self._pending = pending
        self._admission = admission
        self._clock = clock
        self._epoch = epoch

    def fill(self, written: list[WrittenFrame]) -> WriteBatch | None:
        """Move queued frames into a batch; None if there is nothing to write.

        A frame stays at the head of the queue if a thread has to decide about it first.
        """
        queue, batch = self._queue, None
        producers: set[int] = set()
        now_us = dedup_ids = 0
        queue.close_shared()
        while isinstance(head := queue.head, QueuedFrame):
            _, done, begins_segment, acks, decision = head
            view = head.view
            header = view.header
            producer_id = header.sequenced_producer_id
            if producer_id in producers or (written and (begins_segment or decision)):
                break  # undecided until the frames before it are committed
            if head.needs_thread:
                break
            if header.attributes & Attribute.DEDUP_ID:
                dedup_ids += header.message_count
                if written and dedup_ids > limits.COMMIT_BATCH_DEDUP_IDS_MAX:
                    break
            if batch is None:
                now_us = decision.now_us if decision else self._clock.wall_us()
                batch = self._log.begin(now_us, roll=begins_segment)
            if not batch.has_room_for(header.frame_bytes):
                break
            admitted = (decision or self._decide(view, batch.end_offset, now_us)).result
            if admitted is None:
                break
            queue.pop()
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
        return self._decide(frame, self._log.end_offset, self._clock.wall_us())

    def _decide(self, view: FrameView, next_offset: int, now_us: int) -> Decision:
        try:
            admit = self._admission and self._admission.admit
            return Decision(admit(view, next_offset, now_us) if admit else view, now_us)
        except GoqError as error:
            return Decision(error, now_us)

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
