"""The handler of the SQS listener: finds protocol and operation, runs it, encodes the answer.

An operation on messages becomes one request to the node, which is begun at once: an answer that
waits for nothing but the disk needs no task.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from goq import limits
from goq.broker.broker import Broker
from goq.config.sqs import SqsConfig
from goq.errors import GoqError, NotAuthenticated, TooManyRequests
from goq.http.message import Handler, Request, Response
from goq.sqs.node_calls import BegunCall, NodeCalls, SqsCall
from goq.sqs.operations.moves import MoveOperations
from goq.sqs.operations.permissions import PermissionOperations
from goq.sqs.operations.queue_directory import QueueDirectory
from goq.sqs.operations.queues import QueueOperations
from goq.sqs.operations.receive import ReceiveOperation
from goq.sqs.operations.send import SendOperations
from goq.sqs.operations.settle import SettleOperations
from goq.sqs.operations.tags import TagOperations
from goq.sqs.protocol import query_protocol, shapes
from goq.sqs.protocol.errors import SqsError
from goq.sqs.protocol.json_protocol import TARGET, JsonExchange
from goq.sqs.protocol.query_protocol import QueryExchange
from goq.sqs.queue_view import QueueView
from goq.sqs.signature import SignatureCheck

OnQueues = Callable[[SqsCall], Awaitable[Any]]
OnMessages = Callable[[SqsCall, QueueView], Any]


Exchange = JsonExchange | QueryExchange
_LARGE_FORM_BYTES: Final = 256 * limits.KIB
"""Forms over this size are read in a thread: 3 MiB of escapes would hold the loop for 40 ms."""


class _RefusedHead(Exception):
    """Why a body is not read, with the answer in the protocol of its request."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer


class RefusalAudit(Protocol):
    """The audit trail, of which this needs the refusals."""

    async def refused(self, request: Request, pending: Response | Awaitable[Response]) -> Response:
        """Return the answer of a request with a ``refusal``, once that is recorded."""

    def note_refusal(self, request: Request, error: GoqError) -> None:
        """Record a refusal in the background."""


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
        self,
        broker: Broker,
        handler: Handler,
        config: SqsConfig,
        own_url: Callable[[], str],
        node_id: str,
        signatures: SignatureCheck | None = None,
        audit: RefusalAudit | None = None,
    ) -> None:
        """``handler`` is that of the node's own HTTP server. Without ``signatures`` the node asks
        for no tokens. ``audit`` records refusals.
        """
        self._signatures = signatures
        self._audit = audit
        self._own_url = own_url
        calls = NodeCalls(handler)
        directory = self._directory = QueueDirectory(broker, calls, config)
        queues = QueueOperations(broker, calls, directory)
        tags = TagOperations(directory)
        send = SendOperations(directory, calls)
        receive = ReceiveOperation(broker, directory, calls, config.account, config.group)
        settle = SettleOperations(broker, directory, calls)
        moves = self._moves = MoveOperations(broker, directory, calls, node_id)
        permissions = PermissionOperations(directory)
        self.operations: dict[str, SqsOperation] = {
            "CreateQueue": SqsOperation(shapes.CreateQueueShape, queues.create),
            "DeleteQueue": SqsOperation(shapes.QueueShape, queues.delete),
            "GetQueueUrl": SqsOperation(shapes.QueueUrlShape, queues.url),
            "ListQueues": SqsOperation(shapes.ListQueuesShape, queues.list_queues),
            "GetQueueAttributes": SqsOperation(shapes.GetAttributesShape, queues.attributes),
            "SetQueueAttributes": SqsOperation(shapes.SetAttributesShape, queues.set_attributes),
            "ListQueueTags": SqsOperation(shapes.QueueShape, tags.list_tags),
            "TagQueue": SqsOperation(shapes.TagShape, tags.tag),
            "UntagQueue": SqsOperation(shapes.UntagShape, tags.untag),
            "ListDeadLetterSourceQueues": SqsOperation(
                shapes.ListSourcesShape, queues.dead_letter_sources
            ),
            "PurgeQueue": SqsOperation(shapes.QueueShape, queues.purge),
            "StartMessageMoveTask": SqsOperation(shapes.StartMoveShape, moves.start),
            "ListMessageMoveTasks": SqsOperation(shapes.ListMovesShape, moves.list_tasks),
            "CancelMessageMoveTask": SqsOperation(shapes.CancelMoveShape, moves.cancel),
            "AddPermission": SqsOperation(shapes.AddPermissionShape, permissions.add),
            "RemovePermission": SqsOperation(shapes.RemovePermissionShape, permissions.remove),
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

    async def stop(self) -> None:
        """End the work that no request waits for."""
        await self._moves.stop()

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        """Return the answer of a request, or an awaitable of it."""
        if len(request.body) > _LARGE_FORM_BYTES and _is_form(request):
            return self._handle_large_form(request)
        return self._handle(request, _exchange(request))

    async def _handle_large_form(self, request: Request) -> Response:
        exchange = await asyncio.to_thread(QueryExchange, request)
        answer = self._handle(request, exchange)
        return answer if isinstance(answer, Response) else await answer

    def _handle(self, request: Request, exchange: Exchange) -> Response | Awaitable[Response]:
        try:
            return self._run(exchange, self._begin(request, exchange))
        except SqsError as error:
            answer = exchange.encode_error(error, _new_request_id())
            if request.refusal is None and not request.pause_s:
                return answer
            return self._refused(request, answer)

    async def _refused(self, request: Request, answer: Response) -> Response:
        """Return a refusal when it is recorded, and when it is its turn."""
        if request.pause_s:
            await asyncio.sleep(request.pause_s)
        if request.refusal is None or self._audit is None:
            return answer
        return await self._audit.refused(request, answer)

    def check_head(self, request: Request, is_large: bool) -> None:
        """Check the sender of a request before its body is read; raise ``GoqError``."""
        if self._signatures is None:
            return
        try:
            self._signatures.check_head(request, is_large=is_large)
        except SqsError as error:
            answer = _RefusedHead(_exchange(request).encode_error(error, _new_request_id()))
            if isinstance(error.__cause__, TooManyRequests):
                raise error.__cause__ from answer
            refusal = request.refusal or NotAuthenticated(error.message)
            if self._audit is not None:
                self._audit.note_refusal(request, refusal)
            raise refusal from answer

    def on_error(self, error: GoqError, headers: Mapping[str, str]) -> Response:
        """Return the answer to a request that is not acceptable HTTP, or has not been read."""
        if isinstance(error.__cause__, _RefusedHead):
            return error.__cause__.answer
        kind = "RequestThrottled" if isinstance(error, TooManyRequests) else "InvalidRequest"
        shown = SqsError(kind, error.detail, error.http_status)
        refused = Request("POST", "/", headers=dict(headers))
        return _exchange(refused).encode_error(shown, _new_request_id())

    def _begin(self, request: Request, exchange: Exchange) -> Awaitable[Any]:
        """Begin the operation of a request. Raises ``SqsError``."""
        if request.method != "POST":
            raise SqsError("InvalidAction", "Send a POST: this is an SQS-compatible endpoint.")
        name = exchange.operation
        request.route = name if name in self.operations else ""
        if self._signatures is not None:
            request.principal = self._signatures.principal(request, name)
        operation = self.operations.get(name)
        if operation is None:
            exchange.decode_input(shapes.Shape)
            raise SqsError("InvalidAction", f"The action {name[:100]!r} is not valid here.")
        shape = exchange.decode_input(operation.shape)
        url = self._base_url(request)
        call = SqsCall(name, shape, request, url, exchange.readable, exchange.encode_part)
        if operation.on_queues is not None:
            request.outlives_eof = True
            return operation.on_queues(call)
        assert operation.on_messages is not None
        queue = self._directory.find(call, shape.queue_url)
        if queue is None:
            return self._after_locating(call, operation.on_messages)
        begun = operation.on_messages(call, queue)
        return _finished(begun) if isinstance(begun, BegunCall) else _resolved(begun)

    async def _after_locating(self, call: SqsCall, run: OnMessages) -> Any:
        queue = await self._directory.locate(call, call.shape.queue_url)
        begun = run(call, queue)
        return await _finished(begun) if isinstance(begun, BegunCall) else await _resolved(begun)

    async def _run(self, exchange: Exchange, outcome: Awaitable[Any]) -> Response:
        try:
            found = await outcome
        except SqsError as error:
            return exchange.encode_error(error, _new_request_id())
        output, on_refused = found if isinstance(found, _Answer) else (found, None)
        response = exchange.encode_output(output, _new_request_id())
        response.on_refused = on_refused
        return response

    def _base_url(self, request: Request) -> str:
        """Return the URL by which the client called: queue URLs begin with it."""
        own = self._own_url()
        host = request.headers.get("host")
        return own if host is None else f"{own.partition('://')[0]}://{host}"


async def _finished(step: BegunCall) -> Any:
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


def _exchange(request: Request) -> Exchange:
    return QueryExchange(request) if _is_form(request) else JsonExchange(request)


def _is_form(request: Request) -> bool:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return content_type == query_protocol.CONTENT_TYPE and TARGET not in request.headers


def _new_request_id() -> str:
    return secrets.token_hex(16)
