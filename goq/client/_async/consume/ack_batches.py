"""Acks of single messages, gathered: those that come while one request is under way share the next.

An ack waits for a sync of the node's disk. So many handlers that each ack their own message cost as
many requests as syncs, and one that is alone waits for no other. A request that is tried again for
some of its acks, as of a partition that is offline, holds up no other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from goq.client._async.runtime import Monitor
from goq.client.messages import FailedReceipt, Settled
from goq.errors import GoqError
from goq.http.client.process_fork import renew_in_children


class Send(Protocol):
    """Settles receipts; ``on_failed`` comes before anything is tried again.

    After ``until_s``, in monotonic seconds, nothing is.
    """

    async def __call__(
        self, receipts: Sequence[str], *, until_s: float, on_failed: Callable[[], None]
    ) -> Settled: ...


class _Batch:
    """Acks of one request. The caller that opened it sends it, once that before it was answered."""

    def __init__(self) -> None:
        self.before: _Batch | None = None
        self.receipts: dict[str, None] = {}
        self.until_s = 0.0
        self.is_open = True
        self.is_cut = False
        """Whether its sender was interrupted: the others send their acks again."""
        self.failed: dict[str, FailedReceipt] = {}
        self.error: GoqError | None = None
        self._is_answered = False
        self._has_ended = False
        self._state = Monitor()

    def note_answer(self) -> None:
        """Wake the next batch: what is tried again from now on is tried beside it."""
        with self._state:
            self._is_answered = True
            self._state.notify_all()

    async def wait_for_answer(self) -> None:
        """Wait until the batch was answered once, or has ended."""
        with self._state:
            while not (self._is_answered or self._has_ended):
                await self._state.wait()

    def end(self) -> None:
        """Wake what waits for the end."""
        with self._state:
            self._has_ended = True
            self._state.notify_all()

    async def wait(self) -> None:
        """Wait for the end."""
        with self._state:
            while not self._has_ended:
                await self._state.wait()


class AckBatches:
    """The acks under way. Those of one key go to the node together."""

    def __init__(self) -> None:
        self._renew()
        renew_in_children(self, AckBatches._renew)

    def _renew(self) -> None:
        self._state = Monitor()
        self._last: dict[Hashable, _Batch] = {}

    async def ack(
        self, key: Hashable, receipt: str, until_s: float, send: Send
    ) -> FailedReceipt | None:
        """Send a receipt, by ``send`` of one of the callers; return it if it failed."""
        while True:
            own = _Batch()
            try:
                batch = self._join(key, own, receipt, until_s)
                if batch is own:
                    await self._send(batch, send)
                else:
                    await batch.wait()
            except BaseException:
                own.is_cut = True
                raise
            finally:
                try:
                    self._end(key, own)
                except BaseException:  # a signal: others wait for the end
                    self._end(key, own)
                    raise
            if batch.is_cut:
                continue
            if batch.error is not None:
                raise batch.error
            return batch.failed.get(receipt)

    def _join(self, key: Hashable, own: _Batch, receipt: str, until_s: float) -> _Batch:
        """Add a receipt to the batch that is open, else to a new one."""
        with self._state:
            batch = self._last.get(key)
            if batch is None or not batch.is_open:
                own.before = batch
                batch = self._last[key] = own
            batch.receipts[receipt] = None
            batch.until_s = max(batch.until_s, until_s)
        return batch

    async def _send(self, batch: _Batch, send: Send) -> None:
        if batch.before is not None:
            await batch.before.wait_for_answer()
            batch.before = None
        with self._state:
            batch.is_open = False
        try:
            receipts = list(batch.receipts)
            settled = await send(receipts, until_s=batch.until_s, on_failed=batch.note_answer)
        except GoqError as error:
            batch.error = error
        else:
            batch.failed = {each.receipt: each for each in settled.failed}

    def _end(self, key: Hashable, own: _Batch) -> None:
        with self._state:
            own.is_open = False
            if self._last.get(key) is own:
                del self._last[key]
        own.end()
