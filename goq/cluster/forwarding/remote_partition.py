"""Publishing to a partition that another node leads, by a call to that node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from goq.broker.broker import Broker
from goq.broker.log.group_commit import Appended
from goq.cluster.rpc.framing import join_head, split_head
from goq.delivery.dedup.producer_table import ProducerTable
from goq.delivery.events.event import SnapshotProducers
from goq.errors import InvalidFrame, NotLeader, PartitionOffline, Unavailable
from goq.frame.encoder import DuplicateRow
from goq.frame.validation import check_body_crc
from goq.frame.view import FrameView

PUBLISH, PRODUCERS = "/cluster/publish", "/cluster/producers"
_PATIENCE_S = 5.0
_PAUSE_S = 0.05

T = TypeVar("T")
_Rows = list[tuple[int, int, list[tuple[int, int, int, int, int]]]]
"""Of producers: their ids, epochs and latest batches."""

CallLeader = Callable[[str, int, str, bytes], Awaitable[bytes]]
"""Calls the node that leads a partition: topic, number, path, body. ``NotLeader`` if none does."""


class _PublishRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str
    number: int
    client_id: str | None
    on_leader: bool


class _ProducersRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str
    number: int
    producer_id: int


class _PublishResponse(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    offset: int
    time_us: int
    duplicate: bool
    left_out: list[tuple[int, int, int]]


class RemotePartition:
    """See ``broker.targets.Target``."""

    def __init__(self, topic: str, number: int, call: CallLeader) -> None:
        self._topic = topic
        self._number = number
        self._call = call

    def check_publish(self, frame_bytes: int) -> None:
        """Whether it takes the frame is for the leader to say."""

    def publish(
        self, view: FrameView, client_id: str | None = None, *, on_leader: bool = False
    ) -> asyncio.Future[Appended]:
        """Have the leader store a frame."""
        head = msgspec.msgpack.encode(
            _PublishRequest(self._topic, self._number, client_id, on_leader)
        )
        body = b"".join(join_head(head, [view.header.pack(), view.body]))
        return asyncio.ensure_future(self._publish(body))

    async def _publish(self, body: bytes) -> Appended:
        answer = await self._ask(PUBLISH, body)
        stored = msgspec.msgpack.decode(answer, type=_PublishResponse)
        left_out = [DuplicateRow(*row) for row in stored.left_out]
        return Appended(stored.offset, stored.time_us, stored.duplicate, left_out)

    async def producers(self, producer_id: int) -> ProducerTable:
        """Return what the leader knows of a producer."""
        body = msgspec.msgpack.encode(_ProducersRequest(self._topic, self._number, producer_id))
        answer = await self._ask(PRODUCERS, body)
        table = ProducerTable()
        table.restore(SnapshotProducers(msgspec.msgpack.decode(answer, type=_Rows)))
        return table

    async def _ask(self, path: str, body: bytes) -> bytes:
        """Call the leader; where there is none for a moment, wait for the next."""
        until = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            try:
                return await self._call(self._topic, self._number, path, body)
            except NotLeader as error:  # it surely did nothing
                if asyncio.get_running_loop().time() >= until:
                    raise PartitionOffline(
                        f"partition {self._number} of {self._topic} has no leader now; goq cluster"
                        " status says why",
                        retry_after_ms=1000,
                    ) from error
            await asyncio.sleep(_PAUSE_S)


class ForwardedPublishServer:
    """The leader's side."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def answer_publish(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Store a frame that another node was given."""
        head, frame = split_head(body)
        asked = _decoded(head, _PublishRequest)
        view = FrameView.parse(frame)
        check_body_crc(view)
        partition = self._broker.topic(asked.topic).partition(asked.number)
        partition.check_publish(view.header.frame_bytes)
        done = partition.publish(view, asked.client_id, on_leader=asked.on_leader)
        try:
            appended = await done
        except NotLeader as error:  # it is stored here, and perhaps over there: nobody knows
            raise Unavailable(error.detail) from None
        rows = [(left.row, left.offset, left.time_us) for left in appended.left_out]
        stored = _PublishResponse(appended.offset, appended.time_us, appended.duplicate, rows)
        return [msgspec.msgpack.encode(stored)]

    async def answer_producers(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Say what is known of a producer."""
        asked = _decoded(body, _ProducersRequest)
        partition = self._broker.topic(asked.topic).partition(asked.number)
        known = partition.state.producers.snapshot_of(asked.producer_id)
        return [msgspec.msgpack.encode(known.producers)]


def _decoded(data: bytes | memoryview, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidFrame(f"this call cannot be read: {error}") from None
