"""The commit turn of a node: what one turn of the event loop appends to any log is one record.

Logs with queued frames join the turn. At its end their small batches are appended to their segments
and written to the journal together: one write and one sync for all. Large batches and all other
work of a log go on beside it, in threads of their own.

A turn ends when the sockets have nothing more, but looks only while more comes: a lone request
never waits for others. The event loop itself writes a small record while the disk is fast, which
saves two changes of threads. After a slow write a thread does it, for longer each time, so that a
stalled disk stalls no heartbeat.

Message logs come first. While the event loop itself will write the record, nothing else can look at
what is in it before it is synced. So a log may stage its batch: waiting consumers lease its
messages at once, and their leases join the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol

from goq import limits
from goq.clock import Clock, SystemClock, TimeSlice
from goq.errors import GoqError
from goq.storage.journal.journal import NodeJournal
from goq.storage.journal.record import EncodedEntry
from goq.storage.log.log import Log
from goq.storage.log.segment import WriteBatch

_LOOKS_MAX = 8
_INLINE_LOGS_MAX = 8
_SLOW_WRITE_S = 0.005
_THREAD_S_MIN = 0.1
_THREAD_S_MAX = 10.0


class JournalWrite:
    """A batch that is written with those of other logs; ``finish`` gets the error, if any.

    ``stage`` has other logs act on the batch as if it were written already. A batch of a log that
    ``follows`` another fails with the staged batch of that one.
    """

    __slots__ = ("batch", "error", "finish", "follows", "is_durable", "is_staged", "log", "stage")

    def __init__(
        self,
        log: Log,
        batch: WriteBatch,
        finish: Callable[[Exception | None], None],
        stage: Callable[[], None] | None = None,
        follows: Log | None = None,
    ) -> None:
        self.log = log
        self.batch = batch
        self.finish = finish
        self.stage = stage
        self.follows = follows
        self.is_staged = False
        self.error: Exception | None = None
        self.is_durable = False


class TurnMember(Protocol):
    """The writer of a log."""

    @property
    def stages(self) -> bool:
        """Whether others wait for what it will write, and may follow it in the same record."""

    @property
    def queued_bytes(self) -> int:
        """The bytes that wait to be written."""

    def start(self) -> JournalWrite | None:
        """Start the next work. Return a batch that the turn is to write."""


class CommitTurn:
    """See the module. Without a ``journal`` every log writes and syncs by itself."""

    def __init__(
        self,
        journal: NodeJournal | None = None,
        executor: Executor | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.append_count = 0
        """Frames and single messages queued so far, for any log."""
        self.on_inline_write: Callable[[float], None] = lambda _seconds: None
        """Called with the time that the event loop itself has spent on a write."""
        self.before_write: Callable[[], None] = lambda: None
        """Called when the batches of a record are made, and not written yet."""
        self._journal = journal
        self._executor = executor
        self._clock = clock or SystemClock()
        self._joined: list[TurnMember] = []
        self._is_scheduled = False
        self._is_writing = False
        self._looks = 0
        self._seen_count = 0
        self._begun_count = 0
        self._last_count = 0
        self._thread_s = _THREAD_S_MIN
        self._thread_until_s = 0.0

    def join(self, member: TurnMember) -> None:
        """Have a log's queued work started at the end of this turn."""
        self._joined.append(member)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Begin, or look at the sockets once more while more comes."""
        came = self.append_count - self._seen_count
        self._seen_count = self.append_count
        if self._last_count > 1 and came and self._looks < _LOOKS_MAX:
            self._looks += 1
            asyncio.get_running_loop().call_soon(self._look)
            return
        self._looks = 0
        self._is_scheduled = False
        if not self._is_writing:
            self._begin()

    def _begin(self) -> None:
        self._last_count = self.append_count - self._begun_count
        self._begun_count = self.append_count
        writes: list[JournalWrite] = []
        has_staged = self._stage(writes)
        size_bytes = sum([write.batch.size_bytes for write in writes])
        joined, self._joined = self._joined, []
        for number, member in enumerate(joined):
            if size_bytes >= limits.JOURNAL_RECORD_BYTES_MAX - limits.JOURNAL_ENTRY_BYTES_MAX:
                self._joined += joined[number:]
                break
            write = member.start()
            if write is not None:
                writes.append(write)
                size_bytes += write.batch.size_bytes
        if writes:
            try:
                self.before_write()
            except Exception as error:  # a bug beside the logs must not hold them up
                _report(error)
        if has_staged:
            self._write_inline(writes, has_staged=True)
        elif writes:
            self._write(writes, size_bytes)
        elif self._joined:
            self._schedule()

    def _stage(self, writes: list[JournalWrite]) -> bool:
        """Start the logs that others wait for, and stage what they write; return whether any is.

        What follows them joins this turn. It is small enough for the event loop to write.
        """
        staging = [member for member in self._joined if member.stages]
        if not staging or self._journal is None or not self._may_write_inline:
            return False
        logs = len(self._joined) + len(staging)
        queued_bytes = sum([member.queued_bytes for member in self._joined])
        if logs > _INLINE_LOGS_MAX or queued_bytes > limits.JOURNAL_STAGED_BYTES_MAX:
            return False
        if not self._journal.has_room_for(limits.JOURNAL_INLINE_BYTES_MAX):
            return False
        self._joined = [member for member in self._joined if member not in staging]
        for member in staging:
            write = member.start()
            if write is not None:
                writes.append(write)
        self._is_scheduled = True  # what follows is a part of this turn
        for write in writes:
            if write.stage is not None:
                write.is_staged = True
                try:
                    write.stage()
                except Exception as error:  # a bug in one log must not hold up others
                    _report(error)
        self._is_scheduled = False
        self._begun_count = self._seen_count = self.append_count
        return bool(writes)

    @property
    def _may_write_inline(self) -> bool:
        """Whether the event loop may write a record now, because the disk is fast."""
        return (
            self._journal is not None
            and asyncio.get_running_loop().time() >= self._thread_until_s
            and not self._journal.is_busy
        )

    def _schedule(self) -> None:
        if self._joined and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._look)

    def _write(self, writes: Sequence[JournalWrite], size_bytes: int) -> None:
        assert self._journal is not None
        is_inline = (
            len(writes) <= _INLINE_LOGS_MAX
            and size_bytes <= limits.JOURNAL_INLINE_BYTES_MAX
            and self._may_write_inline
        )
        if is_inline:
            self._write_inline(writes, has_staged=False)
        else:
            journal = self._journal
            self._is_writing = True
            self._in_thread(lambda: write_in_thread(journal, writes), writes)

    def _write_inline(self, writes: Sequence[JournalWrite], *, has_staged: bool) -> None:
        assert self._journal is not None
        self._is_writing = True
        began_us = self._clock.uptime_us()
        write_together(self._journal, writes)
        is_done = all(write.is_durable or write.error for write in writes)
        if has_staged and not is_done:
            finish_alone(writes)  # staged messages may not be seen before they are durable
            is_done = True
        self._note_time((self._clock.uptime_us() - began_us) / 1e6)
        if is_done:
            self._finish(writes)
        else:
            self._in_thread(lambda: finish_alone(writes), writes)

    def _note_time(self, write_s: float) -> None:
        """Leave the next writes to a thread if the event loop was held for long."""
        self.on_inline_write(write_s)
        if write_s <= _SLOW_WRITE_S:
            self._thread_s = _THREAD_S_MIN
            return
        self._thread_until_s = asyncio.get_running_loop().time() + self._thread_s
        self._thread_s = min(2 * self._thread_s, _THREAD_S_MAX)

    def _in_thread(self, work: Callable[[], None], writes: Sequence[JournalWrite]) -> None:
        loop = asyncio.get_running_loop()

        def job() -> None:
            try:
                work()
            except Exception as raised:  # after a bug too, the waiters must get an answer
                for write in writes:
                    write.error = write.error or raised
            try:
                loop.call_soon_threadsafe(self._finish, writes)
            except RuntimeError:
                return  # the loop is closed: there are no waiters

        assert self._executor is not None
        self._executor.submit(job)

    def _finish(self, writes: Sequence[JournalWrite]) -> None:
        """Finish writes, in several turns of the loop if they have many messages."""
        loop = asyncio.get_running_loop()
        time_slice = TimeSlice()
        for number, write in enumerate(writes):
            if number and time_slice.is_over:
                loop.call_soon(self._finish, writes[number:])
                return
            try:
                write.finish(write.error)
            except Exception as error:  # a bug in one log must not hold up others
                _report(error)
        self._is_writing = False
        self._schedule()


def _report(error: Exception) -> None:
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": "a commit failed", "exception": error})


def write_in_thread(journal: NodeJournal, writes: Sequence[JournalWrite]) -> None:
    """Write batches, whatever it takes."""
    write_together(journal, writes)
    finish_alone(writes)


def write_together(journal: NodeJournal, writes: Sequence[JournalWrite]) -> None:
    """Append batches to their segments, and write and sync one record of them.

    Without room in the journal none is durable, nor has an error.
    """
    entries: list[EncodedEntry] = []
    appended: list[JournalWrite] = []
    for write in writes:
        try:
            _check_followed(write, writes)
            entries.append(write.log.append(write.batch))
        except Exception as error:
            write.error = error
        else:
            appended.append(write)
    if not entries:
        return
    try:
        mark = journal.commit(entries)
    except GoqError as error:
        for write in appended:
            write.log.failed, write.error = str(error), error
        return
    if mark is not None:
        for write in appended:
            write.log.on_journaled(write.batch, mark)
            write.is_durable = True


def finish_alone(writes: Sequence[JournalWrite]) -> None:
    """Sync the batches that the journal had no room for, each in its segment."""
    for write in writes:
        if not write.is_durable and write.error is None:
            try:
                _check_followed(write, writes)
                write.log.finish_write(write.batch)
            except Exception as error:
                write.error = error


def _check_followed(write: JournalWrite, writes: Sequence[JournalWrite]) -> None:
    """Raise the error of a staged batch that this one depends on."""
    if write.follows is None:
        return
    for each in writes:
        if each.is_staged and each.error is not None and each.log is write.follows:
            raise each.error
