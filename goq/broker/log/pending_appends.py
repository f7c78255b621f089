"""Appends that are on the disk of this node, and wait for the other nodes of the quorum.

They are acknowledged, in order, once the high watermark is past them; a frame for ``Acks.LEADER``
at once. A standalone node has no quorum: what is on its disk is committed. A refusal, too, waits
until it is certain that no newer leader has stored what would have made the frame acceptable.

What the other nodes do not confirm for ``limits.QUORUM_WAIT_S`` is answered as unknown. It may be
committed later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from goq import limits
from goq.broker.log.quorum import Quorum
from goq.broker.runtime.callbacks import ignore
from goq.errors import (
    GoqError,
    NotLeader,
    TimedOut,
    TooManyRequests,
    outcome_unknown,
    raise_failures,
)
from goq.frame.encoder import DuplicateRow
from goq.frame.view import FrameView
from goq.model import Acks
from goq.storage.log.segment import WriteBatch

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Appended(NamedTuple):
    """The offset and append time of a frame; ``duplicate`` if it was stored before.

    ``left_out`` are its duplicate messages, in the order of their rows. If all are duplicates,
    nothing was appended, and the other fields are those of the first original.
    """

    offset: int
    time_us: int
    duplicate: bool = False
    left_out: Sequence[DuplicateRow] = ()


class Waiter(Protocol[T_contra]):
    """The waiter of an append: a future, or the futures of the messages of a shared frame."""

    def done(self) -> bool:
        """Return whether nothing waits any more."""

    def set_result(self, result: T_contra, /) -> None:
        """Complete with a result."""

    def set_exception(self, error: Exception, /) -> None:
        """Fail with an error."""

    def exception(self) -> Any:
        """Take note of the error."""


class WrittenFrame(NamedTuple):
    """A frame of a batch as submitted, with its position, and the waiter of its append."""

    view: FrameView
    appended: Appended
    done: Waiter[Appended]
    acks: Acks


class _Stored(NamedTuple):
    """A batch on the disk of this node, since a time of the event loop."""

    end_offset: int
    size_bytes: int
    written: Sequence[WrittenFrame]
    since_s: float


class _Repetition(NamedTuple):
    """A duplicate whose original is not committed yet."""

    original: Appended
    done: Waiter[Appended]
    since_s: float


class PendingAppends:
    """The appends of one log from the disk to the acknowledgement. ``on_commit`` gets frames."""

    def __init__(
        self,
        end_offset: int,
        quorum: Quorum | None,
        on_commit: Callable[[Sequence[WrittenFrame]], None],
    ) -> None:
        self.high_watermark = end_offset
        """Everything before it is committed."""
        self._quorum = quorum
        self._on_commit = on_commit
        self._stored: deque[_Stored] = deque()  # above the high watermark
        self._stored_bytes = 0
        self._repeated: list[_Repetition] = []
        self._doubtful: dict[Waiter[Appended], float] = {}  # refused once certain to lead
        self._loop = asyncio.get_running_loop()
        self._overdue: asyncio.TimerHandle | None = None
        if quorum is not None:
            quorum.follow(self._advance)

    def holders(self, offset: int) -> Sequence[str]:
        """Return the nodes that have an offset on disk; empty on a standalone node."""
        return () if self._quorum is None else self._quorum.holders(offset)

    @property
    def replicated_to(self) -> int:
        """The offset up to which the log is committed, and copied by all current followers."""
        if self._quorum is None:
            return self.high_watermark
        return min(self.high_watermark, self._quorum.copied_to())

    @property
    def first_time_us(self) -> float:
        """The earliest append time of what is not committed, infinite if all is."""
        return min([batch.written[0].appended.time_us for batch in self._stored], default=inf)

    @property
    def is_quiet(self) -> bool:
        """Whether none waits."""
        return not (self._stored or self._doubtful)

    def check_leads(self) -> None:
        """Raise ``NotLeader`` if another node may lead by now."""
        if self._quorum is not None:
            self._quorum.check_leads()

    def check_room(self, frame_bytes: int, bytes_max: int) -> None:
        """Raise an error if no frame could be acknowledged now."""
        if self._quorum is not None:
            self._quorum.check()
        if self._stored and self._stored_bytes + frame_bytes > bytes_max:
            raise TooManyRequests(
                "the other nodes cannot keep up: too many bytes wait for them; send again shortly",
                retry_after_ms=100,
            )

    def offer(self, batch: WriteBatch) -> bool:
        """Send a batch to other nodes before it is written here; return whether any may get it."""
        return self._quorum is not None and self._quorum.offer(batch)

    def on_written(
        self, batch: WriteBatch, written: Sequence[WrittenFrame], *, is_offered: bool
    ) -> None:
        """Record a batch that is on the disk of this node."""
        end_offset, size_bytes = batch.end_offset, batch.size_bytes
        if self._quorum is None:
            self.high_watermark = end_offset
            self._acknowledge(written)
            self._answer_repeated()
            return
        self._stored.append(_Stored(end_offset, size_bytes, written, self._loop.time()))
        self._stored_bytes += size_bytes
        if not is_offered:
            self._quorum.keep(batch)
        for each in written:
            if each.acks is Acks.LEADER:
                resolve(each.done, each.appended)
        self._quorum.appended(end_offset)
        if self._stored:
            self._watch()

    def on_disk(self, end_offset: int) -> None:
        """Record that the disk of this node has everything before an offset."""
        if self._quorum is None:
            self._advance(end_offset)
        else:
            self._quorum.appended(end_offset)

    def _advance(self, high_watermark: int) -> None:
        """Acknowledge and publish the frames below the new high watermark."""
        self.high_watermark = max(self.high_watermark, high_watermark)
        stored = self._stored
        while stored and stored[0].end_offset <= high_watermark:
            _, size_bytes, written, _ = stored.popleft()
            self._stored_bytes -= size_bytes
            self._acknowledge(written)
        self._answer_repeated()

    def _acknowledge(self, written: Sequence[WrittenFrame]) -> None:
        for each in written:
            if not each.done.done():
                each.done.set_result(each.appended)
        self._on_commit(written)

    def _answer_repeated(self) -> None:
        if self._repeated:
            self._repeated, waiting = [], self._repeated
            for repetition in waiting:
                self._answer_if_committed(repetition)

    def refuse(self, done: Waiter[Appended], error: GoqError) -> None:
        """Refuse a frame once the quorum confirms that this node still leads.

        A newer leader could have stored frames that make this one acceptable.
        """
        if self._quorum is None:
            reject(done, error)
            return
        self._doubtful[done] = self._loop.time()
        self._quorum.confirm(partial(self._refuse_surely, done, error))
        if self._doubtful:
            self._watch()

    def _refuse_surely(self, done: Waiter[Appended], error: GoqError) -> None:
        self._doubtful.pop(done, None)
        reject(done, error)

    def answer_repetition(self, original: Appended, done: Waiter[Appended]) -> None:
        """Answer a duplicate with its original, once that is committed."""
        self._answer_if_committed(_Repetition(original, done, self._loop.time()))
        if self._repeated:
            self._watch()

    def _answer_if_committed(self, repetition: _Repetition) -> None:
        original = repetition.original
        last = max((original.offset, *map(itemgetter(1), original.left_out)))
        if last < self.high_watermark:
            resolve(repetition.done, original)
        else:
            self._repeated.append(repetition)

    def _watch(self) -> None:
        """Look again when what waits now has waited for too long."""
        if self._overdue is None:
            self._overdue = self._loop.call_later(limits.QUORUM_WAIT_S, self._answer_overdue)

    def _answer_overdue(self) -> None:
        """Answer what waits for too long; what is stored may still be committed."""
        now_s, wait_s = self._loop.time(), limits.QUORUM_WAIT_S
        unknown = TimedOut(
            f"the other replicas have not confirmed this for {wait_s:g} s: it is stored or not;"
            " goq cluster status says which nodes are missing",
            retry_after_ms=1000,
        )

        def is_overdue(since_s: float) -> bool:
            return since_s + wait_s <= now_s

        for batch in [each for each in self._stored if is_overdue(each.since_s)]:
            for frame in batch.written:
                reject(frame.done, unknown)
        repeated = self._repeated
        self._repeated = [each for each in repeated if not is_overdue(each.since_s)]
        for repetition in [each for each in repeated if is_overdue(each.since_s)]:
            reject(repetition.done, unknown)
        for done in [done for done, since_s in self._doubtful.items() if is_overdue(since_s)]:
            self._refuse_surely(done, NotLeader("another node may lead by now; ask again"))
        since = [batch.since_s for batch in self._stored]
        since += [repetition.since_s for repetition in self._repeated]
        left = [each for each in (*since, *self._doubtful.values()) if not is_overdue(each)]
        self._overdue = None
        if left:
            self._overdue = self._loop.call_at(min(left) + wait_s, self._answer_overdue)

    def forget(self, error: GoqError) -> None:
        """Fail all: the outcome of those on the disk is unknown here.

        Those about to be refused are not stored: they fail with ``error``.
        """
        waiting = [each.done for stored in self._stored for each in stored.written]
        waiting += [each.done for each in self._repeated]
        refused = list(self._doubtful)
        self._doubtful.clear()
        self._stored.clear()
        self._stored_bytes = 0
        self._repeated.clear()
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        unknown = outcome_unknown(error)
        for done in waiting:
            reject(done, unknown)
        for done in refused:
            reject(done, error)

    def close(self) -> None:
        """Report no more commits."""
        self._on_commit = ignore


async def wait_for_all(pending: Sequence[asyncio.Future[Appended]]) -> list[Appended]:
    """Wait for all appends, then return them; raise as :func:`raise_failures` does."""
    if len(pending) == 1:
        return [await pending[0]]
    if not pending:
        return []
    results = await asyncio.gather(*pending, return_exceptions=True)
    raise_failures(results)
    return [result for result in results if isinstance(result, Appended)]


def resolve(done: Waiter[T], result: T) -> None:
    """Complete a waiter that still waits."""
    if not done.done():
        done.set_result(result)


def reject(done: Waiter[Any], error: Exception) -> None:
    """Fail a waiter that still waits."""
    if not done.done():
        done.set_exception(error)
        done.exception()  # a cancelled waiter must not cause a warning
