"""How a push stream goes on after refusals, and how much it asks for, on a clock of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from goq import limits
from goq.broker.topic.push_streams import PushStream, PushStreamOptions, PushStreams
from goq.broker.topic.topic_leases import ReceiveRequest
from goq.errors import GoqError, InvalidInput, PartitionOffline, TooManyRequests
from tests.support.cluster.replication.loop import run_simulated

Outcome = GoqError | int
"""What a receive ends with: an error, or so many messages."""


class Topic:
    """A topic whose receives end as the test says, and else wait for ever."""

    id, name = 1, "t"

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[float, int]] = []
        self.leased: list[int] = []
        self.left: list[tuple[str, str, str]] = []
        self.is_closed = False
        self.receiver = self.credits = self.coordinator = self
        self.restart_count = 0
        self.presences = 0
        self.count_max, self.waiting = 3, 0
        self.waiters = self

    def presence(self, *_: object) -> Any:
        self.presences += 1
        return nullcontext()

    def has_members(self, _group: str) -> bool:
        return False

    async def receive(self, _group: str, request: ReceiveRequest) -> list[Any]:
        self.asked.append((asyncio.get_running_loop().time(), request.messages_max))
        if not self.outcomes:
            await asyncio.get_running_loop().create_future()
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, GoqError):
            raise outcome
        spans = [(0, outcome, 1)]
        return [SimpleNamespace(partition=0, token=7, spans=spans, message_count=outcome)]

    def leased_messages(self) -> int:
        return sum(self.leased)

    def count(self, _group: str) -> int:
        return self.waiting

    def leave(self, *member: str) -> None:
        self.left.append(member)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def stream_of(topic: Topic, credit: int = 10, messages_max: int | None = None) -> PushStream:
    given: Any = topic
    stream = PushStream(given, "g", PushStreamOptions("c", credit, messages_max, None))

    def note(_group: str, account: Any, key: tuple[int, int], spans: list[Any]) -> None:
        account.add((key[0], key[1] + len(topic.leased)), spans, spans[0][1])
        topic.leased.append(spans[0][1])

    topic.credits = SimpleNamespace(leased=note, opened=lambda *_: None)
    return stream


def run(steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_simulated(steps())


def offline(retry_after_ms: int | None = 500) -> PartitionOffline:
    return PartitionOffline("partition 0 is offline", retry_after_ms=retry_after_ms)


def test_a_stream_asks_again_when_it_is_told_to_and_else_after_a_second() -> None:
    async def steps() -> None:
        busy = TooManyRequests("wait", retry_after_ms=250)
        topic = Topic(busy, offline(None), busy, 2)
        assert await stream_of(topic).next()
        assert [at_s for at_s, _ in topic.asked] == [0, 0.25, 1.25, 1.5]

    run(steps)


def test_a_stream_ends_after_half_a_minute_without_any_partition() -> None:
    async def steps() -> None:
        topic = Topic(*[offline(1000)] * 40)
        with pytest.raises(PartitionOffline):
            await stream_of(topic).next()
        assert len(topic.asked) == 31
        assert topic.asked[-1][0] == 30

    run(steps)


@pytest.mark.parametrize("between", [TooManyRequests("wait", retry_after_ms=1000), 1])
def test_only_refusals_in_a_row_end_a_stream(between: Outcome) -> None:
    async def steps() -> None:
        topic = Topic(*[offline()] * 30, between, *[offline()] * 30, 1)
        stream = stream_of(topic)
        while len(topic.outcomes):
            assert await stream.next()
        assert topic.leased_messages() == (1 if isinstance(between, GoqError) else 2)

    run(steps)


def test_an_error_that_no_repetition_helps_ends_a_stream_at_once() -> None:
    async def steps() -> None:
        topic = Topic(InvalidInput("never"))
        with pytest.raises(InvalidInput):
            await stream_of(topic).next()
        assert len(topic.asked) == 1

    run(steps)


def test_the_error_of_a_topic_that_closes_is_the_end_of_its_streams() -> None:
    async def steps() -> None:
        topic = Topic()
        stream = stream_of(topic)

        async def close(*_: object) -> list[Any]:
            topic.is_closed = True
            raise offline()

        topic.receive = close
        assert await stream.next() == []

    run(steps)


def test_a_stream_asks_for_no_more_than_its_credit_its_maximum_and_a_receive_have_room_for() -> (
    None
):
    async def steps() -> None:
        most = limits.RECEIVE_MESSAGES_MAX
        topic = Topic(3, 4, 2, 1)
        stream = stream_of(topic, credit=8, messages_max=9)
        for _ in range(2):
            await stream.next()
        stream.account.grant(50)
        await stream.next()
        assert [count for _, count in topic.asked] == [8, 5, 2]
        assert await stream.next() == []
        assert stream.ended
        large = Topic(1)
        await stream_of(large, credit=2 * most).next()
        assert large.asked == [(0.0, most)]

    run(steps)


def test_a_stream_without_credit_asks_for_nothing_until_it_has_some() -> None:
    async def steps() -> None:
        topic = Topic(1)
        stream = stream_of(topic, credit=0)
        waiting = asyncio.ensure_future(stream.next())
        await asyncio.sleep(100)
        assert topic.asked == []
        stream.account.grant(1)
        assert await waiting
        assert topic.asked == [(100.0, 1)]

    run(steps)


def test_a_session_is_joined_once_and_again_after_receives_begin_anew() -> None:
    async def steps() -> None:
        topic = Topic(1, 1, 1, 1)
        stream = stream_of(topic)
        await stream.next()
        await stream.next()
        assert topic.presences == 1
        topic.restart_count += 1
        await stream.next()
        assert topic.presences == 2
        stream._pause_membership()
        await stream.next()
        assert topic.presences == 3

    run(steps)


@pytest.mark.parametrize(("waiting", "is_refused"), [(2, False), (3, True), (4, True)])
def test_a_stream_needs_room_among_those_that_wait(waiting: int, *, is_refused: bool) -> None:
    topic: Any = Topic()
    topic.waiting = waiting
    if not is_refused:
        PushStreams.check_room(topic, "g")
        return
    with pytest.raises(TooManyRequests) as refused:
        PushStreams.check_room(topic, "g")
    assert refused.value.retry_after_ms == 1000
