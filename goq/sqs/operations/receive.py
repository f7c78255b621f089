"""ReceiveMessage: a receive of the queue's group."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from datetime import datetime
from typing import Any

import msgspec

from goq.access.rule import Verb
from goq.broker.broker import Broker
from goq.clock import TimeSlice
from goq.http.message import Response
from goq.sqs.handles import format_handle
from goq.sqs.message_codec import (
    DEDUP_HEADER,
    TRACE_HEADER,
    LeasedContent,
    ReceivedHeaders,
    attribute_json,
)
from goq.sqs.node_calls import BegunCall, NodeCalls, SqsCall, decoded
from goq.sqs.operations.queue_directory import QueueDirectory
from goq.sqs.operations.send import sequence_number
from goq.sqs.protocol.bounds import VISIBILITY_S_MAX, check_range
from goq.sqs.protocol.digest import attributes_digest, body_digest
from goq.sqs.protocol.errors import SqsError
from goq.sqs.protocol.shapes import ReceiveShape
from goq.sqs.queue_view import QueueView

_FIRST_RECEIVE = "ApproximateFirstReceiveTimestamp"
_SYSTEM_NAMES = frozenset(
    (
        "All",
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        _FIRST_RECEIVE,
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
        "AWSTraceHeader",
        "DeadLetterQueueSourceArn",
    )
)


class _Received(msgspec.Struct):
    messages: list[msgspec.Raw]


class _TraceEvent(msgspec.Struct):
    time: str
    event: str
    group: str | None = None


class _Timeline(msgspec.Struct):
    events: list[_TraceEvent]


_decoder = msgspec.json.Decoder(LeasedContent)


class ReceiveOperation:
    """Receives messages. A long poll ends when its client leaves, and takes nothing then."""

    def __init__(
        self, broker: Broker, queues: QueueDirectory, calls: NodeCalls, account: str, group: str
    ) -> None:
        self._broker = broker
        self._queues = queues
        self._calls = calls
        self._account = account
        self._group = group

    def run(self, call: SqsCall, queue: QueueView) -> BegunCall:
        """ReceiveMessage."""
        asked: ReceiveShape = call.shape
        bounds = self._queues.bounds
        count = 1 if asked.messages_max is None else asked.messages_max
        wait_s = queue.wait_s if asked.wait_s is None else asked.wait_s
        body: dict[str, Any] = {
            "max_messages": check_range("MaxNumberOfMessages", count, 1, bounds.receive_max),
            "wait": check_range("WaitTimeSeconds", wait_s, 0, bounds.wait_s_max),
        }
        if asked.visibility_s is not None:
            seconds = check_range("VisibilityTimeout", asked.visibility_s, 0, VISIBILITY_S_MAX)
            body["visibility"] = seconds or "1ms"
        names = {*(asked.names or ()), *(asked.old_names or ())}
        for name in names - _SYSTEM_NAMES:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")
        answer = self._calls.begin(call, "POST", self._queues.group_path(queue, "/receive"), body)
        if _FIRST_RECEIVE in names or "All" in names:
            call.request.is_brief = False  # reading traces takes a task

        def finish(response: Response) -> Awaitable[dict[str, Any]]:
            return self._answer(call, queue, decoded(response, _Received).messages, names)

        return BegunCall(answer, finish)

    async def _answer(
        self, call: SqsCall, queue: QueueView, leased: list[msgspec.Raw], names: Collection[str]
    ) -> dict[str, Any]:
        """Return the answer; without a message it is empty.

        One message may have 1 MiB, so each is decoded and encoded by itself.
        """
        now_ms = self._broker.clock.wall_ms()
        with_first = _FIRST_RECEIVE in names or "All" in names
        found, time_slice = [], TimeSlice()
        for raw in leased:
            message = _decoder.decode(raw)
            first_ms = now_ms
            if with_first and message.attempt > 1 and _may_trace(call, queue):
                first_ms = await self._first_receive_ms(call, message.id, now_ms)
            out = self._message(call, queue, message, names, first_ms, now_ms)
            found.append(call.encode_part(out))
            if time_slice.is_over:
                await time_slice.next()
        return {"Messages": found} if found else {}

    async def _first_receive_ms(self, call: SqsCall, message_id: str, default_ms: int) -> int:
        """Return when a message was received first, which its trace has."""
        response = await self._calls.ask(call, "GET", f"/v1/messages/{message_id}/trace")
        if response.status != 200:
            return default_ms
        times = [
            event.time
            for event in decoded(response, _Timeline).events
            if event.event == "DELIVERED" and event.group == self._group
        ]
        return _milliseconds(min(times)) if times else default_ms

    def _message(
        self,
        call: SqsCall,
        queue: QueueView,
        message: LeasedContent,
        names: Collection[str],
        first_ms: int,
        now_ms: int,
    ) -> dict[str, Any]:
        headers, body = ReceivedHeaders(message), call.readable(message.body)
        out: dict[str, Any] = {
            "MessageId": str(message.former_id or message.id),
            "ReceiptHandle": format_handle(queue.topic.id, message.receipt, now_ms),
            "MD5OfBody": body_digest(body),
            "Body": body,
        }
        if names:
            system = self._system(queue, message, headers, first_ms)
            if "All" not in names:
                system = {name: value for name, value in system.items() if name in names}
            if system:
                out["Attributes"] = system
        asked = call.shape.attribute_names
        if asked and message.headers:
            attributes = headers.attributes(asked, call.readable)
            if attributes:
                out["MessageAttributes"] = {
                    name: attribute_json(content) for name, content in attributes.items()
                }
                out["MD5OfMessageAttributes"] = attributes_digest(attributes)
        return out

    def _system(
        self, queue: QueueView, message: LeasedContent, headers: ReceivedHeaders, first_ms: int
    ) -> dict[str, str]:
        found: dict[str, str | None] = {
            "SenderId": self._account,
            "SentTimestamp": str(_milliseconds(message.timestamp)),
            "ApproximateReceiveCount": str(message.attempt),
            _FIRST_RECEIVE: str(first_ms),
            "MessageGroupId": message.key if queue.is_fifo else message.tenant,
            "MessageDeduplicationId": headers.text(DEDUP_HEADER),
            "AWSTraceHeader": headers.text(TRACE_HEADER),
        }
        if queue.is_fifo:
            found["SequenceNumber"] = sequence_number(message.offset)
        if (former := message.former_id) is not None:
            found["DeadLetterQueueSourceArn"] = self._queues.arn(former.topic)
        return {name: value for name, value in found.items() if value is not None}


def _may_trace(call: SqsCall, queue: QueueView) -> bool:
    """Return whether the sender may read traces: a refusal would be recorded."""
    principal = call.request.principal
    return principal is None or principal.allows(Verb.READ, queue.topic.name)


def _milliseconds(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp() * 1000)
