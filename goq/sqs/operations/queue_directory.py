"""The queues of the endpoint: found by their URLs, counted, and changed in their records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import uniform
from typing import Final

import msgspec

from goq.broker.broker import Broker
from goq.config.sqs import SqsConfig
from goq.errors import GoqError
from goq.model import AUDIT_TOPIC
from goq.sqs.attributes import RECORD, MoveRecord, QueueRecord, read_record, settings_of
from goq.sqs.node_calls import NodeCalls, SqsCall, decoded
from goq.sqs.protocol.bounds import RELAXED, STRICT
from goq.sqs.protocol.errors import (
    SqsError,
    error_of,
    error_of_goq,
    problem_code,
    queue_missing,
)
from goq.sqs.queue_view import QueueView, name_of_url

_CONFLICT_S_MAX: Final = 20.0  # less than SDKs wait for an answer
_CONFLICT_PAUSE_S: Final = 0.02
_CONFLICT_PAUSE_S_MAX: Final = 0.5


class _GroupCounts(msgspec.Struct):
    ready: int = 0
    leased: int = 0
    retry: int = 0
    scheduled: int = 0


class QueueDirectory:
    """Finds the queue that a request names, and changes the record in its topic's settings."""

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

    def url(self, call: SqsCall, name: str) -> str:
        """Return the URL of a queue, as the sender reaches this node."""
        return f"{call.base_url}/{self._config.account}/{name}"

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
        now_s = self.now_s()

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

        SDKs do not repeat what was refused as a conflict. A node that is slow to hear of other
        nodes' changes meets them for longer.
        """
        path, pause_s = topic_path(queue.topic.name), _CONFLICT_PAUSE_S
        now_s = asyncio.get_running_loop().time
        async with self._changing:
            until_s = now_s() + _CONFLICT_S_MAX
            while True:
                known = queue.topic.settings.sqs
                settings = settings_of(new or {}, changed(read_record(known)))
                body = {"settings": settings, "expected": {RECORD: known}}
                response = await self._calls.ask(call, "PATCH", path, body)
                if problem_code(response) != "conflict":
                    break
                if now_s() >= until_s:
                    raise SqsError(
                        "ServiceUnavailable", "Other nodes change the queue at the same time.", 503
                    )
                await asyncio.sleep(pause_s * uniform(0.5, 1))  # nodes do not meet again
                pause_s = min(2 * pause_s, _CONFLICT_PAUSE_S_MAX)
        if response.status >= 400:
            raise error_of(response)

    def now_ms(self) -> int:
        """Return the time of the node's clock."""
        return self._broker.clock.wall_ms()

    def now_s(self) -> int:
        """Return the time of the node's clock, in seconds."""
        return self.now_ms() // 1000


def topic_path(name: str) -> str:
    """Return the path of a queue's topic."""
    return f"/v1/topics/{name}"
