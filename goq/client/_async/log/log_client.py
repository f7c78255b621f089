"""The calls that read the log of a topic: batches, merged reads, and replays.

The readers are imported by the first call that needs them: not every command reads a log.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from goq import limits
from goq.client._async.http import Http
from goq.client.arguments import (
    Duration,
    Time,
    as_bytes,
    as_time,
    check_callable,
    check_int,
    check_list,
    check_partition,
    wait_ms,
)
from goq.client.messages import CopyResult, LogMessage, ReadBatch
from goq.errors import InvalidInput
from goq.model import check_text
from goq.units import is_by_clock, parse_time_us

if TYPE_CHECKING:
    from goq.client._async.log.partition_reader import LogRange
    from goq.client._async.log.topic_reader import OnDamage
    from goq.client.replay_plan import Replay


class AsyncLogClient:
    """The calls that read a topic's log; base of the client."""

    _http: Http

    async def read(
        self,
        topic: str,
        *,
        partition: int,
        offset: int | None = None,
        from_time: Time | None = None,
        to_time: Time | None = None,
        limit: int | None = None,
        bytes_max: int | None = None,
        wait: Duration | None = None,
        background: bool = False,
        include_deleted: bool = False,
        without: Sequence[str] = (),
    ) -> ReadBatch:
        """Return one batch of a partition's log. Reading changes nothing, and needs no group.

        The batch begins at ``offset``, by default the first that the partition holds. With times it
        has the messages from there on that were appended at or after ``from_time`` and before
        ``to_time``; ``now`` and ``-1h`` are by the node's clock. To go on, read at the batch's
        ``next`` until that has reached its ``end``; a batch may be empty before.

        ``limit`` bounds the messages: 10,000 by default, and at most. ``bytes_max`` bounds the
        bytes instead, or as well. ``wait`` is how long the node may hold the answer until there is
        a message. In the ``background`` live traffic goes first. ``include_deleted`` reads from the
        archive what retention has deleted.

        The node does not send what the batch is ``without``: ``"value"``, ``"headers"`` or both.
        Values are then empty, except for tombstones, which are None. ``bytes_max`` counts what is
        left out, too. A node of an earlier version raises ``InvalidInput`` with the ``field``
        ``without``.

        Raises ``TopicNotFound``, ``PartitionNotFound``.
        """
        from goq.client._async.log.partition_reader import read
        from goq.client._async.log.topic_time import topic_time_us

        for value, field in ((offset, "offset"), (limit, "limit"), (bytes_max, "bytes_max")):
            check_int(value, field)
        check_partition(partition)
        check_list(without, "without")
        log_range = _log_range(offset, from_time, to_time, background)
        log_range = replace(log_range, include_deleted=include_deleted)
        if log_range.is_by_clock:
            log_range = log_range.at(await topic_time_us(self._http, topic))
        if limit is None and bytes_max is None:
            limit = limits.READ_MESSAGES_MAX
        return await read(
            self._http,
            topic,
            partition,
            log_range,
            limit=limit,
            bytes_max=bytes_max,
            wait_ms=wait_ms(wait),
            without=[check_text(column, "without") for column in without],
        )

    async def read_events(
        self,
        topic: str,
        *,
        partition: int,
        sequence: int = 0,
        background: bool = False,
        include_deleted: bool = False,
    ) -> ReadBatch:
        """Return one batch of a partition's event log, as frames.

        Offsets of the batch are sequences of events. ``background`` and ``include_deleted`` are as
        in :meth:`read`.
        """
        from goq.client._async.log.partition_reader import LogRange, read_events

        log_range = LogRange(sequence, background=background, include_deleted=include_deleted)
        return await read_events(self._http, topic, partition, log_range)

    def read_log(
        self,
        topics: str | Sequence[str],
        *,
        partition: int | None = None,
        from_offset: int | None = None,
        from_time: Time | None = None,
        to_time: Time | None = None,
        follow: bool = False,
        on_damage: OnDamage | None = None,
        before_wait: Callable[[], Awaitable[None]] | None = None,
        background: bool = False,
        wait_for_topic: bool = True,
        last: int | None = None,
    ) -> AsyncIterator[LogMessage]:
        """Yield the messages of all partitions, or of one, merged by append time.

        ``topics`` are names, or patterns as ``"orders.*"``: ``*``, ``?`` and ``[…]`` as in a shell,
        of 100 topics at most. Dead-letter topics match only a pattern that ends in ``.dlq``.

        Without bounds these are all from the beginning of the log to its end at the time of the
        call. With times, exactly those appended at or after ``from_time`` and before ``to_time``;
        ``now`` and ``-1h`` are by the node's clock, at the time of the call.
        ``from_offset`` is where to begin in each partition; a negative one counts from its end.
        ``last`` is instead of bounds: the newest messages of all partitions, so many, or fewer
        where compaction has removed some.

        With ``follow`` the iterator goes on at the end and waits for new messages. These come as
        they arrive: what arrives together is merged, but no message waits for an older one of
        another partition. ``before_wait`` is called before each wait. A topic that is not there
        yet is waited for, unless ``wait_for_topic`` is False; one that is created later and matches
        a pattern is followed from its beginning.

        In the ``background`` the node reads only as fast as its live traffic leaves room for.
        Damaged messages are passed to ``on_damage`` and skipped; without it they raise
        ``CorruptData``. Raises ``TopicNotFound``, ``PartitionNotFound``.
        """
        from goq.client._async.log.topic_reader import TopicReader

        check_int(from_offset, "from_offset")
        check_int(last, "last")
        check_callable(before_wait, "before_wait")
        check_callable(on_damage, "on_damage")
        reader = TopicReader(
            self._http,
            topics,
            check_partition(partition),
            _log_range(from_offset, from_time, to_time, background),
            follow=follow,
            on_damage=on_damage,
            before_wait=before_wait,
            wait_for_topic=wait_for_topic,
            last=last,
        )
        return reader.messages()

    async def replay(
        self,
        topic: str,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        partition: int | None = None,
        key: bytes | str | None = None,
        include_deleted: bool = False,
        as_of: Time | None = None,
    ) -> Replay:
        """Return a replay: which messages to read again, with absolute bounds. It reads nothing.

        The replay has the messages of all partitions, or of one, appended at or after ``from_time``
        and before ``to_time``, between the offsets if any are given, and with one key if one is
        given. It ends now, by the node's clock, where no earlier end is given. ``include_deleted``
        adds what is archived now, ``as_of`` what was archived at that time.

        Pass it to :meth:`read_replay` or :meth:`replay_into`. Raises ``TopicNotFound``,
        ``InvalidInput``.
        """
        from goq.client._async.log.replay_reader import resolve_replay

        check_int(from_offset, "from_offset")
        check_int(to_offset, "to_offset")
        return await resolve_replay(
            self._http,
            topic,
            from_time=from_time,
            to_time=to_time,
            from_offset=from_offset,
            to_offset=to_offset,
            partition=check_partition(partition),
            key=None if key is None else as_bytes(key, "key"),
            include_deleted=include_deleted,
            as_of=as_of,
        )

    def read_replay(
        self,
        replay: Replay,
        *,
        on_damage: OnDamage | None = None,
        before_wait: Callable[[], Awaitable[None]] | None = None,
    ) -> AsyncGenerator[LogMessage, None]:
        """Yield the messages of a replay, merged by append time; live traffic goes first.

        Damaged messages are passed to ``on_damage`` and skipped; without it they raise
        ``CorruptData``.
        """
        from goq.client._async.log.replay_reader import read_replay

        _check_replay(replay)
        check_callable(on_damage, "on_damage")
        check_callable(before_wait, "before_wait")
        return read_replay(self._http, replay, on_damage=on_damage, before_wait=before_wait)

    async def replay_into(
        self,
        replay: Replay,
        topic: str,
        *,
        batch: int = 1000,
        before_send: Callable[[int], Awaitable[None]] | None = None,
        on_stored: Callable[[int], None] | None = None,
        on_reached: Callable[[int, int], None] | None = None,
        on_damage: OnDamage | None = None,
    ) -> CopyResult:
        """Publish the messages of a replay to another topic, each exactly once.

        Messages that an earlier call with the same replay stored there are not stored again, even
        if that call failed. ``batch`` bounds the messages of a request. ``before_send`` is awaited
        before that many messages are sent, ``on_stored`` called after that many were stored, and
        ``on_reached`` with a partition and the offset of its last message that was.

        Raises ``TopicNotFound`` for either topic; ``Conflict`` if the progress of an earlier call
        cannot be determined.
        """
        from goq.client._async.log.topic_copy import CopyOptions, TopicCopy

        _check_replay(replay)
        check_int(batch, "batch")
        check_callable(before_send, "before_send")
        check_callable(on_stored, "on_stored")
        check_callable(on_reached, "on_reached")
        check_callable(on_damage, "on_damage")
        copy = TopicCopy(
            self._http,
            replay,
            topic,
            CopyOptions(batch, before_send, on_stored, on_reached, on_damage),
        )
        await copy.run()
        return CopyResult(copy.stored, copy.known)


def _log_range(
    offset: int | None, from_time: Time | None, to_time: Time | None, background: bool
) -> LogRange:
    from goq.client._async.log.partition_reader import LogRange

    return LogRange(offset, _bound(from_time, "from_time"), _bound(to_time, "to_time"), background)


def _bound(time: Time | None, field: str) -> str | None:
    """Return a time as a range has it. Raises ``InvalidInput``."""
    from goq.client._async.log.partition_reader import format_bound

    if time is None:
        return None
    text = as_time(time, field)
    time_us = parse_time_us(text, now_us=0, field=field)
    return str(text) if is_by_clock(text) else format_bound(time_us)


def _check_replay(replay: Replay) -> None:
    from goq.client.replay_plan import Replay

    if not isinstance(replay, Replay):
        raise InvalidInput(
            f"replay is what client.replay returns, not {type(replay).__name__}", field="replay"
        )
