"""Routes of topics."""

from __future__ import annotations

from goq.api.codec.messages import json_response
from goq.api.codec.request import json_body, settings_of
from goq.api.gateway.merge import is_whole, merge_topic, merge_topics
from goq.api.router import Route
from goq.api.routing import AtLeaders, Document, HereThenShown
from goq.api.schemas.bodies import (
    ArchivedOut,
    NewTopic,
    PartitionOut,
    TopicChange,
    TopicOut,
    TopicsOut,
)
from goq.broker.broker import Broker
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.http.message import Request, Response
from goq.model import check_name
from goq.units import format_time_us


def _path(topic: Document) -> str:
    return f"/v1/topics/{topic['name']}"


class TopicRoutes:
    """Create, list, show, alter, delete."""

    def __init__(self, broker: Broker, node_id: str) -> None:
        self._broker = broker
        self._node_id = node_id

    def routes(self) -> list[Route]:
        """Return the declarations."""
        missing = ("topic_not_found",)
        return [
            Route(
                "POST",
                "/v1/topics",
                self.create,
                "Create a topic",
                body=NewTopic,
                answer=TopicOut,
                status=201,
                errors=("topic_exists",),
                spread=HereThenShown(merge_topic, _path, is_whole),
            ),
            Route(
                "GET",
                "/v1/topics",
                self.list,
                "List topics",
                answer=TopicsOut,
                spread=AtLeaders(merge_topics),
            ),
            Route(
                "GET",
                "/v1/topics/{topic}",
                self.show,
                "Show a topic",
                answer=TopicOut,
                errors=missing,
                spread=AtLeaders(merge_topic),
            ),
            Route(
                "PUT",
                "/v1/topics/{topic}",
                self.use,
                "Show a topic, created first if there is none and the node is set to do so",
                answer=TopicOut,
                errors=missing,
                spread=HereThenShown(merge_topic, _path, is_whole),
            ),
            Route(
                "PATCH",
                "/v1/topics/{topic}",
                self.alter,
                "Change settings, or add partitions",
                body=TopicChange,
                answer=TopicOut,
                errors=missing,
                spread=HereThenShown(merge_topic, _path, is_whole),
            ),
            Route(
                "DELETE",
                "/v1/topics/{topic}",
                self.delete,
                "Delete a topic and all its messages",
                status=204,
                errors=missing,
            ),
        ]

    async def create(self, request: Request) -> Response:
        """Create a topic."""
        new = json_body(request, NewTopic)
        topic = await self._broker.create_topic(new.name, new.partitions, settings_of(new.settings))
        return json_response(self._topic(topic), 201)

    async def list(self, _request: Request) -> Response:
        """List topics by name."""
        topics = [self._topic(topic) for _, topic in sorted(self._broker.topics.items())]
        return json_response(TopicsOut(topics))

    async def show(self, _request: Request, name: str) -> Response:
        """Show a topic."""
        return json_response(self._timed(self._broker.topic(name)))

    async def use(self, _request: Request, name: str) -> Response:
        """Show a topic that is about to be published to."""
        if name not in self._broker.topics:
            check_name(name, "topic")
        return json_response(self._timed(await self._broker.topic_for_publish(name)))

    async def alter(self, request: Request, name: str) -> Response:
        """Change settings, or add partitions."""
        change = json_body(request, TopicChange)
        topic = await self._broker.alter_topic(
            name, settings_of(change.settings), change.partitions
        )
        return json_response(self._topic(topic))

    async def delete(self, _request: Request, name: str) -> Response:
        """Delete a topic."""
        await self._broker.delete_topic(name)
        return Response(204)

    def _timed(self, topic: Topic) -> TopicOut:
        """Return a topic with the node's time: what delays and relative times count from."""
        out = self._topic(topic)
        out.time = format_time_us(self._broker.clock.wall_us())
        return out

    def _topic(self, topic: Topic) -> TopicOut:
        out = TopicOut(
            name=topic.name,
            partitions=[self._partition(partition) for partition in topic.partitions],
            settings=topic.settings.written(),
        )
        here = {partition.identity.number for partition in topic.partitions}
        archived = self._broker.archive.of_topic(topic.name, here)
        if archived is not None:
            first_us = archived.first_time_us
            out.archived = ArchivedOut(
                archived.segments,
                archived.messages,
                archived.bytes,
                format_time_us(first_us) if first_us else None,
            )
        return out

    def _partition(self, partition: Partition) -> PartitionOut:
        log = partition.messages
        return PartitionOut(
            partition=partition.identity.number,
            leader=self._node_id,
            start_offset=log.start_offset,
            end_offset=log.end_offset,
            high_watermark=partition.state.end_offset,
            bytes=log.size_bytes,
            online=partition.is_online,
            damaged=[
                {"start_offset": d.start_offset, "end_offset": d.end_offset, "reason": d.reason}
                for d in log.damage
            ],
        )
