"""Publishing to a partition that another node leads: the caller and the leader's handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from goq.broker.broker import Broker
from goq.broker.log.pending_appends import Appended
from goq.broker.log.shared_frame import SharedBy, frame_of
from goq.broker.partition.appender import Appender
from goq.clock import Clock
from goq.cluster.rpc.frame_body import join_head, split_head
from goq.cluster.rpc.server import CALL_PREFIX, RpcHandler
from goq.delivery.dedup.producer_table import ProducerTable
from goq.delivery.events.event import SnapshotProducers
from goq.errors import (
    InvalidFrame,
    NotLeader,
    PartitionNotFound,
    PartitionOffline,
    TopicNotFound,
    Unavailable,
)
from goq.frame.relative_times import with_absolute_times
from goq.frame.validation import check_body_crc
from goq.frame.view import FrameView
from goq.model import Acks, Message

PUBLISH, PRODUCERS = CALL_PREFIX + "publish", CALL_PREFIX + "producers"
_NO_LEADER_TIMEOUT_S = 5.0
_RETRY_S = 0.05

T = TypeVar("T")
_Rows = list[tuple[int, int, list[tuple[int, int, int, int, int]]]]
"""Producers: their ids, epochs and latest batches."""

CallLeader = Callable[[str, int, str, bytes], Awaitable[bytes]]
"""Calls a partition's leader: topic, number, path, body. ``NotLeader`` while there is none."""


class _PublishRequest(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    number: int
    client_id: str | None
    acks: Acks


class _ProducersRequest(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    number: int
    producer_id: int


class _PublishResponse(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    time_us: int
    duplicate: bool
    left_out: list[tuple[int, int, int]]


class RemotePartition:
    """A partition that another node leads, as a target of publishing.

    Implements ``broker.partition.publish_target.PublishTarget``. ``leader_counts_delays`` returns
    whether every leader knows relative times; until then they are counted here, by ``clock``.
    """

    def __init__(
        self,
        topic: str,
        number: int,
        call: CallLeader,
        clock: Clock,
        leader_counts_delays: Callable[[], bool],
    ) -> None:
        self._topic = topic
        self._number = number
        self._call = call
        self._clock = clock
        self._leader_counts_delays = leader_counts_delays

    def check_publish(self, frame_bytes: int) -> None:
        """Accept any frame: the leader checks it."""

    def publish(
        self, view: FrameView, client_id: str | None = None, *, acks: Acks = Acks.QUORUM
    ) -> asyncio.Future[Appended]:
        """Publish a frame to the leader; return a future of where it was appended."""
        if not self._leader_counts_delays():
            view = with_absolute_times(view, self._clock.wall_us())
        head = msgspec.msgpack.encode(_PublishRequest(self._topic, self._number, client_id, acks))
        body = b"".join(join_head(head, [view.header.pack(), view.body]))
        return asyncio.ensure_future(self._publish(body))

    def publish_message(
        self, message: Message, by: SharedBy, client_id: str | None = None
    ) -> asyncio.Future[Appended]:
        """Publish a message to the leader, in a frame of its own."""
        return self.publish(
            frame_of([message], by.producer, by.default_lane), client_id, acks=by.acks
        )

    async def _publish(self, body: bytes) -> Appended:
        answer = await self._call_until_led(PUBLISH, body)
        stored = msgspec.msgpack.decode(answer, type=_PublishResponse)
        return Appended(stored.offset, stored.time_us, stored.duplicate, stored.left_out)

    async def producers(self, producer_id: int) -> ProducerTable:
        """Return the leader's state of a producer."""
        body = msgspec.msgpack.encode(_ProducersRequest(self._topic, self._number, producer_id))
        answer = await self._call_until_led(PRODUCERS, body)
        table = ProducerTable()
        table.restore(SnapshotProducers(msgspec.msgpack.decode(answer, type=_Rows)))
        return table

    async def _call_until_led(self, path: str, body: bytes) -> bytes:
        """Call the leader; while there is none to reach, wait for the next for a few seconds.

        Raises ``TimedOut`` at once if the leader may have carried the call out.
        """
        until = asyncio.get_running_loop().time() + _NO_LEADER_TIMEOUT_S
        while True:
            try:
                return await self._call(self._topic, self._number, path, body)
            except Unavailable as error:
                if error.code not in (NotLeader.code, Unavailable.code):
                    raise  # the others certainly had no effect
                if asyncio.get_running_loop().time() >= until:
                    raise PartitionOffline(
                        f"partition {self._number} of {self._topic} has no leader now; goq cluster"
                        " status says why",
                        retry_after_ms=1000,
                    ) from error
            await asyncio.sleep(_RETRY_S)


class ForwardedPublishServer:
    """Handles what other nodes publish to partitions that this node leads.

    ``catch_up`` waits for the metadata that the caller may have seen already.
    """

    def __init__(self, broker: Broker, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._broker = broker
        self._catch_up = catch_up

    def handlers(self) -> dict[str, RpcHandler]:
        """Return the handlers by path."""
        return {PUBLISH: self.handle_publish, PRODUCERS: self.handle_producers}

    async def handle_publish(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Append a frame that a client sent to another node."""
        head, frame = split_head(body)
        request = _decoded(head, _PublishRequest)
        view = FrameView.parse(frame)
        check_body_crc(view)
        appender = await self._appender(request)
        appender.check_publish(view.header.frame_bytes)
        appending = appender.publish(view, request.client_id, acks=request.acks)
        appended = await appending
        left_out = list(appended.left_out)
        stored = _PublishResponse(appended.offset, appended.time_us, appended.duplicate, left_out)
        return [msgspec.msgpack.encode(stored)]

    async def handle_producers(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Return the state of a producer."""
        request = _decoded(body, _ProducersRequest)
        appender = await self._appender(request)
        known = appender.producer_snapshot(request.producer_id)
        return [msgspec.msgpack.encode(known.producers)]

    async def _appender(self, request: _PublishRequest | _ProducersRequest) -> Appender:
        try:
            return self._find(request)
        except (TopicNotFound, PartitionNotFound):
            await self._catch_up()
        return self._find(request)

    def _find(self, request: _PublishRequest | _ProducersRequest) -> Appender:
        return self._broker.topic(request.topic).partitions[request.number].appender


def _decoded(data: bytes | memoryview, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidFrame(f"this call cannot be read: {error}") from None
