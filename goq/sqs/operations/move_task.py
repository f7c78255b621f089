"""One message move task: takes visible messages of a dead-letter queue and sends them elsewhere.

A batch is leased, redriven, then released. A redrive moves each message once, and a trace leads
from it to its copy and back. A message that was redriven is done, so the release returns only those
that were not. The task moves at most as many messages as were visible at its start: copies that die
again do not keep it running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

import msgspec

from goq.http.message import Request
from goq.sqs.attributes import MoveRecord
from goq.sqs.message_codec import LeasedContent
from goq.sqs.node_calls import NodeCalls, SqsCall
from goq.sqs.protocol.errors import SqsError

_BATCH_MAX: Final = 10
_VISIBILITY_S: Final = 60
_TELL_S: Final = 30.0
_LOOK_S: Final = 1.0
_RETRIES_MAX: Final = 30
_EMPTY_MAX: Final = 5
_EMPTY_PAUSE_S: Final = 0.2
_TRANSIENT: Final = frozenset(("ServiceUnavailable", "RequestThrottled"))
_REASON_CHARS_MAX: Final = 300


class _Received(msgspec.Struct):
    messages: list[LeasedContent]


class _Redriven(msgspec.Struct):
    redriven: int
    lost: int


class MoveTask:
    """A running task; ``row`` is what ListMessageMoveTasks shows of it."""

    def __init__(
        self,
        row: MoveRecord,
        topic_path: str,
        group_path: str,
        check_target: Callable[[SqsCall, str], Awaitable[object]],
        calls: NodeCalls,
        call: SqsCall,
        is_cancelled: Callable[[], bool],
        tell: Callable[[MoveRecord], Awaitable[None]],
    ) -> None:
        """``check_target`` raises ``SqsError`` for a queue that does not exist: a publish would
        create it. ``is_cancelled`` is asked between batches; ``tell`` makes a row durable.

        The task sends its requests in the name of the sender of ``call``.
        """
        self.row = row
        self._redrive_path = f"{topic_path}/redrive"
        self._group_path = group_path
        self._check_target = check_target
        self._calls = calls
        sent = call.request
        request = Request("POST", "/", "", {}, b"", sent.peer, principal=sent.principal)
        self._call = SqsCall(call.operation, None, request, call.base_url)
        self._is_cancelled = is_cancelled
        self._tell = tell
        self._wake = asyncio.Event()
        self._stopped = False
        self._told_s = self._began_s = monotonic()

    def wake(self) -> None:
        """Look at once whether the task is cancelled."""
        self._wake.set()

    def stop(self) -> None:
        """End the task behind the current batch, as the node stops."""
        self._stopped = True
        self._wake.set()

    async def run(self) -> MoveRecord:
        """Return the row of the task when it has ended."""
        try:
            status, reason = await self._move_all(), ""
        except SqsError as error:
            status, reason = "FAILED", f"{error.kind}: {error.message}"[:_REASON_CHARS_MAX]
        if status == "FAILED" and not reason:
            reason = "NodeStopped"
        return msgspec.structs.replace(self.row, status=status, reason=reason)

    async def _move_all(self) -> str:
        """Return the status at the end."""
        retries = empty = 0
        while self.row.moved < self.row.to_move:
            if self._stopped:
                return "FAILED"
            if self._is_cancelled():
                return "CANCELLED"
            if await self._is_early():
                continue
            try:
                if await self._move_batch():
                    retries = empty = 0
                elif (empty := empty + 1) > _EMPTY_MAX:
                    break  # the rest was received by consumers
                else:
                    await self._pause(_EMPTY_PAUSE_S)
            except SqsError as error:
                retries += 1
                if error.kind not in _TRANSIENT or retries > _RETRIES_MAX:
                    raise
                await self._pause(_LOOK_S)
            if monotonic() - self._told_s > _TELL_S and not self._is_cancelled():
                self._told_s = monotonic()
                await self._tell(self.row)
        return "COMPLETED"

    async def _is_early(self) -> bool:
        """Wait if the rate does not allow the next message yet; return whether it waited."""
        if self.row.rate is None:
            return False
        left_s = self._began_s + self.row.moved / self.row.rate - monotonic()
        if left_s <= 0:
            return False
        await self._pause(min(left_s, _LOOK_S))
        return True

    async def _pause(self, seconds: float) -> None:
        self._wake.clear()
        if self._stopped:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _move_batch(self) -> bool:
        """Move a batch; return False if no message is visible. Raises ``SqsError``."""
        count = min(_BATCH_MAX, self.row.to_move - self.row.moved, self.row.rate or _BATCH_MAX)
        asked = {"max_messages": count, "visibility": _VISIBILITY_S, "consumer": "move-task"}
        received = await self._calls.ask_for(
            self._call, _Received, "POST", f"{self._group_path}/receive", asked
        )
        moved, has_target = self.row.moved, 0
        try:
            for target, messages in self._by_target(received.messages):
                await self._move(target, messages)
                has_target += len(messages)
            if has_target < len(received.messages):
                raise SqsError(
                    "CouldNotDetermineMessageSource",
                    "A message was sent to this queue directly: it has no source to go back to.",
                )
        finally:
            if received.messages:
                receipts = [message.receipt for message in received.messages]
                path = f"{self._group_path}/release"
                await self._calls.ask(self._call, "POST", path, {"receipts": receipts})
        return self.row.moved > moved

    def _by_target(self, messages: list[LeasedContent]) -> list[tuple[str, list[LeasedContent]]]:
        """Return messages that have a target in runs of one target, in their order."""
        parts: list[tuple[str, list[LeasedContent]]] = []
        for message in messages:
            death = message.last_death
            target = self.row.target or ("" if death is None else death.topic)
            if not target:
                continue
            if not parts or parts[-1][0] != target:
                parts.append((target, []))
            parts[-1][1].append(message)
        return parts

    async def _move(self, target: str, messages: list[LeasedContent]) -> None:
        await self._check_target(self._call, target)
        ids = [message.id for message in messages]
        body = {"ids": ids, "to": target, "force": True, "max_messages": len(ids)}
        answer = await self._calls.ask_for(self._call, _Redriven, "POST", self._redrive_path, body)
        self.row = msgspec.structs.replace(self.row, moved=self.row.moved + answer.redriven)
        if answer.lost:
            raise SqsError("MessageLost", "The content of a dead letter could not be read.")
