"""DeleteMessage and ChangeMessageVisibility, alone and in batches.

The receipt of an earlier lease settles nothing. A standard queue does not say so of a delete, as
deletes may be repeated there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec

from goq.broker.broker import Broker
from goq.http.message import Response
from goq.sqs.handles import ReceiptHandle, parse_handle
from goq.sqs.node_calls import BegunCall, NodeCalls, SqsCall, decoded
from goq.sqs.operations.batch import BatchResult, checked_entries
from goq.sqs.operations.queue_directory import QueueDirectory
from goq.sqs.protocol.bounds import VISIBILITY_S_MAX, check_range
from goq.sqs.protocol.errors import SqsError, error_of, invalid_parameter, missing_parameter
from goq.sqs.protocol.shapes import HandleShape
from goq.sqs.queue_view import QueueView


class _Failed(msgspec.Struct):
    receipt: str
    code: str


class _Settled(msgspec.Struct):
    failed: list[_Failed]


class SettleOperations:
    """Settles leased messages by their handles."""

    def __init__(self, broker: Broker, queues: QueueDirectory, calls: NodeCalls) -> None:
        self._broker = broker
        self._queues = queues
        self._calls = calls

    def delete(self, call: SqsCall, queue: QueueView) -> BegunCall:
        """DeleteMessage."""
        handle = _handle(queue, call.shape)

        def finish(response: Response) -> None:
            for failed in decoded(response, _Settled).failed:
                _raise_unless_repeatable(queue, failed.code)

        return BegunCall(self._settle(call, queue, "/ack", [handle.receipt]), finish)

    def delete_batch(self, call: SqsCall, queue: QueueView) -> BegunCall | dict[str, Any]:
        """DeleteMessageBatch."""
        entries = checked_entries(call.shape.entries, self._queues.bounds.entries_max)
        result, handles = BatchResult(), dict[str, str]()
        for entry in entries:
            try:
                assert entry.id is not None
                handles[entry.id] = _handle(queue, entry).receipt
            except SqsError as error:
                result.fail(entry.id, error)
        if not handles:
            return result.answer

        def finish(response: Response) -> dict[str, Any]:
            codes = {each.receipt: each.code for each in decoded(response, _Settled).failed}
            for entry_id, receipt in handles.items():
                try:
                    if receipt in codes:
                        _raise_unless_repeatable(queue, codes[receipt])
                    result.add(entry_id)
                except SqsError as error:
                    result.fail(entry_id, error)
            return result.answer

        receipts = list(dict.fromkeys(handles.values()))
        return BegunCall(self._settle(call, queue, "/ack", receipts), finish)

    def change(self, call: SqsCall, queue: QueueView) -> BegunCall:
        """ChangeMessageVisibility."""

        def finish(response: Response) -> None:
            for failed in decoded(response, _Settled).failed:
                raise _not_in_flight(failed.code)

        return BegunCall(self._change(call, queue, call.shape), finish)

    async def change_batch(self, call: SqsCall, queue: QueueView) -> dict[str, Any]:
        """ChangeMessageVisibilityBatch."""
        entries = checked_entries(call.shape.entries, self._queues.bounds.entries_max)
        result = BatchResult()
        for entry in entries:
            try:
                answer = self._change(call, queue, entry)
                response = answer if isinstance(answer, Response) else await answer
                for failed in decoded(response, _Settled).failed:
                    raise _not_in_flight(failed.code)
                result.add(entry.id)
            except SqsError as error:
                result.fail(entry.id, error)
        return result.answer

    def _change(
        self, call: SqsCall, queue: QueueView, asked: HandleShape
    ) -> Response | Awaitable[Response]:
        seconds = asked.visibility_s
        if seconds is None:
            raise missing_parameter("VisibilityTimeout")
        handle = _handle(queue, asked)
        check_range("VisibilityTimeout", seconds, 0, VISIBILITY_S_MAX)
        if seconds == 0:
            return self._settle(call, queue, "/nack", [handle.receipt], delay=0)
        held_s = (self._broker.clock.wall_ms() - handle.received_ms) / 1000
        # A lease that seems held for longer than it may be lasts if the clock was set: it decides.
        if 1 <= held_s <= VISIBILITY_S_MAX < held_s + seconds:
            raise invalid_parameter(
                f"Value {seconds} for parameter VisibilityTimeout is invalid. Reason: Total"
                f" VisibilityTimeout for the message is beyond the limit [{VISIBILITY_S_MAX}"
                " seconds]."
            )
        return self._settle(call, queue, "/extend", [handle.receipt], visibility=seconds)

    def _settle(
        self,
        call: SqsCall,
        queue: QueueView,
        action: str,
        receipts: Sequence[str],
        **options: int,
    ) -> Response | Awaitable[Response]:
        path = self._queues.group_path(queue, action)
        return self._calls.begin(call, "POST", path, {"receipts": receipts, **options})


def _handle(queue: QueueView, asked: HandleShape) -> ReceiptHandle:
    if not asked.handle:
        raise missing_parameter("ReceiptHandle")
    return parse_handle(asked.handle, queue.topic.id)


def _raise_unless_repeatable(queue: QueueView, code: str) -> None:
    """Raise the error of a message that could not be deleted.

    Raises nothing for a lost lease in a standard queue.
    """
    if code != "lease_lost":
        raise _settle_error(code)
    if queue.is_fifo:
        raise invalid_parameter(
            "Value for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
        )


def _not_in_flight(code: str) -> SqsError:
    if code != "lease_lost":
        return _settle_error(code)
    return SqsError("MessageNotInflight", "The message referred to is not in flight.")


def _settle_error(code: str) -> SqsError:
    return error_of(Response(503, b'{"code":"%s","detail":"%s"}' % (code.encode(), code.encode())))
