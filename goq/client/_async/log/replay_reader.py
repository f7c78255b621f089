"""Replays: their absolute bounds, and their messages merged by append time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

from goq.client._async.http import Http
from goq.client._async.log.partition_reader import LogRange
from goq.client._async.log.topic_reader import OnDamage, TopicReader
from goq.client._async.log.topic_time import answer_time_us
from goq.client.arguments import Time, as_time
from goq.client.messages import LogMessage
from goq.client.protocol import routes
from goq.client.protocol.answers import TopicAnswer, read_answer
from goq.client.replay_plan import Replay
from goq.errors import InvalidInput
from goq.units import format_time_us, parse_time_us


async def resolve_replay(
    http: Http,
    topic: str,
    *,
    from_time: Time | None = None,
    to_time: Time | None = None,
    from_offset: int | None = None,
    to_offset: int | None = None,
    partition: int | None = None,
    key: bytes | None = None,
    include_deleted: bool = False,
    as_of: Time | None = None,
) -> Replay:
    """Return a replay with absolute bounds, by the node's clock.

    It ends now where no earlier end is given: later messages are no part of it. Raises
    ``TopicNotFound``, and ``InvalidInput`` naming the argument.
    """
    found = read_answer(TopicAnswer, await http.call("GET", routes.topic(topic)))
    now_us = answer_time_us(found)

    def time_us(time: Time | None, field: str) -> int | None:
        return (
            None
            if time is None
            else parse_time_us(as_time(time, field), now_us=now_us, field=field)
        )

    from_us, to_us = time_us(from_time, "from_time"), time_us(to_time, "to_time")
    if from_us is not None and to_us is not None and to_us < from_us:
        raise InvalidInput("the end lies before the beginning", field="to_time")
    if from_offset is not None and to_offset is not None and to_offset < from_offset:
        raise InvalidInput("the end lies before the beginning", field="to_offset")
    if to_us is not None or to_offset is None:
        to_us = now_us if to_us is None else min(to_us, now_us)
        to_us = max(to_us, to_us if from_us is None else from_us)  # what is to come is empty
    return Replay(
        topic,
        from_us,
        to_us,
        from_offset,
        to_offset,
        partition,
        key,
        include_deleted,
        time_us(as_of, "as_of"),
        found.id,
    )


async def read_replay(
    http: Http,
    replay: Replay,
    *,
    on_damage: OnDamage | None = None,
    starts: Mapping[int, int] | None = None,
    before_wait: Callable[[], Awaitable[None]] | None = None,
) -> AsyncGenerator[LogMessage, None]:
    """Yield the messages of a replay, all partitions merged by append time.

    ``starts`` are offsets to begin at, by partition: the copies of earlier messages are known.
    Raises ``Conflict`` if the topic is not that of the replay any more.
    """
    span = LogRange(
        replay.from_offset,
        _written(replay.from_time_us),
        _written(replay.to_time_us),
        background=True,
        to_offset=replay.to_offset,
        include_deleted=replay.include_deleted,
        as_of=_written(replay.as_of_us),
    )
    log = TopicReader(
        http,
        replay.topic,
        replay.partition,
        span,
        follow=False,
        on_damage=on_damage,
        before_wait=before_wait,
        starts=starts,
        topic_ids={replay.topic: replay.topic_id} if replay.topic_id else None,
    )
    messages = log.messages()
    try:
        async for message in messages:
            if replay.wants(message):
                yield message
    finally:
        await messages.aclose()


def _written(time_us: int | None) -> str | None:
    return None if time_us is None else format_time_us(time_us)
