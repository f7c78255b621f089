"""The handler of the SQS listener: finds protocol and operation, runs it, encodes the answer.

An operation on messages becomes one request to the node, which is begun at once: an answer that
waits for nothing but the disk needs no task.
"""

from __future__ import annotations

import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from goq.broker.broker import Broker
from goq.config.sqs import SqsConfig
from goq.errors import GoqError
from goq.http.message import Handler, Request, Response
from goq.sqs.node_calls import BegunCall, NodeCalls, SqsCall
from goq.sqs.operations.queues import QueueOperations, QueueView
from goq.sqs.operations.receive import ReceiveOperation
from goq.sqs.operations.send import SendOperations
from goq.sqs.operations.settle import SettleOperations
from goq.sqs.protocol import json_protocol, shapes
from goq.sqs.protocol.errors import SqsError

_log = logging.getLogger("goq.sqs")
_REQUEST_ID: Final = "x-amzn-RequestId"
OnQueues = Callable[[SqsCall], Awaitable[Any]]
OnMessages = Callable[[SqsCall, QueueView], Any]


class SqsOperation(NamedTuple):
    """An operation: the shape of its input, and what answers it.

    ``on_messages`` gets the queue of the request.
    """

    shape: type[Any]
    on_queues: OnQueues | None = None
    on_messages: OnMessages | None = None


class SqsApp:
    """The SQS endpoint of one node; ``handle`` answers its requests."""

    def __init__(
        self, broker: Broker, handler: Handler, config: SqsConfig, own_url: Callable[[], str]
    ) -> None:
        """``handler`` is that of the node's own HTTP server."""
        self._own_url = own_url
        calls = NodeCalls(handler)
        queues = self._queues = QueueOperations(broker, calls, config)
        send = SendOperations(queues, calls)
        receive = ReceiveOperation(broker, queues, calls, config.account, config.group)
        settle = SettleOperations(broker, queues, calls)
        self.operations: dict[str, SqsOperation] = {
            "CreateQueue": SqsOperation(shapes.CreateQueueShape, queues.create),
            "DeleteQueue": SqsOperation(shapes.QueueShape, queues.delete),
            "GetQueueUrl": SqsOperation(shapes.QueueUrlShape, queues.url),
            "ListQueues": SqsOperation(shapes.ListQueuesShape, queues.list),
            "GetQueueAttributes": SqsOperation(shapes.GetAttributesShape, queues.attributes),
            "SetQueueAttributes": SqsOperation(shapes.SetAttributesShape, queues.set_attributes),
            "ListQueueTags": SqsOperation(shapes.QueueShape, queues.tags),
            "TagQueue": SqsOperation(shapes.TagShape, queues.tag),
            "UntagQueue": SqsOperation(shapes.UntagShape, queues.untag),
            "PurgeQueue": SqsOperation(shapes.QueueShape, queues.purge),
            "SendMessage": SqsOperation(shapes.SendShape, None, send.one),
            "SendMessageBatch": SqsOperation(shapes.SendBatchShape, None, send.batch),
            "ReceiveMessage": SqsOperation(shapes.ReceiveShape, None, receive.run),
            "DeleteMessage": SqsOperation(shapes.HandleShape, None, settle.delete),
            "DeleteMessageBatch": SqsOperation(shapes.HandleBatchShape, None, settle.delete_batch),
            "ChangeMessageVisibility": SqsOperation(shapes.HandleShape, None, settle.change),
            "ChangeMessageVisibilityBatch": SqsOperation(
                shapes.HandleBatchShape, None, settle.change_batch
            ),
        }

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        """Return the answer of a request, or an awaitable of it."""
        try:
            return self._run(self._begin(request))
        except SqsError as error:
            return _failed(error)

    def on_error(self, error: GoqError) -> Response:
        """Return the answer to a request that is not acceptable HTTP."""
        return _failed(SqsError("InvalidRequest", error.detail, error.http_status))

    def _begin(self, request: Request) -> Awaitable[Any]:
        """Begin the operation of a request. Raises ``SqsError``."""
        if request.method != "POST":
            raise SqsError("InvalidAction", "Send a POST: this is an SQS-compatible endpoint.")
        name = request.headers.get("x-amz-target", "").removeprefix(json_protocol.TARGET_PREFIX)
        operation = self.operations.get(name)
        if operation is None:
            raise SqsError("InvalidAction", f"The action {name[:100]!r} is not valid here.")
        shape = json_protocol.decode_input(request.body, operation.shape)
        call = SqsCall(name, shape, request, self._base_url(request))
        if operation.on_queues is not None:
            request.outlives_eof = True
            return operation.on_queues(call)
        assert operation.on_messages is not None
        queue = self._queues.find(shape.queue_url)
        if queue is None:
            return self._after_locating(call, operation.on_messages)
        begun = operation.on_messages(call, queue)
        return _stepped(begun) if isinstance(begun, BegunCall) else _resolved(begun)

    async def _after_locating(self, call: SqsCall, run: OnMessages) -> Any:
        queue = await self._queues.locate(call, call.shape.queue_url)
        begun = run(call, queue)
        return await _stepped(begun) if isinstance(begun, BegunCall) else await _resolved(begun)

    async def _run(self, outcome: Awaitable[Any]) -> Response:
        try:
            return _answered(await outcome)
        except SqsError as error:
            return _failed(error)

    def _base_url(self, request: Request) -> str:
        """Return the URL by which the client called: queue URLs begin with it."""
        own = self._own_url()
        host = request.headers.get("host")
        return own if host is None else f"{own.partition('://')[0]}://{host}"


async def _stepped(step: BegunCall) -> Any:
    """Return the output of an operation when the node has answered."""
    answer = step.answer
    response = answer if isinstance(answer, Response) else await answer
    try:
        output = step.finish(response)
        if inspect.isawaitable(output):
            output = await output
    except BaseException:
        if response.on_refused is not None:
            response.on_refused()
        raise
    return _Answer(output, response.on_refused)


class _Answer(NamedTuple):
    """An output, and what gives back its leases if the client cannot get it."""

    output: Any
    on_refused: Callable[[], None] | None


async def _resolved(outcome: Any) -> Any:
    return await outcome if inspect.isawaitable(outcome) else outcome


def _answered(outcome: Any) -> Response:
    output, on_refused = outcome if isinstance(outcome, _Answer) else (outcome, None)
    response = json_protocol.encode_output(output)
    response.on_refused = on_refused
    response.headers[_REQUEST_ID] = _new_request_id()
    return response


def _failed(error: SqsError) -> Response:
    response = json_protocol.encode_error(error)
    response.headers[_REQUEST_ID] = _new_request_id()
    return response


def _new_request_id() -> str:
    return secrets.token_hex(16)
