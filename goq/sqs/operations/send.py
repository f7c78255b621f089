"""SendMessage and SendMessageBatch: one publish for all messages of a request."""

from __future__ import annotations

from collections.abc import Awaitable
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec

from goq.http.message import Response
from goq.sqs.message_codec import (
    DEDUP_HEADER,
    TRACE_ATTRIBUTE,
    TRACE_HEADER,
    PublishedContent,
    attribute_contents,
    check_body,
    check_headers,
    content_bytes,
    headers_of,
    system_contents,
)
from goq.sqs.node_calls import BegunCall, NodeCalls, SqsCall, decoded
from goq.sqs.operations.batch import BatchResult, checked_entries
from goq.sqs.operations.queue_directory import QueueDirectory
from goq.sqs.protocol.bounds import DELAY_S_MAX, GROUP_ID_CHARS_MAX, check_range
from goq.sqs.protocol.digest import attributes_digest, body_digest
from goq.sqs.protocol.errors import SqsError, invalid_parameter, missing_parameter
from goq.sqs.protocol.shapes import SendShape
from goq.sqs.queue_view import QueueView

_SEQUENCE_DIGITS: Final = 20


class _Position(msgspec.Struct):
    id: str
    offset: int


class _Publication(msgspec.Struct):
    results: list[_Position]


class _Prepared(NamedTuple):
    """A checked message, with what the answer says of it besides its id."""

    content: PublishedContent
    size_bytes: int
    digests: dict[str, Any]


class SendOperations:
    """Sends messages; they are durable when the answer is sent."""

    def __init__(self, queues: QueueDirectory, calls: NodeCalls) -> None:
        self._queues = queues
        self._calls = calls

    def one(self, call: SqsCall, queue: QueueView) -> BegunCall:
        """SendMessage."""
        prepared = self._prepared(queue, call.shape)

        def finish(response: Response) -> dict[str, Any]:
            position = decoded(response, _Publication).results[0]
            return _result(queue, prepared, position)

        return BegunCall(self._publish(call, queue, [prepared]), finish)

    def batch(self, call: SqsCall, queue: QueueView) -> BegunCall | dict[str, Any]:
        """SendMessageBatch: entries that are not allowed are refused one by one."""
        entries = checked_entries(call.shape.entries, self._queues.bounds.entries_max)
        result, prepared = BatchResult(), dict[str, _Prepared]()
        total_bytes = 0
        for entry in entries:
            try:
                assert entry.id is not None
                prepared[entry.id] = self._prepared(queue, entry)
                total_bytes += prepared[entry.id].size_bytes
            except SqsError as error:
                result.fail(entry.id, error)
        if total_bytes > self._queues.bounds.size_max:
            raise SqsError(
                "BatchRequestTooLong",
                f"Batch requests cannot be longer than {self._queues.bounds.size_max} bytes. You"
                f" have sent {total_bytes} bytes.",
            )
        if not prepared:
            return result.answer

        def finish(response: Response) -> dict[str, Any]:
            positions = decoded(response, _Publication).results
            for (entry_id, one), position in zip(prepared.items(), positions, strict=True):
                result.add(entry_id, _result(queue, one, position))
            return result.answer

        return BegunCall(self._publish(call, queue, [*prepared.values()]), finish)

    def _publish(
        self, call: SqsCall, queue: QueueView, messages: list[_Prepared]
    ) -> Response | Awaitable[Response]:
        body = {"messages": [message.content for message in messages]}
        return self._calls.begin(call, "POST", f"/v1/topics/{queue.topic.name}/messages", body)

    def _prepared(self, queue: QueueView, asked: SendShape) -> _Prepared:
        body = asked.body
        if not body:
            raise missing_parameter("MessageBody")
        check_body(body)
        attributes = attribute_contents(asked.attributes)
        system = system_contents(asked.system)
        size_bytes = content_bytes(body, attributes)
        size_max = queue.size_max(self._queues.bounds.size_max)
        if size_bytes > size_max:
            raise invalid_parameter(
                "One or more parameters are invalid. Reason: Message must be shorter than"
                f" {size_max} bytes."
            )
        own_headers = {TRACE_HEADER: str(system[TRACE_ATTRIBUTE].value)} if system else {}
        content = PublishedContent(body)
        if queue.is_fifo:
            _put_order(queue, asked, content, own_headers)
        else:
            _put_tenant(asked, content)
        delay_ms = self._delay_ms(queue, asked)
        content.delay = f"{delay_ms}ms" if delay_ms else None
        content.headers = headers_of(attributes, own_headers)
        check_headers(content.headers)
        digests = {"MD5OfMessageBody": body_digest(body)}
        if attributes:
            digests["MD5OfMessageAttributes"] = attributes_digest(attributes)
        if system:
            digests["MD5OfMessageSystemAttributes"] = attributes_digest(system)
        return _Prepared(content, size_bytes, digests)

    def _delay_ms(self, queue: QueueView, asked: SendShape) -> int:
        if queue.is_fifo and asked.delay_s:
            raise invalid_parameter(
                f"Value {asked.delay_s} for parameter DelaySeconds is invalid. Reason: The request"
                " include parameter that is not valid for this queue type."
            )
        if asked.delay_s is None or queue.is_fifo:
            return queue.delay_ms(self._queues.now_ms())
        return 1000 * check_range("DelaySeconds", asked.delay_s, 0, DELAY_S_MAX)


def _put_order(
    queue: QueueView, asked: SendShape, content: PublishedContent, headers: dict[str, str]
) -> None:
    """Set the key and the dedup id of a message to a FIFO queue."""
    if not asked.group_id:
        raise missing_parameter("MessageGroupId")
    content.key = _checked_id("MessageGroupId", asked.group_id)
    dedup_id = asked.dedup_id
    if dedup_id is None:
        if not queue.has_content_dedup:
            raise invalid_parameter(
                "The queue should either have ContentBasedDeduplication enabled or"
                " MessageDeduplicationId provided explicitly"
            )
        dedup_id = sha256(content.value.encode()).hexdigest()
    headers[DEDUP_HEADER] = _checked_id("MessageDeduplicationId", dedup_id)
    if queue.has_group_dedup:
        dedup_id = f"{content.key}\0{dedup_id}"
    content.dedup_id = dedup_id


def _put_tenant(asked: SendShape, content: PublishedContent) -> None:
    """Set the tenant of a message to a standard queue: its group id."""
    if asked.dedup_id is not None:
        raise invalid_parameter(
            f"Value {asked.dedup_id[:128]} for parameter MessageDeduplicationId is invalid. Reason:"
            " The request include parameter that is not valid for this queue type."
        )
    if asked.group_id is not None:
        content.tenant = _checked_id("MessageGroupId", asked.group_id)


def _checked_id(name: str, text: str) -> str:
    is_printable = text.isascii() and text.isprintable() and " " not in text
    if not 1 <= len(text) <= GROUP_ID_CHARS_MAX or not is_printable:
        raise invalid_parameter(
            f"Value {text[:128]} for parameter {name} is invalid. Reason: {name} can only include"
            f" alphanumeric and punctuation characters. 1 to {GROUP_ID_CHARS_MAX} in length."
        )
    return text


def _result(queue: QueueView, prepared: _Prepared, position: _Position) -> dict[str, Any]:
    answer = {"MessageId": position.id, **prepared.digests}
    if queue.is_fifo:
        answer["SequenceNumber"] = sequence_number(position.offset)
    return answer


def sequence_number(offset: int) -> str:
    """Return the sequence number of a message: it rises within each message group."""
    return f"{offset:0{_SEQUENCE_DIGITS}d}"
