"""Push streams: consumers that get messages as they become ready, up to a credit."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from goq import limits
from goq.broker.partition.leases import LeasedBatch
from goq.broker.topic.stream_credit import CreditAccount
from goq.broker.topic.topic import Topic
from goq.broker.topic.topic_leases import LeaseRoom, ReceiveRequest, unless_recorded
from goq.clock import TimeSlice
from goq.errors import (
    Conflict,
    GoqError,
    PartitionOffline,
    StreamNotFound,
    TooManyRequests,
)

CONNECTION_CLOSED: Final = "connection closed"
_WAIT_MS: Final = 3_600_000  # then a stream joins the queue of waiters again
_PAUSE_MS: Final = 1_000  # after a retryable refusal without a retry time
_OFFLINE_MAX: Final = 30  # refusals in a row, about a second apart, until a stream ends


EndLeases = Callable[[str, str, int, list[int]], object]
"""Ends leases whose connection closed, at their leader: topic, group, partition, tokens."""


class PushStreamOptions(msgspec.Struct, frozen=True):
    """The parameters of a new stream.

    ``credit`` is the maximum of messages in flight at a time. ``messages_max`` is the maximum that
    the stream delivers in all, None for no maximum.
    """

    consumer: str
    credit: int
    messages_max: int | None
    visibility_ms: int | None
    session_id: str = ""
    """The client's loop, which opens one stream at a time; "" if the connection is the session."""
    room: LeaseRoom | None = None
    merged_id: str = ""
    """The client's stream at a node, perhaps another one, that this stream is a part of."""
    is_reopened: bool = False
    """Whether that had a part here before."""


class PushStream:
    """A consumer of a group whose session is a connection, or the client's loop behind it.

    When the connection closes, the leases of the stream end at once, as if their deadlines had
    passed. When the consumer or a stopping node ends the stream, the leases last until their
    deadlines: the consumer can still settle them.
    """

    def __init__(self, topic: Topic, group: str, options: PushStreamOptions) -> None:
        self.id = secrets.token_hex(8)
        self.topic = topic
        self.group = group
        self.merged_id = options.merged_id
        self.is_reopened = options.is_reopened
        self.account = CreditAccount(options.credit, group, options.consumer)
        self.ended = False
        self._messages_left = options.messages_max
        self._asked = ReceiveRequest(
            options.consumer,
            0,
            limits.RECEIVE_BYTES_MAX,
            _WAIT_MS,
            options.visibility_ms,
            options.session_id or self.id,
            self.account,
            options.room,
            options.merged_id,
        )
        self._task: asyncio.Task[object] | None = None
        self._refusals = 0
        self._presence = contextlib.ExitStack()
        self._restart_count = -1

    def join(self) -> None:
        """Join the group, if its partitions belong to one consumer each.

        The session lasts until :meth:`leave`, also without credit. Raises as
        :meth:`Coordinator.session` does.
        """
        receiver = self.topic.receiver
        if self._restart_count != receiver.restart_count:
            self._presence.close()
            asked = self._asked
            self._presence.enter_context(
                receiver.presence(self.group, asked.consumer, asked.session_id)
            )
            self._restart_count = receiver.restart_count

    @property
    def session(self) -> tuple[int, str, str]:
        """The topic, the group and the member that the stream is for."""
        return self.topic.id, self.group, self._asked.member

    def _is_hung(self) -> bool:
        """Return whether the stream is to show life before it gets messages of its partitions."""
        return self.account.expired_count > 0 and self.topic.receiver.has_members(self.group)

    def _pause_membership(self) -> None:
        """Start the session timeout: the open connection alone does not keep the partitions."""
        self._presence.close()
        self._restart_count = -1

    def release_presence(self) -> None:
        """Leave the membership to the stream that took the place of this one."""
        self._presence.close()

    def leave(self) -> None:
        """Leave the group: the connection closed, or the consumer ended the stream."""
        self._presence.close()
        with contextlib.suppress(GoqError):  # it left or was evicted before, or never joined
            self.topic.coordinator.leave(self.group, self._asked.consumer, self._asked.session_id)

    async def next(self) -> list[LeasedBatch]:
        """Wait for messages and credit, and return the next batches; [] at the end of the stream.

        Retries after retryable errors. Raises any other error of a receive, and
        ``PartitionOffline`` when all partitions have been offline for half a minute.
        """
        self._task = task = asyncio.current_task()
        assert task is not None
        deliveries: list[LeasedBatch] = []
        try:
            while not (deliveries or self.ended or self.topic.is_closed):
                deliveries = await self._some()
        except asyncio.CancelledError:
            if not self.ended or task.uncancel():
                raise
        except GoqError:
            if not self.topic.is_closed:
                raise
        finally:
            self._task = None
        return deliveries

    async def _some(self) -> list[LeasedBatch]:
        room = min(self.account.room, limits.RECEIVE_MESSAGES_MAX)
        if self._messages_left is not None:
            self.ended = self._messages_left <= 0  # the last ones are on their way
            room = min(room, self._messages_left)
        if self.ended:
            return []
        try:
            is_idle = self._is_hung()
            if is_idle:
                self._pause_membership()
            else:
                self.join()
            if is_idle or room <= 0:
                await self.account.changed()
                return []
            deliveries = await self.topic.receiver.receive(
                self.group, replace(self._asked, messages_max=room)
            )
        except GoqError as error:
            if self.topic.is_closed or not error.retryable:
                raise
            self._refusals = self._refusals + 1 if isinstance(error, PartitionOffline) else 0
            if self._refusals > _OFFLINE_MAX:
                raise
            await asyncio.sleep((error.retry_after_ms or _PAUSE_MS) / 1000)
            return []
        self._refusals = 0
        for delivery in deliveries:
            key = delivery.partition, delivery.token
            self.topic.credits.leased(self.group, self.account, key, delivery.spans)
            if self._messages_left is not None:
                self._messages_left -= delivery.message_count
        return deliveries

    def grant(self, more: int, maximum: int | None = None) -> None:
        """Set the credit to ``maximum``, or to ``more`` than the messages in flight now.

        A grant of more is a sign of life; a client may set a maximum for a caller that hangs. It
        counts at once, also for a stream that waits for messages.
        """
        if maximum is None:
            self.topic.settler.on_grant(self.account)
            maximum = self.account.in_flight + more
        self.account.grant(min(maximum, limits.STREAM_IN_FLIGHT_MESSAGES_MAX))

    def end(self) -> None:
        """Deliver nothing more; the consumer keeps its leases."""
        if not self.ended:
            self.ended = True
            if self._task is not None:
                self._task.cancel()


class PushStreams:
    """The open streams of a node, by their ids.

    A session has one stream. A new one takes the place of an older one, whose connection the node
    does not know to be broken: that one is closed, and its messages are ready again.
    """

    def __init__(self, end_elsewhere: EndLeases | None = None) -> None:
        """``end_elsewhere`` is for leases of partitions that other nodes lead by now."""
        self._end_elsewhere = end_elsewhere or _end_at_deadlines
        self._streams: dict[str, PushStream] = {}
        self._by_session: dict[tuple[int, str, str], PushStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    @staticmethod
    def check_room(topic: Topic, group: str) -> None:
        """Raise ``TooManyRequests`` when the maximum of consumers waits in a group."""
        waiters = topic.receiver.waiters
        if waiters.count(group) >= waiters.count_max:
            raise TooManyRequests(
                f"{waiters.count(group)} consumers already wait in group {group}",
                retry_after_ms=1000,
            )

    def open(self, stream: PushStream) -> None:
        """Register a stream; the caller must :meth:`close` it.

        Raises ``Conflict`` if it is reopened for a client's stream whose session has a newer one.
        """
        older = self._by_session.get(stream.session)
        if older is not None and stream.is_reopened and older.merged_id != stream.merged_id:
            raise Conflict("the session of this stream has a newer one")
        stream.join()
        self._streams[stream.id] = stream
        self._by_session[stream.session] = stream
        stream.topic.credits.opened(stream.account)
        if older is not None:
            self.close(older)
            older.end()

    def find(self, topic: str, group: str, stream_id: str) -> PushStream:
        """Return an open stream of a group; raise ``StreamNotFound``."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended or (stream.topic.name, stream.group) != (topic, group):
            raise StreamNotFound(
                f"group {group[:200]} has no stream {stream_id[:50]!r} here; open a new one"
            )
        return stream

    def close(self, stream: PushStream) -> None:
        """Remove a stream; unless it was ended before, its messages in flight are ready again."""
        if self._streams.pop(stream.id, None) is None:
            return  # another took its place
        if self._by_session.get(stream.session) is stream:
            del self._by_session[stream.session]
            stream.leave()
        else:
            stream.release_presence()
        account, topic = stream.account, stream.topic
        in_flight = [*account.spans, *account.moved]
        topic.credits.closed(account)
        if stream.ended or not in_flight:
            return
        tokens: dict[int, list[int]] = {}
        for number, token in in_flight:
            tokens.setdefault(number, []).append(token)
        self._end(topic, stream.group, tokens)

    def _end(self, topic: Topic, group: str, left: dict[int, list[int]]) -> None:
        """End leases, by partition, some in each step of the event loop; empties ``left``.

        Where this node leads no more, or does not until that is committed, the next leader does it.
        """
        time_slice = TimeSlice()
        while left:
            number, tokens = next(iter(left.items()))
            partition = topic.partitions.get(number)
            at_once = len(tokens) if partition is None else limits.LEASES_ENDED_AT_ONCE
            some = tokens[-at_once:]
            del tokens[-at_once:]
            if not tokens:
                del left[number]
            elsewhere = partial(self._end_elsewhere, topic.name, group, number, some)
            if partition is None:
                elsewhere()
            else:
                end = partial(partition.leases.end_leases, group, some, CONNECTION_CLOSED)
                unless_recorded(end, elsewhere)
            if left and time_slice.is_over:
                asyncio.get_running_loop().call_soon(self._end, topic, group, left)
                break
        topic.receiver.wake()

    def end_all(self) -> None:
        """End all streams: the node is stopping."""
        for stream in self._streams.values():
            stream.end()


def _end_at_deadlines(_topic: str, _group: str, _number: int, _tokens: list[int]) -> None:
    """No other node leads partitions of a standalone node."""
