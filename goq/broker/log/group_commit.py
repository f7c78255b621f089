"""Group commit: many appends to one log, one write and one sync for all of them.

While a worker thread writes and syncs a batch, further appends queue for the next batch. So a
single append waits for one sync, and concurrent appends share one. An append completes with its
offset once it is durable by the log's ``fsync`` setting on as many nodes as the quorum requires, or
with an error. A frame on this node's disk alone is acknowledged only to ``Acks.LEADER``, and is not
readable.

An append that fails with ``TimedOut`` may be stored, now or by a later leader. One that fails with
another error is not stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from math import inf
from typing import Protocol

from goq import limits
from goq.broker.log.admission import AppendAdmission
from goq.broker.log.append_queue import AppendQueue, Decision, ExclusiveWork, QueuedFrame
from goq.broker.log.commit_turn import CommitTurn, JournalWrite
from goq.broker.log.pending_appends import (
    Appended,
    PendingAppends,
    Waiter,
    WrittenFrame,
    reject,
    resolve,
)
from goq.broker.log.quorum import Quorum
from goq.broker.log.shared_frame import SharedBy
from goq.broker.runtime.callbacks import ignore
from goq.broker.runtime.metrics import WriteTimes
from goq.clock import Clock
from goq.config.topic import Fsync
from goq.errors import (
    GoqError,
    ResourcesExhausted,
    ShuttingDown,
    StorageFailed,
    StorageFull,
    TimedOut,
    TooManyRequests,
    outcome_unknown,
)
from goq.frame.view import FrameView
from goq.model import Acks, Message
from goq.storage.log.log import Log
from goq.storage.log.segment import Segment, WriteBatch


class Stager(Protocol):
    """Acts on batches that the event loop is about to write, before anyone else can see them."""

    @property
    def is_awaited(self) -> bool:
        """Whether anyone waits for the next batch."""

    def stage(self, batch: WriteBatch, written: Sequence[WrittenFrame]) -> None:
        """Act as if a batch were committed. It is, or the log's ``on_failure`` is called."""


class GroupCommit:
    """The one writer of a log.

    ``admission`` filters frames; None takes all. ``quorum`` gives the high watermark. ``on_commit``
    gets the frames below it, in order; ``on_seal`` every sealed segment; ``on_failure`` every
    failure of an append or of the log. ``stager`` acts on small batches before they are written;
    the log ``follows`` another if what it gets depends on what that one stages. With
    ``uses_reserve`` a full disk gives up its reserve for each batch.
    """

    def __init__(
        self,
        log: Log,
        executor: Executor,
        clock: Clock,
        epoch: int,
        *,
        on_commit: Callable[[Sequence[WrittenFrame]], None],
        on_seal: Callable[[Segment], None],
        on_failure: Callable[[GoqError], None] = lambda _error: None,
        stager: Stager | None = None,
        follows: Log | None = None,
        uses_reserve: bool = False,
        admission: AppendAdmission | None = None,
        quorum: Quorum | None = None,
        write_seconds: WriteTimes,
        turn: CommitTurn | None = None,
        queue_bytes_max: int = limits.COMMIT_QUEUE_BYTES_MAX,
        fsync_interval_ms: int = limits.FSYNC_INTERVAL_MS,
    ) -> None:
        self.log = log
        self._executor = executor
        self._turn = CommitTurn() if turn is None else turn
        self._clock = clock
        self._on_seal = on_seal
        self._on_failure = on_failure
        self._stager = stager
        self._follows = follows
        self._uses_reserve = uses_reserve
        self._admission = admission
        self._write_seconds = write_seconds
        self._queue_bytes_max = queue_bytes_max
        self._fsync_interval_ms = fsync_interval_ms
        self._loop = asyncio.get_running_loop()
        self.pending = PendingAppends(log.end_offset, quorum, on_commit)
        self._queue = AppendQueue(log, self.pending, admission, clock, epoch)
        self._busy = False
        self._at_rest: asyncio.Event | None = None  # someone waits for that
        self._closed: GoqError | None = None
        self._released = False
        self._sync_wanted = False
        self._sync_armed = False
        self._has_quorum = quorum is not None
        self._under_way_us: float = inf  # the append time of the batch that is being written
        self._may_offer = False  # the disk took the last batch of this leadership
        self._is_offered = False  # other nodes may have the batch under way

    @property
    def high_watermark(self) -> int:
        """The high watermark: everything before it is committed."""
        return self.pending.high_watermark

    @property
    def stages(self) -> bool:
        """Whether consumers wait for what is queued; see :class:`Stager`."""
        return self._stager is not None and self._stager.is_awaited

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is accepted, because it was closed or has failed."""
        return self._closed is not None

    @property
    def queued_bytes(self) -> int:
        """The bytes that wait to be written."""
        return self._queue.size_bytes

    @property
    def is_quiet(self) -> bool:
        """Whether every append is committed or refused."""
        return not self._busy and self.pending.is_quiet

    def check_room(self, frame_bytes: int) -> None:
        """Raise ``TooManyRequests`` if too much is pending, or the error of a failed log."""
        if self._closed is not None:
            raise self._closed
        self.pending.check_room(frame_bytes, self._queue_bytes_max)
        queued_bytes = self._queue.size_bytes
        if queued_bytes and queued_bytes + frame_bytes > self._queue_bytes_max:
            raise TooManyRequests(
                "the disk cannot keep up: too many bytes wait to be written; send again shortly",
                retry_after_ms=100,
            )

    def append(
        self,
        view: FrameView,
        *,
        begins_segment: bool = False,
        acks: Acks = Acks.QUORUM,
        is_vital: bool = False,
    ) -> asyncio.Future[Appended]:
        """Queue a frame; the future completes when it is committed, or with the error.

        With ``Acks.LEADER`` this node's disk is enough. What ``is_vital`` is written on a full disk
        too. Callers that can refuse a request call :meth:`check_room` first.
        """
        done: asyncio.Future[Appended] = self._loop.create_future()
        self.append_frame(view, done, begins_segment=begins_segment, acks=acks, is_vital=is_vital)
        return done

    def append_frame(
        self,
        view: FrameView,
        done: Waiter[Appended],
        *,
        begins_segment: bool = False,
        acks: Acks = Acks.QUORUM,
        is_vital: bool = False,
    ) -> None:
        """Do as :meth:`append` for any waiter."""
        if self._closed is not None:
            raise self._closed
        self._queue.add_frame(
            view, done, begins_segment=begins_segment, acks=acks, is_vital=is_vital
        )
        self._turn.append_count += 1
        self._wake()

    def append_message(
        self, message: Message, size_bytes: int, by: SharedBy, done: Waiter[Appended]
    ) -> None:
        """Queue a single message: those that wait for the same write share a frame.

        ``size_bytes`` is that of :func:`message_bytes`; ``done`` gets the position. See
        :meth:`append`.
        """
        if self._closed is not None:
            raise self._closed
        self._queue.add_message(message, size_bytes, by, done)
        self._turn.append_count += 1
        self._wake()

    def _wake(self) -> None:
        if not self._busy:
            self._busy = True
            self._turn.join(self)  # later appends of this turn join the batch

    def start(self) -> JournalWrite | None:
        """Start the next batch or exclusive work. Return a batch that the turn is to write."""
        written: list[WrittenFrame] = []
        self._under_way_us = inf
        try:
            batch = None if self._sync_wanted else self._queue.fill(written)
        except Exception as raised:
            self._fail(written, self._as_known(raised))
            return None
        if batch is not None:
            batch.is_vital |= self._uses_reserve
            self._under_way_us = written[0].appended.time_us
            began_us = self._clock.uptime_us()  # the loop has the time of its turn alone
            self._is_offered = self._may_offer and self.pending.offer(batch)
            finish = partial(self._finish, batch, written, began_us)
            if self.log.can_journal(batch):
                stager = self._stager
                stage = None if stager is None else partial(stager.stage, batch, written)
                return JournalWrite(self.log, batch, finish, stage, self._follows)
            self._run(partial(self._write, batch), finish)
        elif self._sync_wanted:
            self._sync_wanted = False
            self._run(self.log.sync, self._synced)
        elif isinstance(head := self._queue.head, QueuedFrame):
            self._decide_in_thread(head)
        elif head is not None:
            self._queue.pop()
            self._run(head.work, partial(self._finish_exclusive, head))
        else:
            self._rest()
        return None

    def _continue(self) -> None:
        """Start what waits, in the next turn."""
        if self._queue.head or self._sync_wanted:
            self._turn.join(self)
        else:
            self._rest()

    def _rest(self) -> None:
        self._busy = False
        if self._at_rest is not None:
            self._at_rest.set()

    def _decide_in_thread(self, head: QueuedFrame) -> None:
        """Decide about the next frame. Nothing else is admitted, written or settled meanwhile."""
        self._under_way_us = 0  # the thread gives the frame its time
        frame, found = head.frame, list[Decision]()
        assert isinstance(frame, FrameView)

        def decide() -> None:
            found.append(self._queue.decide(frame))

        def go_on(error: Exception | None) -> None:
            if error is not None:
                self._fail([], self._as_known(error))
                return
            self._queue.note_decision(head, found[0])
            self._turn.join(self)

        self._run(decide, go_on)

    def _write(self, batch: WriteBatch) -> None:
        """Write a large batch in a thread, and remember its dedup ids there."""
        self.log.write(batch)
        if self._admission:
            self._admission.settle(stored=True)

    def _run(self, work: Callable[[], None], then: Callable[[Exception | None], None]) -> None:
        def job() -> None:
            error: Exception | None = None
            try:
                work()
            except Exception as raised:  # after a bug too, the waiters must get an answer
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: there are no waiters
                self._loop.call_soon_threadsafe(then, error)

        self._executor.submit(job)

    def _as_known(self, error: Exception) -> GoqError:
        if isinstance(error, GoqError):
            return error
        known = StorageFailed(f"writing to {self.log.directory} failed: {error!r}")
        known.__cause__ = error
        return known

    def _finish(
        self,
        batch: WriteBatch,
        written: list[WrittenFrame],
        began_us: int,
        error: Exception | None,
    ) -> None:
        write_s = (self._clock.uptime_us() - began_us) / 1e6
        self._write_seconds.note(write_s, self._loop.time(), self.log.directory)
        is_offered, self._is_offered = self._is_offered, False
        self._under_way_us = inf
        self._may_offer = self._has_quorum and error is None
        if error is not None:
            known = self._as_known(error)
            if is_offered:  # other frames at these offsets would need another epoch
                self.log.failed = self.log.failed or f"other nodes may have more: {known.detail}"
            is_refused = isinstance(known, StorageFull | ResourcesExhausted) and not is_offered
            doubt = None if is_refused else outcome_unknown(known)
            self._fail(written, known, doubt)
            return
        sealed = self.log.commit(batch)
        if self._admission:
            self._admission.settle(stored=True)
        try:
            self.pending.on_written(batch, written, is_offered=is_offered)
            if sealed is not None:
                self._on_seal(sealed)
        finally:
            if self.log.config.fsync is Fsync.INTERVAL and not self._sync_armed:
                self._sync_armed = True
                self._loop.call_later(self._fsync_interval_ms / 1000, self._want_sync)
            self._continue()

    def _finish_exclusive(self, exclusive: ExclusiveWork, error: Exception | None) -> None:
        if error is None:
            self.pending.on_disk(self.log.end_offset)  # followers may need this end too
            resolve(exclusive.done, None)
        else:
            reject(exclusive.done, error)
        if self.log.failed:
            self._fail([], self._as_known(error or StorageFailed(self.log.failed)))
        else:
            self._continue()

    def _want_sync(self) -> None:
        self._sync_armed = False
        if self._closed is None:
            self._sync_wanted = True
            self._wake()

    def _synced(self, error: Exception | None) -> None:
        if error is not None:
            self._fail([], self._as_known(error))
        else:
            self._continue()

    def _fail(
        self, written: list[WrittenFrame], error: GoqError, doubt: TimedOut | None = None
    ) -> None:
        """Fail all pending appends; after a failed sync the log takes no more.

        The batch under way fails with ``doubt`` if its bytes may be on the disk. While the log can
        go on, exclusive work and vital frames wait for their turn: on a full disk they make room.
        """
        if self._admission:
            self._admission.settle(stored=False)
        if self.log.failed:
            self._closed = error
            self.pending.forget(error)
        for each in written:
            reject(each.done, doubt or error)
        if self.log.failed:
            for done in self._queue.take_waiters():
                reject(done, error)
            self._rest()
        else:
            # a frame that could not even begin would be tried without end
            self._queue.refuse_frames(error, keeps_vital=bool(written))
            self._continue()
        self._on_failure(error)

    async def run_exclusive(self, work: Callable[[], None]) -> None:
        """Run disk work on the log in a thread, between the queued appends and later ones."""
        if self._closed is not None:
            raise self._closed
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.add_exclusive(work, done)
        self._wake()
        await done

    async def wait_for_commit(self, end_offset: int) -> None:
        """Wait until everything before an offset of this log is committed.

        Raises the error of the log, or ``TimedOut`` if this node stops leading meanwhile.
        """
        done: asyncio.Future[Appended] = self._loop.create_future()
        self.complete_when_committed(end_offset, done)
        await done

    def complete_when_committed(self, end_offset: int, done: Waiter[Appended]) -> None:
        """Do as :meth:`wait_for_commit` for any waiter."""
        if self._closed is None:
            self.pending.answer_repetition(Appended(end_offset - 1, 0), done)
        else:
            reject(done, self._closed)

    async def wait_for_times_before(self, time_us: int) -> None:
        """Wait until every append that has got an earlier time is committed or refused.

        Later appends get the time of the clock. Raises as :meth:`wait_for_commit` does, and
        ``NotLeader`` if another node may have taken appends meanwhile.
        """
        if self._under_way_us < time_us:
            await self.run_exclusive(lambda: None)
        if self.pending.first_time_us < time_us:
            await self.wait_for_commit(self.log.end_offset)
        self.pending.check_leads()

    def abort(self, error: GoqError) -> None:
        """Stop at once: accept and write nothing more; fail pending appends.

        Queued frames fail with ``error``, because they are not written. The others fail with
        ``TimedOut``.
        """
        self._closed = error
        self._queue.refuse_frames(error)
        self.pending.forget(error)

    async def close(self) -> None:
        """Accept nothing more, make queued frames durable, then close the log.

        Appends that still wait for other nodes fail: their outcome is unknown.
        """
        self._closed = self._closed or ShuttingDown("the node is stopping; try another or later")
        if self._busy:
            self._at_rest = self._at_rest or asyncio.Event()
            await self._at_rest.wait()
        self.pending.forget(self._closed)
        if not self._released:
            self._released = True
            try:
                await self._loop.run_in_executor(self._executor, self.log.close)
            finally:
                self._forget_owner()

    def _forget_owner(self) -> None:
        self._on_seal = self._on_failure = ignore
        self._stager = None
        self.pending.close()
