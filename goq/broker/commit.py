"""Group commit: many appends to one log, one write and one sync for all of them.

While a worker thread writes and syncs a batch, further appends gather; when it is done they are
the next batch. So a lone append waits for one sync, and a crowd shares one. Every append is told
the truth: its offset once it is durable as the log's setting says, or why it is not stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

from goq import limits
from goq.broker.stats import Histogram
from goq.clock import Clock
from goq.errors import GoqError, LogFailed, ShuttingDown, TooManyRequests
from goq.frame.header import HEADER_BYTES, FrameHeader
from goq.frame.view import FrameView
from goq.settings import Fsync
from goq.storage.batch import Batch
from goq.storage.log import Log
from goq.storage.segment import Segment


class Appended(NamedTuple):
    """Where a frame lies, and since when; ``duplicate`` if it had been there before."""

    offset: int
    time_us: int
    duplicate: bool = False


class _Waiting(NamedTuple):
    header: FrameHeader
    body: memoryview
    done: asyncio.Future[Appended]
    begins_segment: bool


class _Written(NamedTuple):
    header: FrameHeader
    appended: Appended
    done: asyncio.Future[Appended]


class GroupCommit:
    """The one writer of a log.

    ``find_duplicate`` says where a frame already lies, or raises why it may not be appended;
    ``on_commit`` hears of every frame that became durable, in order; ``on_seal`` of every segment
    that was sealed; ``on_failure`` once, when the log failed or an append was lost.
    """

    def __init__(
        self,
        log: Log,
        executor: Executor,
        clock: Clock,
        epoch: int,
        *,
        on_commit: Callable[[FrameHeader, Appended], None],
        on_seal: Callable[[Segment], None],
        on_failure: Callable[[GoqError], None] = lambda _error: None,
        find_duplicate: Callable[[FrameHeader], Appended | None] = lambda _header: None,
        write_seconds: Histogram,
    ) -> None:
        self.log = log
        self._executor = executor
        self._clock = clock
        self._epoch = epoch
        self._on_commit = on_commit
        self._on_seal = on_seal
        self._on_failure = on_failure
        self._find_duplicate = find_duplicate
        self._write_seconds = write_seconds
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._busy = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed: GoqError | None = None
        self._sync_wanted = False
        self._sync_armed = False

    @property
    def is_writing(self) -> bool:
        """Whether a write is under way: a frame appended now shares the next."""
        return self._busy

    def append(
        self, view: FrameView, *, begins_segment: bool = False, bounded: bool = True
    ) -> asyncio.Future[Appended]:
        """Queue a frame; the future is done when it is durable, or says why it is not stored.

        Raises ``TooManyRequests`` when too much is queued, unless the node itself, which must
        not stop half-way, asks with ``bounded=False``.
        """
        if self._closed is not None:
            raise self._closed
        body = view.body
        queued_bytes = self._queued_bytes + len(body)
        if bounded and self._queue and queued_bytes > limits.COMMIT_QUEUE_BYTES_MAX:
            raise TooManyRequests(
                "the disk cannot keep up: too many bytes wait to be written; send again shortly",
                retry_after_ms=100,
            )
        done: asyncio.Future[Appended] = self._loop.create_future()
        self._queue.append(_Waiting(view.header, body, done, begins_segment))
        self._queued_bytes = queued_bytes
        self._wake()
        return done

    def _wake(self) -> None:
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._loop.call_soon(self._start)  # whoever else comes in this turn joins the batch

    def _start(self) -> None:
        """Begin the next write, or rest."""
        if self._sync_wanted:
            self._sync_wanted = False
            self._run(self.log.sync, self._synced)
            return
        try:
            batch, written = self._fill()
        except GoqError as error:
            self._fail([], error)
            return
        if batch is not None and written:
            began_s = self._loop.time()
            write = partial(self.log.write, batch)
            self._run(write, lambda error: self._finish(batch, written, began_s, error))
        else:
            self._busy = False
            self._idle.set()

    def _fill(self) -> tuple[Batch | None, list[_Written]]:
        queue, written = self._queue, list[_Written]()
        if not queue:
            return None, written
        now_us = self._clock.wall_us()
        batch = self.log.begin(now_us, roll=queue[0].begins_segment)
        producers: set[int] = set()
        while queue and batch.takes(HEADER_BYTES + len(queue[0].body)):
            header = queue[0].header
            if header.producer_id in producers or (queue[0].begins_segment and written):
                break  # its turn comes when what is before it has been committed
            waiting = queue.popleft()
            self._queued_bytes -= len(waiting.body)
            try:
                found = self._find_duplicate(header)
            except GoqError as error:
                _reject(waiting.done, error)
                continue
            if found is not None:
                _resolve(waiting.done, found)
                continue
            if header.producer_id:
                producers.add(header.producer_id)
            now_us = self._clock.wall_us()
            offset = batch.add(
                header, waiting.body, append_time_us=now_us, leader_epoch=self._epoch
            )
            written.append(_Written(header, Appended(offset, now_us), waiting.done))
        return batch, written

    def _run(
        self,
        work: Callable[[], None],
        then: Callable[[GoqError | None], None],
    ) -> None:
        def job() -> None:
            error: GoqError | None = None
            try:
                work()
            except GoqError as raised:
                error = raised
            except Exception as raised:  # a bug must not leave the waiters hanging
                error = LogFailed(f"writing to {self.log.directory} failed: {raised!r}")
                error.__cause__ = raised
            with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits any more
                self._loop.call_soon_threadsafe(then, error)

        self._executor.submit(job)

    def _finish(
        self, batch: Batch, written: list[_Written], began_s: float, error: GoqError | None
    ) -> None:
        self._write_seconds.observe(self._loop.time() - began_s)
        if error is not None:
            self._fail(written, error)
            return
        sealed = self.log.commit(batch)
        for header, appended, done in written:
            self._on_commit(header, appended)
            _resolve(done, appended)
        if sealed is not None:
            self._on_seal(sealed)
        if self.log.config.fsync is Fsync.INTERVAL and not self._sync_armed:
            self._sync_armed = True
            self._loop.call_later(limits.FSYNC_INTERVAL_MS / 1000, self._want_sync)
        self._start()

    def _want_sync(self) -> None:
        self._sync_armed = False
        if self._closed is None:
            self._sync_wanted = True
            self._wake()

    def _synced(self, error: GoqError | None) -> None:
        if error is not None:
            self._fail([], error)
        else:
            self._start()

    def _fail(self, written: list[_Written], error: GoqError) -> None:
        """Tell everyone who waits; after a failed sync nothing more is taken."""
        waiting = [w.done for w in written] + [w.done for w in self._queue]
        self._queue.clear()
        self._queued_bytes = 0
        if self.log.failed:
            self._closed = error
        for done in waiting:
            _reject(done, error)
        self._busy = False
        self._idle.set()
        self._on_failure(error)

    async def run_alone(self, work: Callable[[], None]) -> None:
        """Run disk work on the log in a thread while nothing is written."""
        while self._busy:
            await self._idle.wait()
        self._busy = True
        self._idle.clear()
        try:
            await self._loop.run_in_executor(self._executor, work)
        finally:
            self._start()

    async def close(self) -> None:
        """Let everything queued become durable, then close the log."""
        while self._busy:
            await self._idle.wait()
        self._closed = self._closed or ShuttingDown("the node is stopping; try another or later")
        await self._loop.run_in_executor(self._executor, self.log.close)


def _resolve(done: asyncio.Future[Appended], appended: Appended) -> None:
    if not done.done():
        done.set_result(appended)


def _reject(done: asyncio.Future[Appended], error: GoqError) -> None:
    if not done.done():
        done.set_exception(error)
        done.exception()  # a waiter that has gone must not make the loop complain
