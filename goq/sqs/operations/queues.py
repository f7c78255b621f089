"""Operations on queues: create, list, delete, attributes, purge."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from goq.broker.broker import Broker
from goq.model import AUDIT_TOPIC
from goq.sqs.attributes import (
    COUNTS,
    DELAY,
    FIFO,
    FIFO_SUFFIX,
    REDRIVE,
    SCOPE,
    THROUGHPUT,
    QueueRecord,
    RedrivePolicy,
    check_names,
    check_scope,
    checked_attributes,
    new_queue_settings,
    redrive_policy,
    shown_attributes,
)
from goq.sqs.node_calls import NodeCalls, SqsCall, decoded
from goq.sqs.operations.queue_directory import QueueDirectory, topic_path
from goq.sqs.operations.tags import checked_tags
from goq.sqs.protocol.bounds import LIST_RESULTS_MAX, check_range
from goq.sqs.protocol.errors import (
    SqsError,
    error_of,
    invalid_parameter,
    missing_parameter,
    problem_code,
)
from goq.sqs.queue_view import QueueView, name_of_url

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_FIFO_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo", re.ASCII)
_ON_THE_WAY_S: Final = 1  # of messages that were sent with the delay before a change


class _Created(msgspec.Struct):
    name: str


class QueueOperations:
    """Answers the operations that concern whole queues."""

    def __init__(self, broker: Broker, calls: NodeCalls, queues: QueueDirectory) -> None:
        self._broker = broker
        self._calls = calls
        self._queues = queues

    async def create(self, call: SqsCall) -> dict[str, Any]:
        """CreateQueue: an existing queue with these attributes is returned."""
        name = call.shape.name
        if not name:
            raise missing_parameter("QueueName")
        given = dict(call.shape.attributes or {})
        is_fifo = name.endswith(FIFO_SUFFIX)
        _check_queue_name(name, given)
        if given.get(FIFO) in ("false", False):
            del given[FIFO]
        attributes = checked_attributes(given, is_fifo=is_fifo, bounds=self._queues.bounds)
        check_scope(attributes)
        attributes = await self._with_dead_letter_queue(call, name, attributes)
        tags = checked_tags({**(call.shape.upper_tags or {}), **(call.shape.tags or {})})
        now_s = self._queues.now_s()
        settings = new_queue_settings(attributes, QueueRecord(now_s, now_s, attributes, tags))
        body: dict[str, Any] = {"name": name, "settings": settings}
        if is_fifo and attributes.get(THROUGHPUT) != "perMessageGroupId":
            body["partitions"] = 1  # deduplication and order are those of a partition
        response = await self._calls.ask(call, "POST", "/v1/topics", body)
        if problem_code(response) == "topic_not_found":  # no rule concerns such a name
            raise SqsError("AccessDenied", f"The token does not allow manage:{name}.", 403)
        if problem_code(response) == "topic_exists":
            await self._check_same(call, name, attributes)
        else:
            decoded(response, _Created)
            queue = QueueView(self._broker.topics[name])
            await self._calls.ask(call, "PUT", self._queues.group_path(queue), {"settings": {}})
        return {"QueueUrl": self._queues.url(call, name)}

    async def _check_same(self, call: SqsCall, name: str, attributes: Mapping[str, str]) -> None:
        shown = self._shown(await self._queues.locate(call, name))
        for key, value in attributes.items():
            if shown.get(key, "") != value:
                raise SqsError(
                    "QueueNameExists",
                    "A queue already exists with the same name and a different value for"
                    f" attribute {key}",
                )

    def _shown(self, queue: QueueView) -> dict[str, str]:
        """Return the attributes of a queue, without those that count messages."""
        name = queue.topic.name
        arn, bounds = self._queues.arn(name), self._queues.bounds
        return shown_attributes(name, queue.topic.settings, bounds, arn)

    async def url(self, call: SqsCall) -> dict[str, Any]:
        """GetQueueUrl."""
        if not call.shape.name:
            raise missing_parameter("QueueName")
        queue = await self._queues.locate(call, call.shape.name)
        return {"QueueUrl": self._queues.url(call, queue.topic.name)}

    async def list_queues(self, call: SqsCall) -> dict[str, Any]:
        """ListQueues: those that the sender may see, by name."""
        await self._broker.start_queue.wait_for_all()
        prefix = call.shape.prefix or ""
        page, token = self._page(call, lambda name: name.startswith(prefix))
        answer: dict[str, Any] = {"QueueUrls": page} if page else {}
        return answer if token is None else {**answer, "NextToken": token}

    async def delete(self, call: SqsCall) -> None:
        """DeleteQueue: the topic, with all its messages."""
        name = name_of_url(call.shape.queue_url)
        response = await self._calls.ask(call, "DELETE", topic_path(name))
        if response.status >= 400:
            raise error_of(response)

    async def attributes(self, call: SqsCall) -> dict[str, Any]:
        """GetQueueAttributes."""
        queue = await self._queues.locate(call, call.shape.queue_url)
        asked = call.shape.names or []
        check_names(asked)
        found = self._shown(queue)
        if "All" in asked or not COUNTS.isdisjoint(asked):
            found |= await self._queues.counts(call, queue)
        chosen = {key: found[key] for key in found if key in asked or "All" in asked}
        return {"Attributes": chosen} if chosen else {}

    async def set_attributes(self, call: SqsCall) -> None:
        """SetQueueAttributes."""
        queue = await self._queues.locate(call, call.shape.queue_url)
        given = call.shape.attributes
        if not given:
            raise missing_parameter("Attributes")
        if FIFO in given:
            raise SqsError("InvalidAttributeName", f"{FIFO} can only be set by CreateQueue.")
        new = checked_attributes(given, is_fifo=queue.is_fifo, bounds=self._queues.bounds)
        if queue.is_fifo and queue.topic.partitions.count > 1 and new.get(SCOPE) == "queue":
            raise SqsError(
                "InvalidAttributeValue",
                f"{SCOPE} stays messageGroup: the queue has several partitions.",
            )
        new = await self._with_dead_letter_queue(call, queue.topic.name, new)

        def changed(record: QueueRecord) -> QueueRecord:
            attributes = {**record.attributes, **new}
            check_scope(attributes)
            kept = {key: value for key, value in attributes.items() if value}
            until_ms = record.delayed_until_ms
            if queue.is_fifo and DELAY in new:
                sent_before_ms = 1000 * (record.number(DELAY, 0) + _ON_THE_WAY_S)
                until_ms = max(until_ms, self._queues.now_ms() + sent_before_ms)
            return msgspec.structs.replace(record, attributes=kept, delayed_until_ms=until_ms)

        await self._queues.change(call, queue, changed, new)

    async def _with_dead_letter_queue(
        self, call: SqsCall, name: str, attributes: dict[str, str]
    ) -> dict[str, str]:
        """Return attributes whose policy has the ARN that its dead-letter queue has here.

        Region and account of the given one do not count, as those of queue URLs do not. Raises
        ``SqsError`` unless the queue exists and is of the same kind.
        """
        policy = redrive_policy(attributes)
        if policy is None:
            return attributes
        try:
            target = await self._queues.locate(call, policy.queue)
        except SqsError:
            reason = "Dead letter target does not exist."
        else:
            if target.topic.name == name:
                reason = "Dead letter target is the queue itself."
            elif target.is_fifo is not name.endswith(FIFO_SUFFIX):
                reason = "Dead letter target must be same type of queue as the source."
            else:
                own = RedrivePolicy(self._queues.arn(policy.queue), policy.maxReceiveCount)
                return {**attributes, REDRIVE: own.written()}
        raise invalid_parameter(
            f"Value {attributes[REDRIVE]} for parameter RedrivePolicy is invalid. Reason: {reason}"
        )

    async def dead_letter_sources(self, call: SqsCall) -> dict[str, Any]:
        """ListDeadLetterSourceQueues."""
        target = await self._queues.locate(call, call.shape.queue_url)
        await self._broker.start_queue.wait_for_all()

        def is_source(name: str) -> bool:
            return self._broker.topics[name].settings.dead_letter_topic == target.topic.name

        page, token = self._page(call, is_source)
        answer: dict[str, Any] = {"queueUrls": page}
        return answer if token is None else {**answer, "NextToken": token}

    def _page(self, call: SqsCall, matches: Callable[[str], bool]) -> tuple[list[str], str | None]:
        """Return the URLs of a page of the queues that match, and the token of the next page."""
        asked, principal = call.shape, call.request.principal
        if asked.results_max is not None:
            check_range("MaxResults", asked.results_max, 1, LIST_RESULTS_MAX)
        names = [
            name
            for name in sorted(self._broker.topics)
            if name > (asked.token or "")
            and name != AUDIT_TOPIC
            and matches(name)
            and (principal is None or principal.sees(name))
        ]
        page = names[: asked.results_max or LIST_RESULTS_MAX]
        is_last = asked.results_max is None or len(page) == len(names)
        return [self._queues.url(call, name) for name in page], None if is_last else page[-1]

    async def purge(self, call: SqsCall) -> None:
        """PurgeQueue: the group goes on behind the newest message, and all leases end."""
        queue = await self._queues.locate(call, call.shape.queue_url)
        path = self._queues.group_path(queue, "/reset")
        response = await self._calls.ask(call, "POST", path, {"to": "latest"})
        if response.status >= 400:
            raise error_of(response)


def _check_queue_name(name: str, given: Mapping[str, Any]) -> None:
    is_fifo = given.get(FIFO) in ("true", True)
    if not (_FIFO_NAME if is_fifo else _NAME).fullmatch(name):
        if is_fifo:
            raise invalid_parameter(
                "The name of a FIFO queue can only include alphanumeric characters, hyphens, or"
                " underscores, must end with .fifo suffix and be 1 to 80 in length."
            )
        raise invalid_parameter(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )
    if name.startswith("__"):
        raise invalid_parameter("Names that begin with __ are goq's own.")
