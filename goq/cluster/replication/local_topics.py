"""The topics of a node that is one of several: the broker's, as its replicas see them."""

from __future__ import annotations

from pathlib import Path

from goq.broker.broker import Broker
from goq.broker.partition.loader import PartitionLogs
from goq.broker.topic.topic import Leadership
from goq.cluster.replication.protocol import PartitionKey
from goq.config.topic import TopicSettings
from goq.errors import GoqError


class LocalTopics:
    """See ``replication.replicas.Topics``."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def directory(self, topic: str) -> Path:
        """Return where a topic's partitions lie."""
        return self._broker.topics_dir / topic

    def settings(self, topic: str) -> TopicSettings:
        """Return a topic's settings."""
        return self._broker.topic(topic).settings

    async def open(self, key: PartitionKey, logs: PartitionLogs, leadership: Leadership) -> None:
        """Let clients use a partition."""
        topic = self._broker.topic(key.topic)
        await topic.lead(key.number, logs, leadership)
        self._broker.keeper.wake_topic(topic)

    async def shut(self, key: PartitionKey, reason: GoqError) -> None:
        """Let clients use it no more, and close its logs."""
        await self._broker.topic(key.topic).resign(key.number, reason)
