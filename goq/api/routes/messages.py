"""Routes of messages: publish, and reads of a partition's log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from goq import limits
from goq.api.codec.frames import frames_response, lanes_of
from goq.api.codec.messages import JsonMessages, json_response, messages_json
from goq.api.codec.negotiation import wants_frames
from goq.api.codec.publish_answer import PublishAnswer, answer_tail, frames_answer
from goq.api.codec.publish_request import (
    CHECKED_AT_ONCE_BYTES,
    check_lanes,
    decode_frames,
    decode_messages,
    decode_small,
    only_message,
    parse_acks,
)
from goq.api.codec.request import (
    CLIENT_ID,
    LANES,
    duration_ms,
    media_type,
    parse_client_id,
    query_flag,
    query_int,
    size_bytes,
    time_us,
)
from goq.api.needs import PUBLISH, READ
from goq.api.route import FRAMES, Parameter, Route
from goq.api.routing_policy import ToPartitionLeader, partition_of_query
from goq.api.schemas.messages import MessagesOut, Publish, PublishedOut, PublishOut
from goq.api.values import DURATION, FLAG, SIZE, TIME, integer, one_of, some_of
from goq.api.views.log_read import RangeRead, RangeReader, damaged_json, read_skipping_compacted
from goq.api.views.principal_usage import PrincipalUsage
from goq.broker.broker import Broker
from goq.broker.retention.tiered_log import ArchiveView
from goq.broker.topic.publisher import PublishedMessage, mark_of
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.errors import InvalidInput, TopicNotFound
from goq.frame.projection import OPTIONAL_COLUMNS
from goq.frame.relative_times import absolute_ms
from goq.frame.slice import slice_frame
from goq.frame.view import FrameView
from goq.http.message import Request, Response
from goq.model import Acks, Message, check_name, format_topic_id
from goq.storage.log.time_range_reader import TimeRange
from goq.units import format_time_us

_READ_PARAMETERS = (
    Parameter("partition", "which partition to read", integer(), required=True),
    Parameter("offset", "the first offset; default the start of the log", integer()),
    Parameter("from_time", "only messages appended at or after this time", TIME),
    Parameter("to_time", "only messages appended before this time", TIME),
    Parameter(
        "limit",
        "at most so many messages; with bytes more",
        integer(1, limits.READ_BULK_MESSAGES_MAX, 100),
    ),
    Parameter(
        "bytes",
        "of frames: about so many bytes, however many messages",
        SIZE,
    ),
    Parameter(
        "without",
        "of frames: leave these out, with commas between them; values are then empty",
        some_of(OPTIONAL_COLUMNS),
    ),
    Parameter("wait", "hold the answer so long until there is something to read", DURATION),
    Parameter("include_deleted", "also what retention deleted and the archive has", FLAG),
    Parameter("as_of", "the log as it stood at this time, deleted messages included", TIME),
    Parameter("background", "as fast as live traffic leaves room for, no faster", FLAG),
)


class MessageRoutes:
    """Publish, and reads of the log."""

    def __init__(
        self,
        broker: Broker,
        usage: PrincipalUsage,
        nodes_with: Callable[[str], int] | None = None,
    ) -> None:
        """``nodes_with`` returns the number of nodes that have a topic's acknowledged messages."""
        self._broker = broker
        self._nodes_with = nodes_with
        self._usage = usage
        self._ranges = RangeReader(broker.background)

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                "/v1/topics/{topic}/messages",
                self.publish,
                "Publish messages",
                body=Publish,
                answer=PublishOut,
                parameters=(
                    Parameter("acks", "where the body does not say", one_of(Acks)),
                    Parameter("topic_id", "refuse if the topic of this name has another id"),
                ),
                errors=(
                    "invalid_input",
                    "invalid_frame",
                    "too_large",
                    "lanes_changed",
                    "out_of_order_sequence",
                    "producer_fenced",
                    "storage_full",
                    "quota_exceeded",
                    "node_full",
                ),
                headers=(
                    Parameter(CLIENT_ID, "what the producer calls itself"),
                    Parameter(LANES, "of frames: refuse if the topic has other lanes"),
                ),
                takes_frames=True,
                is_brief=True,
                needs=PUBLISH,
            ),
            Route(
                "GET",
                "/v1/topics/{topic}/messages",
                self.read,
                "Read a partition's log",
                answer=MessagesOut,
                parameters=_READ_PARAMETERS,
                errors=("topic_not_found", "partition_not_found", "too_many_requests"),
                gives_frames=True,
                waits=True,
                routing=ToPartitionLeader(partition_of_query),
                needs=READ,
            ),
        ]

    def publish(self, request: Request, name: str) -> Awaitable[Response]:
        """Publish messages, as JSON or as frames."""
        topic = self._broker.topics.get(name)
        if request.query_string and "topic_id" in request.query:
            _check_id(name, topic, request.query["topic_id"])
        is_simple = (
            topic is not None
            and self._nodes_with is None
            and (request.principal is None or not request.principal.quotas)
        )
        if media_type(request) == FRAMES:
            return self._publish_frames_soon(request, name, topic if is_simple else None)
        decoded = decode_small(request)
        answer = None
        if topic and is_simple and decoded is not None:
            answer = self._publish_message(request, decoded, topic)
        return answer or self._publish_messages(request, name, decoded)

    def _publish_message(
        self, request: Request, publish: Publish, topic: Topic
    ) -> PublishAnswer | None:
        """Begin to publish a single message; None if that takes more than a write."""
        one = only_message(publish, topic.settings, self._broker.clock.wall_us())
        if one is None:
            return None
        client_id = parse_client_id(request)
        acks, producer = parse_acks(request, publish.acks), mark_of(client_id)
        answer = PublishAnswer(topic.name, _tail_of(topic))
        partition = topic.publisher.publish_at_once(one, producer, client_id, acks, answer)
        if partition is None:
            return None
        answer.partition = partition
        return answer

    def _publish_frames_soon(
        self, request: Request, name: str, topic: Topic | None
    ) -> Awaitable[Response]:
        """Publish frames; begin at once with the only frame of a small request to a ``topic``."""
        if topic is None or len(request.body) > CHECKED_AT_ONCE_BYTES:
            return self._publish_frames(request, name)
        check_lanes(request, topic.settings)
        frames = decode_frames(request.body, topic.settings, self._broker.clock.wall_ms())
        if len(frames) == 1:
            count = frames[0][1].header.message_count
            answer = PublishAnswer(topic.name, _tail_of(topic), count=count)
            partition = topic.publisher.publish_frame_at_once(
                frames[0], parse_client_id(request), parse_acks(request), answer
            )
            if partition is not None:
                answer.partition = partition
                return answer
        return self._publish_frames(request, name, frames)

    async def _publish_frames(
        self, request: Request, name: str, frames: Sequence[tuple[int, FrameView]] | None = None
    ) -> Response:
        topic = self._broker.topics.get(name)
        client_id, acks = parse_client_id(request), parse_acks(request)
        if frames is None:
            settings = (
                topic.settings if topic else self._broker.topic_admin.settings_for_publish(name)
            )
            now_ms = self._broker.clock.wall_ms()
            if len(request.body) <= CHECKED_AT_ONCE_BYTES:
                frames = decode_frames(request.body, settings, now_ms)
            else:
                frames = await asyncio.to_thread(decode_frames, request.body, settings, now_ms)
        if request.principal is not None and request.principal.quotas:
            await self._usage.admit_frames(request.principal, [view for _, view in frames])
        topic = topic or await self._create(name)
        check_lanes(request, topic.settings)
        stored_frames = await topic.publisher.publish_frames(frames, client_id, acks=acks)
        return await frames_answer(self._published(topic, [], acks), stored_frames)

    async def _publish_messages(
        self, request: Request, name: str, decoded: Publish | None
    ) -> Response:
        topic = self._broker.topics.get(name)
        settings = topic.settings if topic else self._broker.topic_admin.settings_for_publish(name)
        client_id, now_us = parse_client_id(request), self._broker.clock.wall_us()
        placed, acks = await decode_messages(request, decoded, settings, now_us)
        if request.principal is not None and request.principal.quotas:
            await self._usage.admit_messages(request.principal, placed)
        topic = topic or await self._create(name)
        stored_messages = await topic.publisher.publish_messages(placed, client_id, acks=acks)
        results, time_slice = [], TimeSlice()
        for asked, stored in zip(placed, stored_messages, strict=True):
            results.append(_message_result(name, asked.content, stored))
            if time_slice.is_over:
                await time_slice.next()
        return json_response(self._published(topic, results, acks))

    def _published(self, topic: Topic, results: list[PublishedOut], acks: Acks) -> PublishOut:
        out = PublishOut(results, topic.settings.fsync, topic.partitions.count)
        if self._nodes_with is not None:
            out.acks = acks
            out.nodes = 1 if acks is Acks.LEADER else self._nodes_with(topic.name)
        return out

    async def _create(self, name: str) -> Topic:
        check_name(name, "topic")
        return await self._broker.topic_admin.topic_for_publish(name)

    async def read(self, request: Request, name: str) -> Response:
        """Read messages of a partition in order."""
        topic = self._broker.topic(name)
        if "partition" not in request.query:
            raise InvalidInput("say which partition to read", field="partition")
        number = query_int(request, "partition", 0)
        partition = topic.partitions[number]
        limit, bytes_max = _bounds(request)
        wait_ms = duration_ms(request.query.get("wait", "0"), "wait", limits.WAIT_MS_MAX)
        start = query_int(request, "offset", 0)
        times, background = self._times(request), query_flag(request, "background")
        archive, as_frames = self._archive_view(request), wants_frames(request)
        without = _without(request)
        in_thread = background or bool(without) or archive is not None or bytes_max is not None
        if times is not None or in_thread:
            if "to_time" in request.query or "as_of" in request.query:
                wait_ms = 0
            times = times or TimeRange()
            asked = RangeRead(
                topic,
                number,
                start,
                times,
                limit,
                wait_ms,
                as_frames,
                background,
                archive,
                bytes_max,
                without,
            )
            return await self._ranges.answer(asked)
        start = max(start, partition.log_start_offset)
        if wait_ms:
            await topic.receiver.log_readers.wait(number, start, wait_ms)
            partition = topic.partitions[number]
        end = partition.end_offset
        start, reading = await read_skipping_compacted(partition, start, end, limit)
        stop = max(start, min(reading.next_offset, end, start + limit))
        if as_frames:
            parts = [
                (number, slice_frame(view, start, stop))
                for view in reading.frames
                if view.header.base_offset < stop
            ]
            preface = {
                "next": stop,
                "start": partition.log_start_offset,
                "end": partition.end_offset,
                "damaged": damaged_json(number, reading, stop),
                "lanes": lanes_of(topic),
            }
            return frames_response(preface, parts)
        found = JsonMessages(limits.READ_BYTES_MAX)
        for out in messages_json(topic, number, reading.frames, start, stop):
            if not await found.add(out):
                stop = out.offset
                break
        return found.response(MessagesOut([], stop, damaged_json(number, reading, stop)))

    def _archive_view(self, request: Request) -> ArchiveView | None:
        """Return the archive to read with the live log; None to read the live log only."""
        text, as_of_us = request.query.get("as_of"), None
        if text is not None:
            as_of_us = time_us(text, "as_of", self._broker.clock.wall_us())
        asked = query_flag(request, "include_deleted") or text is not None
        return ArchiveView(self._broker.archive, as_of_us) if asked else None

    def _times(self, request: Request) -> TimeRange | None:
        """Return the requested time range, None without one."""
        query, now_us = request.query, self._broker.clock.wall_us()
        given = {
            "from_us" if name == "from_time" else "to_us": time_us(query[name], name, now_us)
            for name in ("from_time", "to_time")
            if name in query
        }
        times = TimeRange(**given)
        if len(given) == 2 and times.from_us > times.to_us:
            raise InvalidInput("to_time is before from_time", field="to_time")
        return times if given else None


def _check_id(name: str, topic: Topic | None, topic_id: str) -> None:
    """Raise ``TopicNotFound`` unless the topic is the one that is meant."""
    if topic is None or format_topic_id(topic.id) != topic_id:
        raise TopicNotFound(
            f"{name} is not the topic of the id {topic_id!r:.50}: it was deleted, or created again",
            field="topic_id",
        )


def _bounds(request: Request) -> tuple[int, int | None]:
    """Return the maximum of messages, and of bytes if it was given."""
    if "bytes" not in request.query:
        return query_int(request, "limit", 100, minimum=1, maximum=limits.READ_MESSAGES_MAX), None
    if not wants_frames(request):
        raise InvalidInput(f"bytes bounds frames: accept {FRAMES}, or give limit", field="bytes")
    bytes_max = size_bytes(request.query["bytes"], "bytes", limits.READ_BYTES_MAX)
    most = limits.READ_BULK_MESSAGES_MAX
    return query_int(request, "limit", most, minimum=1, maximum=most), bytes_max


def _without(request: Request) -> list[str]:
    """Return the columns to leave out of frames."""
    if "without" not in request.query:
        return []
    if not wants_frames(request):
        raise InvalidInput(f"columns are left out of frames only: accept {FRAMES}", field="without")
    names = request.query["without"].split(",")
    for name in names:
        if name not in OPTIONAL_COLUMNS:
            raise InvalidInput(
                f"{name[:50]!r} cannot be left out, only {' and '.join(OPTIONAL_COLUMNS)}",
                field="without",
            )
    return names


def _tail_of(topic: Topic) -> bytes:
    return answer_tail(topic.settings.fsync, topic.partitions.count)


def _message_result(topic: str, message: Message, stored: PublishedMessage) -> PublishedOut:
    text = f"{topic}:{stored.partition}:{stored.offset}"
    result = PublishedOut(
        partition=stored.partition,
        offset=stored.offset,
        timestamp=format_time_us(stored.time_us),
        id=text,
    )
    if stored.is_repetition:
        result.duplicate_of = text
    elif message.deliver_at_ms > stored.time_us // 1000:
        result.deliver_at = format_time_us(message.deliver_at_ms * 1000)
    elif message.deliver_at_ms < 0:
        due_ms = absolute_ms(-message.deliver_at_ms, stored.time_us)
        result.deliver_at = format_time_us(due_ms * 1000)
    return result
