"""Operations on queues: create, find, list, delete, attributes, tags, purge."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from random import uniform
from typing import Any, Final

import msgspec

from goq.broker.broker import Broker
from goq.config.sqs import SqsConfig
from goq.errors import GoqError
from goq.model import AUDIT_TOPIC
from goq.sqs.attributes import (
    COUNTS,
    DELAY,
    FIFO,
    FIFO_SUFFIX,
    RECORD,
    REDRIVE,
    SCOPE,
    THROUGHPUT,
    MoveRecord,
    QueueRecord,
    RedrivePolicy,
    check_names,
    check_scope,
    checked_attributes,
    new_queue_settings,
    read_record,
    redrive_policy,
    settings_of,
    shown_attributes,
)
from goq.sqs.node_calls import NodeCalls, SqsCall, decoded
from goq.sqs.protocol.bounds import (
    LIST_RESULTS_MAX,
    RELAXED,
    STRICT,
    TAG_KEY_CHARS_MAX,
    TAG_VALUE_CHARS_MAX,
    TAGS_MAX,
    check_range,
)
from goq.sqs.protocol.errors import (
    SqsError,
    error_of,
    error_of_goq,
    invalid_parameter,
    missing_parameter,
    problem_code,
    queue_missing,
)
from goq.sqs.queue_view import QueueView, name_of_url

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
_FIFO_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo", re.ASCII)
_AWS_TAG: Final = "aws:"
_CONFLICTS_MAX: Final = 8
_CONFLICT_PAUSE_S: Final = 0.02
_ON_THE_WAY_S: Final = 1  # of messages that were sent with the delay before a change


class _Created(msgspec.Struct):
    name: str


class _GroupCounts(msgspec.Struct):
    ready: int = 0
    leased: int = 0
    retry: int = 0
    scheduled: int = 0


class QueueOperations:
    """Finds queues by their URLs, and answers the operations that concern whole queues."""

    def __init__(self, broker: Broker, calls: NodeCalls, config: SqsConfig) -> None:
        self._broker = broker
        self._calls = calls
        self._config = config
        self.bounds = STRICT if config.limits == "strict" else RELAXED
        self._changing = asyncio.Lock()  # records of queues: read, change, write

    def find(self, call: SqsCall, url: str | None) -> QueueView | None:
        """Return the queue of a URL if it is open on this node, and the sender may know of it.

        Raises ``SqsError``.
        """
        name, principal = name_of_url(url), call.request.principal
        topic = self._broker.topics.get(name)
        if topic is None or (principal is not None and not principal.sees(name)):
            return None
        return QueueView(topic)

    async def locate(self, call: SqsCall, url: str | None) -> QueueView:
        """Return the queue of a URL; wait for a topic that a start has not opened yet.

        Raises ``SqsError``.
        """
        name = name_of_url(url)
        response = await self._calls.ask(call, "GET", topic_path(name))
        topic = self._broker.topics.get(name)
        if response.status >= 400:
            raise error_of(response)
        if topic is None or name == AUDIT_TOPIC:
            raise queue_missing()
        return QueueView(topic)

    def group_path(self, queue: QueueView, action: str = "") -> str:
        """Return the path of the group that receives from a queue."""
        return f"{topic_path(queue.topic.name)}/groups/{self._config.group}{action}"

    def arn(self, name: str) -> str:
        """Return the ARN of a queue."""
        return f"arn:aws:sqs:{self._config.region}:{self._config.account}:{name}"

    def _url(self, call: SqsCall, name: str) -> str:
        return f"{call.base_url}/{self._config.account}/{name}"

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
        attributes = checked_attributes(given, is_fifo=is_fifo, bounds=self.bounds)
        check_scope(attributes)
        attributes = await self._with_dead_letter_queue(call, name, attributes)
        tags = _checked_tags({**(call.shape.upper_tags or {}), **(call.shape.tags or {})})
        now_s = self._now_s()
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
            await self._calls.ask(call, "PUT", self.group_path(queue), {"settings": {}})
        return {"QueueUrl": self._url(call, name)}

    async def _check_same(self, call: SqsCall, name: str, attributes: Mapping[str, str]) -> None:
        queue = await self.locate(call, name)
        shown = shown_attributes(name, queue.topic.settings, self.bounds, self.arn(name))
        for key, value in attributes.items():
            if shown.get(key, "") != value:
                raise SqsError(
                    "QueueNameExists",
                    "A queue already exists with the same name and a different value for"
                    f" attribute {key}",
                )

    async def url(self, call: SqsCall) -> dict[str, Any]:
        """GetQueueUrl."""
        if not call.shape.name:
            raise missing_parameter("QueueName")
        queue = await self.locate(call, call.shape.name)
        return {"QueueUrl": self._url(call, queue.topic.name)}

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
        queue = await self.locate(call, call.shape.queue_url)
        asked = call.shape.names or []
        check_names(asked)
        name = queue.topic.name
        found = shown_attributes(name, queue.topic.settings, self.bounds, self.arn(name))
        if "All" in asked or not COUNTS.isdisjoint(asked):
            found |= await self.counts(call, queue)
        chosen = {key: found[key] for key in found if key in asked or "All" in asked}
        return {"Attributes": chosen} if chosen else {}

    async def counts(self, call: SqsCall, queue: QueueView) -> dict[str, str]:
        """Return the attributes that count messages. Raises ``SqsError``.

        Who may see them needs no other rule to begin the group, as a first receive does.
        """
        path = self.group_path(queue)
        response = await self._calls.ask(call, "GET", path)
        if problem_code(response) == "group_not_found":
            try:
                await self._broker.group_admin.remember(queue.topic, self._config.group)
            except GoqError as error:
                raise error_of_goq(error) from None
            response = await self._calls.ask(call, "GET", path)
        counts = decoded(response, _GroupCounts)
        return {
            "ApproximateNumberOfMessages": str(counts.ready + counts.retry),
            "ApproximateNumberOfMessagesNotVisible": str(counts.leased),
            "ApproximateNumberOfMessagesDelayed": str(counts.scheduled),
        }

    async def set_attributes(self, call: SqsCall) -> None:
        """SetQueueAttributes."""
        queue = await self.locate(call, call.shape.queue_url)
        given = call.shape.attributes
        if not given:
            raise missing_parameter("Attributes")
        if FIFO in given:
            raise SqsError("InvalidAttributeName", f"{FIFO} can only be set by CreateQueue.")
        new = checked_attributes(given, is_fifo=queue.is_fifo, bounds=self.bounds)
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
                until_ms = max(until_ms, self.now_ms() + sent_before_ms)
            return msgspec.structs.replace(record, attributes=kept, delayed_until_ms=until_ms)

        await self.change(call, queue, changed, new)

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
            target = await self.locate(call, policy.queue)
        except SqsError:
            reason = "Dead letter target does not exist."
        else:
            if target.topic.name == name:
                reason = "Dead letter target is the queue itself."
            elif target.is_fifo is not name.endswith(FIFO_SUFFIX):
                reason = "Dead letter target must be same type of queue as the source."
            else:
                own = RedrivePolicy(self.arn(policy.queue), policy.maxReceiveCount)
                return {**attributes, REDRIVE: own.written()}
        raise invalid_parameter(
            f"Value {attributes[REDRIVE]} for parameter RedrivePolicy is invalid. Reason: {reason}"
        )

    async def dead_letter_sources(self, call: SqsCall) -> dict[str, Any]:
        """ListDeadLetterSourceQueues."""
        target = await self.locate(call, call.shape.queue_url)
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
        return [self._url(call, name) for name in page], None if is_last else page[-1]

    async def change(
        self,
        call: SqsCall,
        queue: QueueView,
        changed: Callable[[QueueRecord], QueueRecord],
        new: Mapping[str, str] | None = None,
    ) -> None:
        """Change the record of a queue, and the topic's settings of the attributes ``new``.

        Changes at this node take turns: none undoes another. Raises ``SqsError``.
        """
        now_s = self._now_s()

        def dated(record: QueueRecord) -> QueueRecord:
            created_s = record.created_s or now_s
            return msgspec.structs.replace(record, created_s=created_s, modified_s=now_s)

        await self._alter(call, queue, lambda record: dated(changed(record)), new)

    async def put_moves(
        self, call: SqsCall, queue: QueueView, rows: Callable[[], list[MoveRecord]]
    ) -> None:
        """Change the rows of the queue's move tasks. Raises ``SqsError``.

        ``rows`` is asked again where another node changed the topic meanwhile; what it raises ends
        the change.
        """
        await self._alter(call, queue, lambda record: msgspec.structs.replace(record, moves=rows()))

    async def _alter(
        self,
        call: SqsCall,
        queue: QueueView,
        changed: Callable[[QueueRecord], QueueRecord],
        new: Mapping[str, str] | None = None,
    ) -> None:
        """Change the record; begin anew where another node changed the topic meanwhile.

        SDKs do not repeat what was refused as a conflict.
        """
        path, pause_s = topic_path(queue.topic.name), _CONFLICT_PAUSE_S
        async with self._changing:
            for _ in range(_CONFLICTS_MAX):
                known = queue.topic.settings.sqs
                settings = settings_of(new or {}, changed(read_record(known)))
                body = {"settings": settings, "expected": {RECORD: known}}
                response = await self._calls.ask(call, "PATCH", path, body)
                if problem_code(response) != "conflict":
                    break
                await asyncio.sleep(pause_s * uniform(0.5, 1))  # nodes do not meet again
                pause_s *= 2
        if response.status >= 400:
            raise error_of(response)

    async def tags(self, call: SqsCall) -> dict[str, Any]:
        """ListQueueTags."""
        queue = await self.locate(call, call.shape.queue_url)
        tags = read_record(queue.topic.settings.sqs).tags
        return {"Tags": tags} if tags else {}

    async def tag(self, call: SqsCall) -> None:
        """TagQueue."""
        if not call.shape.tags:
            raise missing_parameter("Tags")
        queue = await self.locate(call, call.shape.queue_url)

        def changed(record: QueueRecord) -> QueueRecord:
            tags = _checked_tags({**record.tags, **call.shape.tags})
            return msgspec.structs.replace(record, tags=tags)

        await self.change(call, queue, changed)

    async def untag(self, call: SqsCall) -> None:
        """UntagQueue."""
        if not call.shape.keys:
            raise missing_parameter("TagKeys")
        queue = await self.locate(call, call.shape.queue_url)

        def changed(record: QueueRecord) -> QueueRecord:
            tags = {key: value for key, value in record.tags.items() if key not in call.shape.keys}
            return msgspec.structs.replace(record, tags=tags)

        await self.change(call, queue, changed)

    async def purge(self, call: SqsCall) -> None:
        """PurgeQueue: the group goes on behind the newest message, and all leases end."""
        queue = await self.locate(call, call.shape.queue_url)
        path = self.group_path(queue, "/reset")
        response = await self._calls.ask(call, "POST", path, {"to": "latest"})
        if response.status >= 400:
            raise error_of(response)

    def now_ms(self) -> int:
        """Return the time of the node's clock."""
        return self._broker.clock.wall_ms()

    def _now_s(self) -> int:
        return self.now_ms() // 1000


def topic_path(name: str) -> str:
    """Return the path of a queue's topic."""
    return f"/v1/topics/{name}"


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


def _checked_tags(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > TAGS_MAX:
        raise invalid_parameter(f"Too many tags: a queue has at most {TAGS_MAX}.")
    for key, value in tags.items():
        if key.lower().startswith(_AWS_TAG):
            raise invalid_parameter(f"Tag keys that begin with {_AWS_TAG} are reserved.")
        if not 1 <= len(key) <= TAG_KEY_CHARS_MAX or len(value) > TAG_VALUE_CHARS_MAX:
            raise invalid_parameter(
                f"A tag has a key of 1 to {TAG_KEY_CHARS_MAX} characters and a value of at most"
                f" {TAG_VALUE_CHARS_MAX}."
            )
    return tags
