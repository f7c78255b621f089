"""Message move tasks: start, list, cancel.

The rows of a queue's last tasks are in its topic's setting ``sqs``, so each node of a cluster shows
them, and a cancel at any node reaches the task. A task ends with its node: its row is FAILED then.
A node knows its own tasks. Of others' it takes a row as FAILED that was not told for two minutes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from goq.access.rule import Principal
from goq.broker.broker import Broker
from goq.broker.runtime.tasks import Tasks
from goq.sqs.attributes import MoveRecord, read_record
from goq.sqs.node_calls import NodeCalls, SqsCall
from goq.sqs.operations.move_task import MoveTask
from goq.sqs.operations.queue_directory import QueueDirectory, topic_path
from goq.sqs.protocol.bounds import check_range
from goq.sqs.protocol.errors import SqsError, invalid_parameter, missing_parameter
from goq.sqs.queue_view import QueueView

RATE_MAX: Final = 500
ROWS_MAX: Final = 10
_OWN_ROWS_MAX: Final = 1_000
_SILENCE_MS_MAX: Final = 120_000
_STOP_S: Final = 5.0
_ACTIVE: Final = ("RUNNING", "CANCELLING")
_log = logging.getLogger("goq.sqs")


class _TaskHandle(msgspec.Struct):
    taskId: str
    sourceArn: str


class MoveOperations:
    """Starts, lists and cancels the move tasks of dead-letter queues."""

    def __init__(
        self, broker: Broker, queues: QueueDirectory, calls: NodeCalls, node_id: str
    ) -> None:
        self._broker = broker
        self._queues = queues
        self._calls = calls
        self._node_id = node_id
        self._lock = asyncio.Lock()  # of rows in topic settings: read, change, write
        self._own: dict[str, tuple[int, MoveRecord]] = {}
        self._running: dict[str, MoveTask] = {}
        self._tasks = Tasks()
        self._stopped = False

    async def start(self, call: SqsCall) -> dict[str, Any]:
        """StartMessageMoveTask."""
        asked = call.shape
        if asked.rate is not None:
            check_range("MaxNumberOfMessagesPerSecond", asked.rate, 1, RATE_MAX)
        source = await self._locate(call, asked.source, "SourceArn")
        target = None
        if asked.target is not None:
            target = await self._locate(call, asked.target, "DestinationArn")
            self._check_target(source, target)
        await self._check_is_dead_letter_queue(source)
        async with self._lock:
            rows = self._rows(source)
            if self._stopped:
                raise SqsError("ServiceUnavailable", "The node stops.", 503)
            counts = await self._queues.counts(call, source)
            now_ms = self._broker.clock.wall_ms()
            newest_ms = rows[-1].started_ms if rows else 0
            row = MoveRecord(
                id=secrets.token_hex(16),
                node=self._node_id,
                target="" if target is None else target.topic.name,
                rate=asked.rate,
                to_move=int(counts["ApproximateNumberOfMessages"]),
                started_ms=max(now_ms, newest_ms + 1),  # the order of rows
                told_ms=now_ms,
            )

            def started(others: list[MoveRecord]) -> MoveRecord:
                _check_none_active(others)  # another node may have started one meanwhile
                return row

            await self._write(call, source, started)
            self._begin(call, source, row)
        return {"TaskHandle": self._handle(source, row)}

    async def list_tasks(self, call: SqsCall) -> dict[str, Any]:
        """ListMessageMoveTasks: the newest first."""
        count = 1 if call.shape.results_max is None else call.shape.results_max
        check_range("MaxResults", count, 1, ROWS_MAX)
        source = await self._locate(call, call.shape.source, "SourceArn")
        rows = self._rows(source)[-count:]
        principal = call.request.principal
        return {"Results": [self._shown(source, row, principal) for row in reversed(rows)]}

    async def cancel(self, call: SqsCall) -> dict[str, Any]:
        """CancelMessageMoveTask: what was moved stays moved."""
        handle = _parsed(call.shape.handle)
        source = await self._locate(call, handle.sourceArn, "TaskHandle")
        async with self._lock:
            row = await self._write(call, source, lambda rows: _cancelling(rows, handle.taskId))
        task = self._running.get(row.id)
        if task is not None:
            task.row = msgspec.structs.replace(task.row, status="CANCELLING")
            task.wake()
        return {"ApproximateNumberOfMessagesMoved": row.moved}

    async def stop(self) -> None:
        """End all tasks of this node behind their current batches; their rows are FAILED."""
        self._stopped = True
        for task in self._running.values():
            task.stop()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._tasks.finish()
        except TimeoutError:
            self._tasks.cancel()
            await self._tasks.finish()

    def _begin(self, call: SqsCall, source: QueueView, row: MoveRecord) -> None:
        topic_id, name = source.topic.id, source.topic.name

        def is_cancelled() -> bool:
            kept = self._kept(name, topic_id)
            if kept is None:
                return True  # the queue was deleted
            return task.row.status != "RUNNING" or any(
                each.id == row.id and each.status != "RUNNING" for each in kept
            )

        async def tell(told: MoveRecord) -> None:
            async with self._lock:
                topic = self._broker.topics.get(name)
                if topic is not None and topic.id == topic_id:
                    now_ms = self._broker.clock.wall_ms()
                    told = msgspec.structs.replace(told, told_ms=now_ms)

                    def now(rows: list[MoveRecord]) -> MoveRecord:
                        return _unless_cancelling(told, _row_of(rows, told.id))

                    await self._write(call, QueueView(topic), now)

        async def run() -> None:
            try:
                ended = await task.run()
            except Exception as error:
                _log.exception("the move task of %s failed", name)
                ended = msgspec.structs.replace(task.row, status="FAILED", reason=repr(error)[:300])
            self._own[row.id] = topic_id, ended
            del self._running[row.id]
            try:
                await tell(ended)
            except SqsError as error:
                _log.info("the end of the move task of %s was not recorded: %s", name, error)

        paths = topic_path(name), self._queues.group_path(source)
        locate = self._queues.locate
        task = MoveTask(row, *paths, locate, self._calls, call, is_cancelled, tell)
        self._running[row.id] = task
        if self._stopped:
            task.stop()
        self._tasks.start(run())

    async def _write(
        self,
        call: SqsCall,
        queue: QueueView,
        changed: Callable[[list[MoveRecord]], MoveRecord],
    ) -> MoveRecord:
        """Make a row durable that is decided on all rows, and return it. Raises ``SqsError``.

        Another node may change the rows meanwhile: then it is decided anew.
        """
        row: MoveRecord

        def rows() -> list[MoveRecord]:
            nonlocal row
            known = self._rows(queue)
            row = changed(known)
            others = [each for each in known if each.id != row.id]
            return sorted([*others, row], key=_age)[-ROWS_MAX:]

        await self._queues.put_moves(call, queue, rows)
        if row.node == self._node_id:
            self._own[row.id] = queue.topic.id, row
            while len(self._own) > _OWN_ROWS_MAX:
                del self._own[next(iter(self._own))]
        return row

    def _kept(self, name: str, topic_id: int) -> list[MoveRecord] | None:
        """Return the rows as the topic has them, None if it is deleted."""
        topic = self._broker.topics.get(name)
        if topic is None or topic.id != topic_id:
            return None
        return read_record(topic.settings.sqs).moves

    def _rows(self, queue: QueueView) -> list[MoveRecord]:
        """Return the rows of a queue, oldest first; this node's as they are now."""
        topic = queue.topic
        kept = self._kept(topic.name, topic.id) or []
        rows = {row.id: self._unless_silent(row) for row in kept}
        own = {key: row for key, (topic_id, row) in self._own.items() if topic_id == topic.id}
        own |= {key: task.row for key, task in self._running.items() if key in rows or key in own}
        rows |= {key: _unless_cancelling(row, rows.get(key)) for key, row in own.items()}
        return sorted(rows.values(), key=_age)[-ROWS_MAX:]

    def _unless_silent(self, row: MoveRecord) -> MoveRecord:
        """Return a row of a task that this run of the node did not start."""
        silence_ms = self._broker.clock.wall_ms() - row.told_ms
        is_gone = row.node == self._node_id or silence_ms > _SILENCE_MS_MAX
        if row.status not in _ACTIVE or not is_gone:
            return row
        return msgspec.structs.replace(row, status="FAILED", reason="NodeStopped")

    async def _locate(self, call: SqsCall, arn: str | None, parameter: str) -> QueueView:
        """Return the queue of an ARN. Raises ``SqsError``."""
        if not arn:
            raise missing_parameter(parameter)
        name = arn.rpartition(":")[2]
        if arn.count(":") != 5 or not arn.startswith("arn:") or not name or "/" in name:
            raise invalid_parameter(f"Value {arn[:300]} for parameter {parameter} is invalid.")
        try:
            return await self._queues.locate(call, name)
        except SqsError as error:
            if error.kind != "QueueDoesNotExist":
                raise
            raise SqsError(
                "ResourceNotFoundException",
                f"The resource that you specified for the {parameter} parameter doesn't exist.",
            ) from None

    def _check_target(self, source: QueueView, target: QueueView) -> None:
        if target.topic.name == source.topic.name:
            raise invalid_parameter("Source queue arn and destination queue arn are the same.")
        if target.is_fifo is not source.is_fifo:
            raise invalid_parameter("Source and destination must be the same type of queue.")

    async def _check_is_dead_letter_queue(self, source: QueueView) -> None:
        await self._broker.start_queue.wait_for_all()
        name = source.topic.name
        topics = self._broker.topics
        if not any(topics[each].settings.dead_letter_topic == name for each in topics):
            raise invalid_parameter("Source queue must be configured as a Dead Letter Queue.")
        if source.topic.settings.dead_letter_topic not in (None, name):
            raise SqsError(
                "UnsupportedOperation",
                "The source queue has a RedrivePolicy itself: take it away first.",
            )

    def _handle(self, source: QueueView, row: MoveRecord) -> str:
        handle = _TaskHandle(row.id, self._queues.arn(source.topic.name))
        return base64.b64encode(msgspec.json.encode(handle)).decode()

    def _shown(
        self, source: QueueView, row: MoveRecord, principal: Principal | None
    ) -> Mapping[str, Any]:
        shown: dict[str, Any] = {
            "Status": row.status,
            "SourceArn": self._queues.arn(source.topic.name),
            "ApproximateNumberOfMessagesMoved": row.moved,
            "ApproximateNumberOfMessagesToMove": row.to_move,
            "StartedTimestamp": row.started_ms,
        }
        if row.status == "RUNNING":
            shown["TaskHandle"] = self._handle(source, row)
        if row.target and (principal is None or principal.sees(row.target)):
            shown["DestinationArn"] = self._queues.arn(row.target)
        if row.rate is not None:
            shown["MaxNumberOfMessagesPerSecond"] = row.rate
        if row.reason:
            shown["FailureReason"] = row.reason
        return shown


def _check_none_active(rows: list[MoveRecord]) -> None:
    if any(row.status in _ACTIVE for row in rows):
        raise SqsError(
            "UnsupportedOperation",
            "There is already a task running. Only one active task is allowed for a source queue"
            " arn at a given time.",
        )


def _cancelling(rows: list[MoveRecord], task_id: str) -> MoveRecord:
    """Return the row of a task that is to end. Raises ``SqsError`` unless it runs."""
    row = _row_of(rows, task_id)
    if row is None:
        raise SqsError("ResourceNotFoundException", "Task does not exist.")
    if row.status != "RUNNING":
        raise SqsError("UnsupportedOperation", f"The task is {row.status}, not RUNNING.")
    return msgspec.structs.replace(row, status="CANCELLING")


def _row_of(rows: list[MoveRecord], task_id: str) -> MoveRecord | None:
    return next((row for row in rows if row.id == task_id), None)


def _unless_cancelling(row: MoveRecord, known: MoveRecord | None) -> MoveRecord:
    """Return the row of a task as its node has it; one that another node cancels stays so."""
    if known is not None and known.status == "CANCELLING" and row.status == "RUNNING":
        return msgspec.structs.replace(row, status=known.status)
    return row


def _age(row: MoveRecord) -> tuple[int, str]:
    return row.started_ms, row.id


def _parsed(text: str | None) -> _TaskHandle:
    if not text:
        raise missing_parameter("TaskHandle")
    try:
        return msgspec.json.decode(base64.b64decode(text, validate=True), type=_TaskHandle)
    except (ValueError, binascii.Error, msgspec.DecodeError, RecursionError):
        raise invalid_parameter("Value for parameter TaskHandle is invalid.") from None
