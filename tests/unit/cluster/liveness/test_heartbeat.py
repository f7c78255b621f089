"""Heartbeats between nodes of different versions, and of a node whose metadata differs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from goq.clock import ManualClock
from goq.cluster.controller.node_liveness import Heartbeat, HeartbeatAnswer
from goq.cluster.liveness import heartbeat
from goq.cluster.liveness.heartbeat import (
    HAS_LEFT,
    HeartbeatSender,
    decode_heartbeat,
    decode_heartbeat_answer,
    encode_heartbeat,
    encode_heartbeat_answer,
)
from goq.errors import (
    Conflict,
    GoqError,
    InvalidInput,
    NodeNotFound,
    NotLeader,
    TimedOut,
    Unavailable,
)

HEARTBEAT = Heartbeat(
    3, "disk full", frozenset({1}), frozenset({(2, 0)}), frozenset({(2, 1)}), True, "d1", 1, 0, 0
)
UNANSWERED = 10  # the place of this field
CLOCK_MS = 1_700_000_000_000
BEFORE_LEVELS = [3, "disk full", [1], [[2, 0]], [[2, 1]], True, "d1"]


class Controller:
    """The node that runs the controller; an earlier version refuses unknown fields."""

    def __init__(self, *, is_earlier_version: bool) -> None:
        self.is_earlier_version = is_earlier_version
        self.received: list[list[Any]] = []
        self.answer = b""

    async def call(self, _node: str, _path: str, body: bytes) -> bytes:
        fields = msgspec.msgpack.decode(body)
        self.received.append(fields)
        if self.is_earlier_version and len(fields) > len(BEFORE_LEVELS):
            raise InvalidInput("not a heartbeat")
        return self.answer


async def at_once() -> None:
    """Know the newest metadata already."""


def sender(
    controller: Controller,
    *,
    catch_up: Callable[[], Awaitable[None]] = at_once,
    has_diverged: bool = False,
    raft_silent_s: Callable[[], float] = lambda: 0.0,
) -> HeartbeatSender:
    found = HeartbeatSender(
        "n1",
        lambda: HEARTBEAT,
        lambda _node, _heartbeat: HeartbeatAnswer(),
        controller.call,
        ManualClock(CLOCK_MS * 1000),
        lambda: True,
        catch_up,
        lambda: has_diverged,
        raft_silent_s,
    )
    found.set_controller("n2")
    return found


def test_a_heartbeat_reads_back() -> None:
    for each in (HEARTBEAT, HEARTBEAT._replace(unreachable=frozenset({"n2", "n3"}))):
        assert decode_heartbeat(encode_heartbeat(each)) == each


def test_a_heartbeat_of_an_earlier_version_has_level_0() -> None:
    decoded = decode_heartbeat(msgspec.msgpack.encode(BEFORE_LEVELS))
    assert decoded == HEARTBEAT._replace(feature_level=0)
    assert encode_heartbeat(HEARTBEAT, for_level=0) == msgspec.msgpack.encode(BEFORE_LEVELS)


def test_fields_of_a_later_version_are_ignored() -> None:
    data = msgspec.msgpack.encode([*BEFORE_LEVELS, 2, 5, 6, 7, ["n2"], "later", {"more": 1}])
    assert decode_heartbeat(data) == HEARTBEAT._replace(
        feature_level=2,
        clock_ms=5,
        round_trip_ms=6,
        unanswered_ms=7,
        unreachable=frozenset({"n2"}),
    )


def test_a_heartbeat_of_a_version_without_clocks_has_none() -> None:
    assert decode_heartbeat(msgspec.msgpack.encode([*BEFORE_LEVELS, 1])) == HEARTBEAT


def test_a_node_learns_the_clocks_from_the_answer_if_there_is_one() -> None:
    async def run() -> None:
        controller = Controller(is_earlier_version=False)
        heartbeats = sender(controller)
        for answer, known in (
            (encode_heartbeat_answer(HeartbeatAnswer({"n1": -3}, 5)), {"n1": -3}),
            (msgspec.msgpack.encode({"n1": -3, "n2": 4}), {"n1": -3, "n2": 4}),
            (b"", {}),
            (b"\xc1", {}),
        ):
            controller.answer = answer
            await heartbeats.send()
            await settled()
            assert heartbeats.clock_skews_ms == known
            assert heartbeats.has_session()

    asyncio.run(run())


def test_an_answer_of_a_later_version_reads_as_far_as_it_is_known() -> None:
    answer = HeartbeatAnswer({"n1": -3}, 5)
    assert decode_heartbeat_answer(encode_heartbeat_answer(answer)) == answer
    later = msgspec.msgpack.encode([{"n1": -3}, 5, "later"])
    assert decode_heartbeat_answer(later) == answer
    assert decode_heartbeat_answer(msgspec.msgpack.encode([{}, -5])) == HeartbeatAnswer()


@pytest.mark.parametrize("data", [b"", b"\x90", b"\xc1", msgspec.msgpack.encode(["3"] * 7)])
def test_what_is_no_heartbeat_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode_heartbeat(data)


def test_a_controller_of_an_earlier_version_gets_what_it_knows() -> None:
    async def run() -> None:
        controller = Controller(is_earlier_version=True)
        heartbeats = sender(controller)
        for _ in range(3):
            await heartbeats.send()
        assert [len(fields) for fields in controller.received] == [12, 7, 7, 7]
        assert controller.received[-1] == BEFORE_LEVELS
        await settled()
        assert heartbeats.has_session()
        controller.is_earlier_version = False  # upgraded, and elected again
        heartbeats.set_controller("n2")
        await heartbeats.send()
        assert controller.received[-1] == [*BEFORE_LEVELS, 1, CLOCK_MS, 0, 0, []]

    asyncio.run(run())


def test_a_failure_to_reach_the_controller_says_nothing_of_its_version() -> None:
    async def run() -> None:
        controller = Controller(is_earlier_version=False)
        heartbeats = sender(controller)

        async def fail(*_: object) -> bytes:
            raise Unavailable("cut off")

        heartbeats._call, call = fail, heartbeats._call
        await heartbeats.send()
        assert not heartbeats.has_session()
        heartbeats._call = call
        await heartbeats.send()
        ((*fields, unanswered_ms, unreachable),) = controller.received
        assert fields == [*BEFORE_LEVELS, 1, CLOCK_MS, 0]
        assert unanswered_ms < 60_000  # how long the failure took on this machine
        assert unreachable == []
        await settled()
        assert heartbeats.has_session()

    asyncio.run(run())


def test_a_node_whose_metadata_differs_sends_nothing_and_has_no_session() -> None:
    async def run() -> None:
        controller = Controller(is_earlier_version=False)
        heartbeats = sender(controller, has_diverged=True)
        await heartbeats.send()
        assert controller.received == []
        assert not heartbeats.has_session()

    asyncio.run(run())


class Moments:
    """The time of a node, which a test moves."""

    def __init__(self, heartbeats: HeartbeatSender) -> None:
        self._clock: Any = heartbeats._clock
        self._began_us = self._clock.uptime_us()

    @property
    def now_s(self) -> float:
        return (self._clock.uptime_us() - self._began_us) / 1_000_000

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self._clock.now_us = self._began_us + round(1_000_000 * now_s)


def test_a_heartbeat_says_for_how_long_this_controller_has_not_answered() -> None:
    async def run() -> None:
        controller = Controller(is_earlier_version=False)
        heartbeats = sender(controller)
        moments = Moments(heartbeats)
        answering = heartbeats._call

        async def lose_the_answer(node: str, path: str, body: bytes) -> bytes:
            await answering(node, path, body)
            raise TimedOut("no answer")

        heartbeats._call = lose_the_answer
        for _ in range(4):
            await heartbeats.send()
            moments.now_s += 0.5
        assert [fields[UNANSWERED] for fields in controller.received] == [0, 500, 1000, 1500]
        heartbeats._call = answering
        await heartbeats.send()  # the controller ignores it: the node has no session by it
        assert not heartbeats.has_session()
        await heartbeats.send()
        await settled()
        assert heartbeats.has_session()
        assert [fields[UNANSWERED] for fields in controller.received][4:] == [2000, 0]
        heartbeats._call = lose_the_answer
        moments.now_s += 3
        heartbeats.set_controller("n3")  # whose answers were not waited for yet
        await heartbeats.send()
        assert controller.received[-1][UNANSWERED] == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "is_answer"),
    [
        (TimedOut("no answer"), False),
        (Unavailable("cut off"), False),
        (NodeNotFound("n1 has not joined"), True),
    ],
)
def test_a_refused_heartbeat_is_an_answered_one(
    monkeypatch: pytest.MonkeyPatch, error: GoqError, is_answer: bool
) -> None:
    async def run() -> None:
        controller = Controller(is_earlier_version=False)
        heartbeats = sender(controller)
        moments = Moments(heartbeats)
        answering = heartbeats._call

        async def fail(*_: object) -> bytes:
            raise error

        heartbeats._call = fail
        for _ in range(3):
            await heartbeats.send()
            moments.now_s += 1
        heartbeats._call = answering
        await heartbeats.send()
        assert controller.received[-1][UNANSWERED] == (1000 if is_answer else 3000)

    asyncio.run(run())


# After a silence


class Metadata:
    """The metadata of a node, which it catches up with when a test lets it."""

    def __init__(self) -> None:
        self.caught_up: list[asyncio.Future[None]] = []

    async def catch_up(self) -> None:
        self.caught_up.append(asyncio.get_running_loop().create_future())
        await self.caught_up[-1]


async def settled() -> None:
    """Let all that can go on go on."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_node_that_was_silent_has_no_session_before_it_knows_the_newest_metadata() -> None:
    async def run() -> None:
        metadata = Metadata()
        heartbeats = sender(Controller(is_earlier_version=False), catch_up=metadata.catch_up)
        moments = Moments(heartbeats)
        for silent_s, catches_up in ((0, True), (0.999, False), (1, True)):
            moments.now_s += silent_s
            before = len(metadata.caught_up)
            for _ in range(2):
                await heartbeats.send()
                await settled()
            assert len(metadata.caught_up) == before + catches_up
            if catches_up:
                assert not heartbeats.has_session()
                metadata.caught_up[-1].set_result(None)
                await settled()
            assert heartbeats.has_session()

    asyncio.run(run())


def test_an_answer_keeps_the_session_from_the_beginning_of_the_controllers_lease() -> None:
    """Another controller may have been elected since, which heard nothing of this node."""

    async def run() -> None:
        controller = Controller(is_earlier_version=False)
        heartbeats = sender(controller)
        moments = Moments(heartbeats)
        controller.answer = encode_heartbeat_answer(HeartbeatAnswer({}, 300))
        await heartbeats.send()
        await settled()
        for passed_s, has_session in ((0.699, True), (0.002, False)):
            moments.now_s += passed_s
            assert heartbeats.has_session() == has_session
        controller.answer = encode_heartbeat_answer(HeartbeatAnswer({}, 1000))
        await heartbeats.send()
        await settled()
        assert not heartbeats.has_session()

    asyncio.run(run())


def test_the_controllers_own_session_is_no_longer_than_its_lease() -> None:
    async def run() -> None:
        heartbeats = sender(Controller(is_earlier_version=False))
        moments = Moments(heartbeats)
        heartbeats._on_local_heartbeat = lambda _node, _heartbeat: HeartbeatAnswer({}, 900)
        heartbeats.set_controller("n1")
        await heartbeats.send()
        await settled()
        assert heartbeats.has_session()
        moments.now_s += 0.101
        assert not heartbeats.has_session()

    asyncio.run(run())


def test_a_node_that_hears_nothing_of_the_raft_group_has_no_session() -> None:
    async def run() -> None:
        silent_s = math.inf
        metadata = Metadata()
        heartbeats = sender(
            Controller(is_earlier_version=False),
            catch_up=metadata.catch_up,
            raft_silent_s=lambda: silent_s,
        )

        async def catch_up() -> None:
            assert not heartbeats.has_session()
            metadata.caught_up[-1].set_result(None)
            await settled()
            assert heartbeats.has_session()

        await heartbeats.send()
        await settled()
        silent_s = 0.0
        await catch_up()
        for silent_s in (0.5, 1.0, 1.4, 1.6):  # heartbeats are answered all the time
            await heartbeats.send()
            await settled()
            assert heartbeats.has_session() == (silent_s < 1.5)
        silent_s = 0.0
        await catch_up()

    asyncio.run(run())


def test_a_second_silence_is_caught_up_with_from_its_own_end() -> None:
    async def run() -> None:
        metadata = Metadata()
        heartbeats = sender(Controller(is_earlier_version=False), catch_up=metadata.catch_up)
        moments = Moments(heartbeats)
        for _ in range(2):
            await heartbeats.send()
            await settled()
            moments.now_s += 1
        first, second = metadata.caught_up
        moments.now_s -= 1
        assert first.cancelled()
        assert not heartbeats.has_session()
        second.set_result(None)
        await settled()
        assert heartbeats.has_session()

    asyncio.run(run())


def test_a_node_that_cannot_catch_up_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        tries = 0

        async def catch_up() -> None:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise Unavailable("no majority")

        monkeypatch.setattr(heartbeat, "_CATCH_UP_PAUSE_S", 0)
        heartbeats = sender(Controller(is_earlier_version=False), catch_up=catch_up)
        await heartbeats.send()
        assert not heartbeats.has_session()
        await settled()
        assert heartbeats.has_session()
        assert tries == 3

    asyncio.run(run())


# A start is told before it is registered


class Unsteady(Controller):
    """A controller that gives the answers of a list, and then takes everything."""

    def __init__(self, *answers: GoqError) -> None:
        super().__init__(is_earlier_version=False)
        self._answers = list(answers)

    async def call(self, node: str, path: str, body: bytes) -> bytes:
        await super().call(node, path, body)
        if self._answers:
            raise self._answers.pop(0)
        return self.answer


def announced(controller: Controller) -> None:
    async def announce() -> None:
        heartbeats = sender(controller)
        heartbeats.set_controller(None)
        announcing = asyncio.ensure_future(heartbeats.announce())
        await asyncio.sleep(0)
        assert not announcing.done()
        heartbeats.set_controller("n2")
        await announcing

    asyncio.run(announce())


@pytest.mark.parametrize("error", [NotLeader("x"), TimedOut("x"), Unavailable("x")])
def test_a_start_is_told_until_the_controller_has_heard_it(error: GoqError) -> None:
    controller = Unsteady(error, error)
    announced(controller)
    assert len(controller.received) == 4


def test_a_start_that_is_never_heard_is_an_error() -> None:
    with pytest.raises(Unavailable):
        announced(Unsteady(*[Unavailable("x")] * 100))


def test_a_node_that_the_cluster_does_not_know_yet_is_heard() -> None:
    controller = Unsteady(*[NodeNotFound("x")] * 2)
    announced(controller)
    assert len(controller.received) == 2


def test_a_node_has_left_once_the_controller_lacks_it_unless_it_is_joining(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        heartbeats = sender(Unsteady(*[NodeNotFound("x")] * 3))
        heartbeats._is_registered = lambda: False  # an earlier node of its id may be
        await heartbeats.send()
        assert not heartbeats.has_left
        assert caplog.messages == []
        heartbeats._is_registered = lambda: True
        for _ in range(2):
            await heartbeats.send()
            assert heartbeats.has_left
        assert caplog.messages == [HAS_LEFT]
        await heartbeats.send()  # the controller was new, and did not have all metadata yet
        assert not heartbeats.has_left

    asyncio.run(run())


def test_a_node_that_has_left_has_no_session_from_then_on() -> None:
    async def run() -> None:
        controller = Controller(is_earlier_version=False)
        heartbeats = sender(controller)
        await heartbeats.send()
        await settled()
        assert heartbeats.has_session()
        heartbeats._call = Unsteady(NodeNotFound("x")).call
        await heartbeats.send()
        assert not heartbeats.has_session()

    asyncio.run(run())


def test_a_refused_heartbeat_leaves_it_to_the_registration_to_say_why() -> None:
    controller = Unsteady(Conflict("an earlier version"))
    announced(controller)
    assert len(controller.received) == 1
