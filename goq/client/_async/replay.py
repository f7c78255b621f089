"""What a client can do with the past of a topic: read it again, or copy it into another topic."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

from goq.client._async.http import Http
from goq.client._async.replay_reader import replayed, resolve
from goq.client._async.topic_copy import BATCH_MESSAGES, CopyOptions, TopicCopy
from goq.client._async.topic_reader import OnDamage
from goq.client.arguments import Time
from goq.client.messages import LogMessage
from goq.client.replay_plan import Replay


class CopyResult(NamedTuple):
    """What a replay into a topic came to: copies stored by now, and those there were before."""

    stored: int
    known: int


class AsyncReplays:
    """Reading again, and copying."""

    _http: Http

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
        from_snapshot: Time | None = None,
    ) -> Replay:
        """Return a replay with absolute bounds, by the node's clock; nothing is read yet.

        It has the messages of all partitions, or of one, appended at or after ``from_time`` and
        before ``to_time``, between the offsets if any are given, and of one key if one is. It ends
        now where no end is given or a later time: what is to come is no part of it.
        """
        return await resolve(
            self._http,
            topic,
            from_time=from_time,
            to_time=to_time,
            from_offset=from_offset,
            to_offset=to_offset,
            partition=partition,
            key=key,
            include_deleted=include_deleted,
            from_snapshot=from_snapshot,
        )

    def read_replay(
        self,
        replay: Replay,
        *,
        on_damage: OnDamage | None = None,
        before_wait: Callable[[], Awaitable[None]] | None = None,
    ) -> AsyncGenerator[LogMessage, None]:
        """Yield the messages of a replay, merged by append time; live traffic goes first.

        Damaged messages go to ``on_damage``, or raise ``CorruptData``.
        """
        return replayed(self._http, replay, on_damage=on_damage, before_wait=before_wait)

    async def replay_into(
        self,
        replay: Replay,
        topic: str,
        *,
        batch: int = BATCH_MESSAGES,
        before_send: Callable[[int], Awaitable[None]] | None = None,
        on_stored: Callable[[int], None] | None = None,
        on_damage: OnDamage | None = None,
    ) -> CopyResult:
        """Publish the messages of a replay to another topic, each exactly once.

        What an earlier call with the same replay stored there is not stored again, however it
        ended. ``before_send`` is awaited before so many messages are sent; ``on_stored`` is told
        of so many that were.
        """
        copying = TopicCopy(
            self._http, replay, topic, CopyOptions(batch, before_send, on_stored, on_damage)
        )
        await copying.run()
        return CopyResult(copying.stored, copying.known)
