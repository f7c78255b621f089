"""The log of the audit trail: partition 0 of the topic ``__audit``.

The topic is an ordinary one: replicated, read, replayed and exported as others. It is created with
the first record. Clients may not publish to it, change it or delete it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from goq import limits
from goq.broker.topic.topic import Topic
from goq.config.topic import TopicSettings
from goq.errors import NodeFull, StorageFull, TimedOut, TopicExists, Unavailable
from goq.frame.encoder import columns_from_messages, encode_frame
from goq.frame.view import FrameView
from goq.model import Message

AUDIT_SETTINGS: Final = TopicSettings().changed(
    {
        "retention.age": "90d",
        "retention.bytes": "none",
        "delivery.dead_letters": False,
        "delivery.max_attempts": "none",
    }
)
_PARTITION: Final = 0
_RETRY_S: Final = 0.05
_DEDUP_ID_BYTES: Final = 16


class AuditLog:
    """Appends records; ``topic`` returns the topic, created if it is missing.

    While ``may_append`` says that some node does not know the topic, nothing is appended.
    """

    def __init__(
        self, topic: Callable[[], Awaitable[Topic]], may_append: Callable[[], bool]
    ) -> None:
        self._topic = topic
        self._may_append = may_append

    async def append(self, key: str, value: bytes) -> None:
        """Store a record once, on disk and on the quorum.

        Raises ``TimedOut``, and ``StorageFull`` or ``NodeFull`` at once.
        """
        if not self._may_append():
            return
        record = Message(value, key.encode(), dedup_id=secrets.token_bytes(_DEDUP_ID_BYTES))
        try:
            async with asyncio.timeout(limits.AUDIT_WAIT_S):
                await self._append(record)
        except TimeoutError:
            raise TimedOut("the audit trail does not take a record in time") from None

    async def _append(self, message: Message) -> None:
        view = FrameView.parse(encode_frame(columns_from_messages([message])))
        while True:
            try:
                topic = await self._topic()
                target = topic.publisher.own_target(_PARTITION)
                target.check_publish(len(view.buffer))
                await target.publish(view)
                return
            except (StorageFull, NodeFull):
                raise
            except (TopicExists, Unavailable):  # another node makes it, or it gets another leader
                await asyncio.sleep(_RETRY_S)
